"""The gateway measured beside vllm-router: `make bench`, or `python -m bench.gateway --help`.

A mock engine and a load generator in C (`bench/native`) cost so little that what is measured is the
router between them. The router runs on one processor, everything else on another.
"""
