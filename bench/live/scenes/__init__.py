"""The scenes, by their names."""
