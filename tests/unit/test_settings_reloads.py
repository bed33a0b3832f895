"""What a changed configuration may change in a process that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.settings import Loaded, load
from router.settings.reloads import RESTART_ONLY, fingerprint_of, is_same, settle

BASE = """
models: [{name: m}]
clusters: [{name: east, kind: pd, instances: [{name: d, url: "http://127.0.0.1:1", role: both}]}]
"""


def configured(directory: Path, more: str = "", **environ: str) -> Loaded:
    path = directory / "prfaas.yaml"
    path.write_text(BASE + more, "utf-8")
    return load(path, environ)


def test_what_only_a_restart_changes_stays_and_is_named(tmp_path: Path) -> None:
    """The rest of the new file is in force as it stands."""
    running = configured(tmp_path)
    wanted = configured(
        tmp_path,
        """
server: {port: 9000, max_body_bytes: 1000, timeouts: {head_seconds: 7}}
store: {url: "redis://127.0.0.1:1"}
upstream: {probe: {interval_seconds: 9, failures: 7}}
scheduler: {threshold: {tokens: 5}}
""",
    )
    settled = settle(running, wanted)
    assert settled.restart_needed == (
        "server.port",
        "server.timeouts",
        "store",
        "upstream.probe.interval_seconds",
    )
    settings = settled.loaded.settings
    assert settings.server.port == running.settings.server.port
    assert settings.server.timeouts == running.settings.server.timeouts
    assert settings.store.embedded
    assert settings.upstream.probe.interval_seconds == 1
    assert settings.server.max_body_bytes == 1000
    assert settings.upstream.probe.failures == 7
    assert settings.scheduler.threshold.tokens == 5


def test_a_file_that_means_the_same_is_the_same(tmp_path: Path) -> None:
    """Comments, order and places make no difference; a value does."""
    running = configured(tmp_path)
    commented = configured(tmp_path, "# nothing\nscheduler: {}\n")
    assert is_same(running, commented)
    assert settle(running, commented).restart_needed == ()
    assert not is_same(running, configured(tmp_path, "scheduler: {policy: slack}\n"))


@pytest.mark.parametrize("path", RESTART_ONLY, ids=".".join)
def test_every_named_setting_exists(tmp_path: Path, path: tuple[str, ...]) -> None:
    """A setting that was renamed is renamed here, too."""
    value: object = configured(tmp_path).settings
    for name in path:
        value = getattr(value, name)


def test_fingerprints_tell_settings_apart_and_no_secrets(tmp_path: Path) -> None:
    """Equal configurations have equal ones; a secret has no part in it."""
    tenant = 'tenants: [{name: a, cache_salt: "${SALT}", api_keys: ["${KEY}"]}]\n'
    first = configured(tmp_path, tenant, SALT="one", KEY="sk-1")
    other = configured(tmp_path, tenant, SALT="two", KEY="sk-2")
    assert fingerprint_of(first) == fingerprint_of(other)
    changed = configured(tmp_path, tenant + "admission: {queue_size: 3}\n", SALT="one", KEY="sk-1")
    assert fingerprint_of(first) != fingerprint_of(changed)
