"""Stand-in engines, trace replay and simulation over the same core as production."""
