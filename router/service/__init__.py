"""The use cases: async, over ports, without a framework."""
