"""Measurements behind the figures in the documentation; none of them is a test."""
