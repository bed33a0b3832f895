"""What carries conversions out is configured completely, or it is told what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.commands.app import run
from router.settings import SettingsError, load_settings
from router.settings.checks import note_oddities
from router.settings.loading import load
from router.settings.reloads import fingerprint_of
from tests.fakes.configurations import SOUND, write_configuration

PAIR = "{cluster: east, prefill: {name: pd-prefill}, decode: {name: pd-decode}}"
SECOND_PD = SOUND.replace("  - name: west\n", "  - {name: north, kind: pd}\n  - name: west\n", 1)


def with_loop(text: str, loop: str) -> str:
    """Return a configuration with a long loop."""
    return text.replace("scheduler:\n", f"scheduler:\n  long_loop: {loop}\n", 1)


BROKEN = {
    "webhook without an address": (
        "{actuator: webhook, webhook: {secret: s}}",
        ["scheduler.long_loop.webhook.url: is required with `actuator: webhook`"],
    ),
    "webhook without anything": (
        "{actuator: webhook}",
        [
            "scheduler.long_loop.webhook.secret: is required with `actuator: webhook`",
            "scheduler.long_loop.webhook.url: is required with `actuator: webhook`",
        ],
    ),
    "credentials in the address": (
        "{webhook: {url: 'http://me:hidden@ops.internal/convert'}}",
        ["scheduler.long_loop.webhook.url: must hold no credentials: use `api_key`"],
    ),
    "kubernetes without workloads": (
        "{actuator: kubernetes}",
        ["scheduler.long_loop.kubernetes.workloads: is required with `actuator: kubernetes`"],
    ),
    "a token over plain HTTP": (
        "{kubernetes: {url: 'http://kubernetes.default'}}",
        ["must start with https://: a token is sent there"],
    ),
    "a cluster that is not there": (
        f"{{kubernetes: {{workloads: [{PAIR.replace('east', 'esat')}]}}}}",
        ["no pd cluster is named 'esat'; did you mean `east`?"],
    ),
    "a cluster that only prefills": (
        f"{{kubernetes: {{workloads: [{PAIR.replace('east', 'west')}]}}}}",
        ["no pd cluster is named 'west'"],
    ),
    "a model that is not there": (
        f"{{kubernetes: {{workloads: [{PAIR.replace('{cluster', '{model: n, cluster')}]}}}}",
        ["workloads[0].model: no model is named 'n'"],
    ),
    "a cluster twice": (
        f"{{kubernetes: {{workloads: [{PAIR}, {PAIR}]}}}}",
        ["workloads[1]: 'east' has its workloads above already"],
    ),
    "one workload for both roles": (
        f"{{kubernetes: {{workloads: [{PAIR.replace('pd-decode', 'pd-prefill')}]}}}}",
        ["workloads[0].decode: must be another workload than `prefill`"],
    ),
    "no name of Kubernetes": (
        f"{{kubernetes: {{workloads: [{PAIR.replace('pd-decode', 'PD_Decode')}]}}}}",
        ["workloads[0].decode.name: holds characters that a name may not have"],
    ),
    "an unknown kind": (
        f"{{kubernetes: {{workloads: [{PAIR.replace('{name', '{kind: ReplicaSet, name', 1)}]}}}}",
        ["workloads[0].prefill.kind: must be one of StatefulSet, LeaderWorkerSet, Deployment"],
    ),
}


@pytest.mark.parametrize(("loop", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_missing_or_wrong_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loop: str, said: list[str]
) -> None:
    """Each fault is a line with its place, and `config check` ends with 2."""
    path = write_configuration(tmp_path, with_loop(SOUND, loop))
    assert run(["config", "check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert part in line
        assert "hidden" not in line


def test_a_webhooks_secret_is_read_and_never_shown(tmp_path: Path) -> None:
    """From a file or a variable; neither what is shown nor the fingerprint has it."""
    (tmp_path / "secret").write_text("from-a-file\n")
    loop = "{{actuator: webhook, webhook: {{url: 'https://ops.internal/convert', secret: {}}}}}"
    path = write_configuration(tmp_path, with_loop(SOUND, loop.format("'file:secret'")))
    loaded = load(path, {})
    secret = loaded.settings.scheduler.long_loop.webhook.secret
    assert secret is not None
    assert secret.get_secret_value() == "from-a-file"
    assert "from-a-file" not in repr(loaded.settings)
    again = load(
        write_configuration(tmp_path, with_loop(SOUND, loop.format("'${HOOK}'"))),
        {"HOOK": "from-a-variable"},
    )
    assert again.settings != loaded.settings
    assert fingerprint_of(again) == fingerprint_of(loaded)
    with pytest.raises(SettingsError, match=r"webhook\.secret.* HOOK is not set"):
        load_settings(path, {})


def test_clusters_without_workloads_are_noted(tmp_path: Path) -> None:
    """Kubernetes scales what it was told of; where it was told nothing, nothing converts."""
    loop = f"{{actuator: kubernetes, kubernetes: {{workloads: [{PAIR}]}}}}"
    settings = load_settings(write_configuration(tmp_path, with_loop(SECOND_PD, loop)), {})
    notes = list(note_oddities(settings))
    assert "no workloads are configured for north: nothing converts there" in notes
    assert not [note for note in notes if "for east" in note]
    quiet = load_settings(write_configuration(tmp_path, SECOND_PD), {})
    assert not [note for note in note_oddities(quiet) if "workloads" in note]
