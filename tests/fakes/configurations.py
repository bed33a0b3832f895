"""A small sound configuration, written to a directory, to break in one place at a time."""

from __future__ import annotations

from pathlib import Path

SOUND = """\
models:
  - name: m
    revision: "1"
    aliases: [small]
    cache:
      block_size: 64
      groups:
        - {kind: full_attention}
        - {kind: sliding_window, window: 1024}
    profiles:
      pd: ./pd.yaml
clusters:
  - name: east
    kind: pd
    instances:
      - {name: p0, url: "http://10.0.0.1:8000", role: prefill, kv_events: "tcp://10.0.0.1:5557"}
      - {name: d0, url: "http://10.0.0.2:8000", role: decode}
  - name: west
    kind: prfaas
    instances:
      - {name: f0, url: "http://10.0.1.1:8000", role: prefill}
links:
  - {name: west-east, from: west, to: east, capacity_gbps: 100}
scheduler:
  threshold: {mode: manual, tokens: 19400}
tenants:
  - {name: acme, api_keys: [sk-acme], home: east}
"""

PROFILE = """\
model: m
revision: "1"
hardware: 8xH20
engine: vLLM
date: "2026-04-16"
source: measured
points:
  - {tokens: 1000, kv_bytes: 100, prefill_seconds: 0.5}
  - {tokens: 2000, kv_bytes: 200, prefill_seconds: 0.9}
"""


def write_configuration(directory: Path, text: str = SOUND, profile: str = PROFILE) -> Path:
    """Write a configuration and its profile; return the configuration's path."""
    path = directory / "c.yaml"
    path.write_text(text, "utf-8")
    (directory / "pd.yaml").write_text(profile, "utf-8")
    return path
