"""What carries conversions out at engines."""
