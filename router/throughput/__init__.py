"""The throughput model: what a prompt costs to prefill and how many bytes its KV has. Pure."""
