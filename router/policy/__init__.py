"""The per-request rule: where a prompt's prefill runs. Pure: values in, values out."""
