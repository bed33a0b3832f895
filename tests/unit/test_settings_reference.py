"""Schema and reference: what may be written is told completely, and truly."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from router.commands.app import run
from router.commands.config import build_scenario_schema, build_schema
from router.settings import Settings
from router.settings.reference import list_settings, render_reference, render_table
from router.settings.scenarios import ScenarioSettings
from router.settings.validation import validate_value

ROOT = Path(__file__).parents[2]

CONTRACT = [
    "server.host",
    "server.port",
    "server.max_body_bytes",
    "server.expose_routing_headers",
    "server.passthrough_paths",
    "server.cors.allow_origins",
    "store.url",
    "admin.api_key",
    "admin.port",
    "admin.keys[].key",
    "admin.keys[].role",
    "admin.keys[].name",
    "models[].name",
    "models[].served_name",
    "models[].aliases",
    "models[].loras[].name",
    "models[].revision",
    "models[].kv_dtype",
    "models[].world_size",
    "models[].eagle",
    "models[].media",
    "models[].tokenizer.kind",
    "models[].tokenizer.path",
    "models[].tokenizer.revision",
    "models[].tokenizer.bytes_per_token",
    "models[].cache.block_size",
    "models[].cache.groups[].kind",
    "models[].cache.groups[].window",
    "models[].cache.groups[].count",
    "models[].cache.groups[].block_size",
    "models[].gate.max_kv_gbps",
    "models[].gate.min_long_share",
    "models[].gate.min_long_tokens",
    "models[].gate.min_gain",
    "models[].profiles",
    "models[].decode.max_concurrency",
    "models[].decode.tokens_per_second_slo",
    "models[].decode.expected_output_tokens",
    "clusters[].name",
    "clusters[].kind",
    "clusters[].instances[].name",
    "clusters[].instances[].url",
    "clusters[].instances[].role",
    "clusters[].instances[].kv_events",
    "clusters[].instances[].kv_replay",
    "clusters[].instances[].api_key",
    "clusters[].instances[].served_name",
    "clusters[].instances[].accepts_handoff",
    "clusters[].instances[].data_parallel_ranks",
    "clusters[].instances[].revision",
    "clusters[].instances[].model",
    "clusters[].instances[].compatibility",
    "links[].name",
    "links[].from",
    "links[].to",
    "links[].capacity_gbps",
    "links[].telemetry.required",
    "links[].telemetry.max_age_seconds",
    "transfer.connector",
    "transfer.lease_seconds",
    "transfer.lease_margin_seconds",
    "kvmeta.ingest",
    "kvmeta.lookup_timeout_ms",
    "kvmeta.max_blocks_per_source",
    "kvmeta.max_blocks_total",
    "kvmeta.speculative_ttl_seconds",
    "kvmeta.breaker.failures",
    "kvmeta.counted_media",
    "kvmeta.probe_interval_seconds",
    "kvmeta.max_age_seconds",
    "scheduler.threshold.mode",
    "scheduler.threshold.tokens",
    "scheduler.threshold.min_tokens",
    "scheduler.threshold.max_tokens",
    "scheduler.bandwidth.mode",
    "scheduler.bandwidth.scarce_above",
    "scheduler.bandwidth.abundant_below",
    "scheduler.remote_queue_limit",
    "scheduler.policy",
    "scheduler.on_unknown_metadata",
    "scheduler.decision_timeout_ms",
    "scheduler.signal_max_age_seconds",
    "scheduler.link_budget_seconds",
    "scheduler.short_loop.period_seconds",
    "scheduler.short_loop.dwell_seconds",
    "scheduler.long_loop.period_seconds",
    "scheduler.long_loop.confirm_windows",
    "scheduler.long_loop.actuator",
    "upstream.connect_timeout_seconds",
    "upstream.first_byte_timeout_seconds",
    "upstream.idle_timeout_seconds",
    "upstream.max_connections_per_instance",
    "upstream.breaker.failures",
    "upstream.breaker.window_seconds",
    "upstream.breaker.cooldown_seconds",
    "upstream.probe.interval_seconds",
    "upstream.probe.timeout_seconds",
    "upstream.probe.failures",
    "upstream.probe.successes",
    "admission.queue_size",
    "admission.queue_timeout_seconds",
    "drain.delay_seconds",
    "drain.grace_seconds",
    "tenants[].name",
    "tenants[].api_keys",
    "tenants[].cache_salt",
    "tenants[].weight",
    "tenants[].max_concurrency",
    "tenants[].requests_per_minute",
    "tenants[].tokens_per_minute",
    "tenants[].home",
    "tenants[].allow_home_header",
    "engines.time_scale",
    "engines.seed",
    "engines.blocks",
    "engines.max_model_len",
    "engines.load_failure_policy",
    "engines.layerwise_overlap",
    "engines.event_encoding",
    "engines.tokenizer",
]


def test_the_schema_accepts_the_example_and_refuses_faults() -> None:
    """The printed schema is a valid one, true of the example, closed against unknown keys."""
    schema = build_schema()
    checker = jsonschema.Draft202012Validator
    checker.check_schema(schema)
    document = yaml.safe_load((ROOT / "examples/two-clusters.yaml").read_text("utf-8"))
    validator = checker(schema)
    assert not list(validator.iter_errors(document))
    assert list(validator.iter_errors({**document, "schedular": {}}))
    document["models"][0]["cache"]["block_size"] = -1
    assert list(validator.iter_errors(document))


def test_the_schema_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`config schema` prints the schema itself, with a description of every setting."""
    assert run(["config", "schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(build_schema()))
    sections = [printed, *printed["$defs"].values()]
    properties = [item for part in sections for item in part.get("properties", {}).values()]
    assert all(item.get("description") or "$ref" in item for item in properties)


def test_every_setting_of_the_contract_exists() -> None:
    """Each key that outsiders rely on is a setting."""
    known = {entry.path for entry in list_settings(Settings)}
    assert set(CONTRACT) <= known


def test_every_default_is_a_value_that_could_be_written() -> None:
    """The defaults pass their own validation: left out or written, it is the same."""
    entries = [{"name": "m"}], [{"name": "east", "kind": "pd"}]
    bare = validate_value(Settings, {"models": entries[0], "clusters": entries[1]}, None)
    assert isinstance(bare, Settings)
    written = bare.model_dump(mode="json", by_alias=True, exclude_none=True)
    again = validate_value(Settings, written, None)
    assert again == bare


def test_the_reference_names_every_setting() -> None:
    """docs/configuration.md holds the generated tables, so that no setting is missing from it."""
    page = (ROOT / "docs/configuration.md").read_text("utf-8")
    assert page.endswith(render_reference(Settings)), "run: prfaas config reference"
    for entry in list_settings(Settings):
        assert f"`{entry.path}`" in page or f"## {entry.path}\n" in page
        assert entry.meaning


def test_the_scenario_page_names_every_setting() -> None:
    """docs/scenarios.md ends with the generated table."""
    page = (ROOT / "docs/scenarios.md").read_text("utf-8")
    assert page.endswith(render_table(ScenarioSettings)), "run: prfaas config reference --scenario"
    assert all(entry.meaning for entry in list_settings(ScenarioSettings))


def test_the_scenario_schema_fits_the_examples() -> None:
    """Editors that check scenarios by the schema find nothing wrong with the shipped ones."""
    validator = jsonschema.Draft202012Validator(build_scenario_schema())
    for path in sorted((ROOT / "examples/scenarios").glob("*.yaml")):
        validator.validate(yaml.safe_load(path.read_text("utf-8")))
