"""Implementations of the ports: engines over HTTP, stores, metrics, clusters."""
