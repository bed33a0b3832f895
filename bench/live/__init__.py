"""Live scenes: what goes wrong with a link, a queue or a leader, played on real processes."""
