"""What `prfaas doctor` finds of an actuator, before any instance is drained for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.compose.actuator_examination import examine_actuator
from router.settings import Settings, load_settings
from tests.fakes.configurations import SOUND, write_configuration
from tests.fakes.conversion_peers import ENGINE_KEY, SglangEngine
from tests.fakes.kube_api_server import FakeWorkload, KubeApiServer, write_account

PATIENT = 20.0


def configured(directory: Path, loop: str, text: str = SOUND) -> Settings:
    text = text.replace("scheduler:\n", f"scheduler:\n  long_loop: {loop}\n", 1)
    return load_settings(write_configuration(directory, text), {})


async def found(settings: Settings) -> dict[str, tuple[str, str]]:
    """Return verdict and words by subject."""
    findings = await examine_actuator(settings, timeout=PATIENT)
    return {each.subject: (each.verdict, each.told) for each in findings}


async def test_workloads_are_read_and_left_alone(tmp_path: Path) -> None:
    """What is there is fine; what is not, or not ours to read, is told in the server's words."""
    server = KubeApiServer()
    server.workloads = {("statefulsets", "pd-prefill"): FakeWorkload(3, 2)}
    pair = "{cluster: east, prefill: {name: pd-prefill}, decode: {name: pd-decode}}"
    async with server.engine:
        loop = (
            f"{{actuator: kubernetes, kubernetes: {{url: '{server.url}',"
            f" service_account: '{write_account(tmp_path)}', workloads: [{pair}]}}}}"
        )
        told = await found(configured(tmp_path, loop))
        assert told["StatefulSet pd-prefill"] == ("fine", "3 replicas are wanted, 2 ready")
        verdict, said = told["StatefulSet pd-decode"]
        assert (verdict, 'statefulsets "pd-decode" not found' in said) == ("fault", True)
        (tmp_path / "token").unlink()
        told = await found(configured(tmp_path, loop))
    assert {verdict for verdict, _ in told.values()} == {"fault"}
    assert server.writes() == []


async def test_engines_tell_the_role_that_is_configured(tmp_path: Path) -> None:
    """Of those that may be converted; one in another role, or that tells none, is a fault."""
    peer = SglangEngine()
    async with peer.engine:
        own = f'url: "{peer.engine.url}", api_key: {ENGINE_KEY}, convertible: true'
        text = SOUND.replace('url: "http://10.0.0.1:8000"', own, 1)
        settings = configured(tmp_path, "{actuator: sglang}", text)
        assert await found(settings) == {"p0": ("fine", "prefill")}
        peer.role = "decode"
        said = "it is in role decode, configured is prefill"
        assert await found(settings) == {"p0": ("fault", said)}
        peer.schedulers = 0
        assert (await found(settings))["p0"][0] == "fault"
        assert not [each for each in peer.engine.requests if each.method != "GET"]


@pytest.mark.parametrize(
    "loop",
    [
        "{}",
        "{actuator: label}",
        "{actuator: webhook, webhook: {url: 'http://127.0.0.1:1', secret: s}}",
    ],
)
async def test_what_cannot_be_asked_is_not(tmp_path: Path, loop: str) -> None:
    """Nobody is called where no call changes nothing."""
    assert await found(configured(tmp_path, loop)) == {}
