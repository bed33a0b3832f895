"""Spoilt inputs by the thousand: `make fuzz` throws more of them."""
