"""What carries conversions out (`router.ports.Actuator`), each in its own words."""
