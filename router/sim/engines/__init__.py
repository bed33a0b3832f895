"""Stand-in engines: a GPU-less look-alike of vLLM with a real prefix cache (DESIGN section 9).

The core is pure: `block_pool`, `block_cache`, `chains`, `link` (its state), `timing` and `answers`
hold no socket and read no clock. `engine` runs one engine in simulated time, `server` speaks HTTP,
`publisher` speaks ZMQ, and `cluster.serve_cluster` starts all engines of a cluster in one loop.

What is faithful to vLLM: hits and retention of KV groups, eviction order, event shapes, the NIXL
hand-off, validation and error bodies. What is a model: time (a profile's prefill seconds, a
constant decode rate), KV bytes (the profile's), the link (fair processor sharing) and the answers
(a hash of the prompt), which every engine gives alike.
"""
