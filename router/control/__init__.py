"""State that changes with time, as pure steps: links, breakers, health. No clock, no I/O."""
