"""PrfaaS router: the gateway and the scheduler of Prefill-as-a-Service."""

__version__ = "0.1.0"
