"""The planner: from what could be built to what it sustains, whether it pays, and why. Pure."""
