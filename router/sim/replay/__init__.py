"""Trace replay, the pure parts: reading traces, writing prompts, counting results."""
