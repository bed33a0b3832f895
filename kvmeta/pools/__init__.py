"""Pools that several engines share, and what their directories say of a prompt."""
