"""The nouns of routing, as frozen values. No I/O, no clock, no randomness."""
