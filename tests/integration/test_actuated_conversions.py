"""Conversions in a running gateway whose actuators call somebody: Kubernetes, a webhook."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.conversion_peers import WEBHOOK_SECRET, WebhookReceiver
from tests.fakes.kube_api_server import COST, FakePod, FakeWorkload, KubeApiServer, write_account
from tests.fakes.systems import Document, System, scripted_system
from tests.integration.test_long_loop import (
    CONVERTIBLE,
    MODEL,
    NAMES,
    ask_for_long_prompts,
    quick,
)


def acting_by(actuator: str, how: Document) -> Document:
    """Return the loop of `quick` with an actuator and its section."""
    scheduler = quick(actuator)
    scheduler["long_loop"] |= {actuator: how}
    return scheduler


async def until_over(system: System) -> Document:
    """Let prefill be short, and wait until a conversion of it has ended."""
    await ask_for_long_prompts(system)
    system.engine("p0").waiting = 5
    return await system.until(lambda state: (state["conversion"] or {}).get("over", False), 60)


def roles(state: Document) -> set[tuple[str, str, str]]:
    """Return who does what, and in which state."""
    return {(each["name"], each["role"], each["state"]) for each in state["instances"]}


UNCHANGED = {(name, "decode" if name[0] == "d" else "prefill", "active") for name in NAMES.split()}


async def test_kubernetes_moves_a_replica_and_no_role(tmp_path: Path) -> None:
    """The drained pod is marked, both workloads are scaled, and the fleet is as it was."""
    server = KubeApiServer()
    server.workloads = {
        ("deployments", "pd-prefill"): FakeWorkload(1, 1),
        ("deployments", "pd-decode"): FakeWorkload(3, 3),
    }
    server.pods = {"pd-decode-x7k2p": FakePod("127.0.0.1")}
    pair = {
        "cluster": "east",
        "prefill": {"kind": "Deployment", "name": "pd-prefill"},
        "decode": {"kind": "Deployment", "name": "pd-decode"},
    }
    account = write_account(tmp_path)
    async with server.engine:
        how = {"url": server.url, "service_account": str(account), "workloads": [pair]}
        scheduler = acting_by("kubernetes", how)
        async with scripted_system(
            tmp_path, names=NAMES, entries=CONVERTIBLE, model=MODEL, scheduler=scheduler
        ) as system:
            await ask_for_long_prompts(system)
            system.engine("p0").waiting = 5
            begun = await system.until(
                lambda state: (state["conversion"] or {}).get("phase") == "verifying", 60
            )
            assert server.replicas() == {"pd-prefill": 2, "pd-decode": 2}
            assert server.pods["pd-decode-x7k2p"].annotations[COST] == str(-(2**31))
            assert begun["conversion"]["over"] is False
            server.settle()
            done = await system.until(lambda state: state["conversion"]["over"], 30)
    assert done["conversion"]["phase"] == "settled", done["conversion"]
    assert roles(done) == UNCHANGED


@pytest.mark.long
@pytest.mark.parametrize("refused", [False, True], ids=["done", "refused"])
async def test_a_webhook_is_obeyed(tmp_path: Path, refused: bool) -> None:
    """What it does is settled; what it refuses is put back, with its reason in the state."""
    receiver = WebhookReceiver()
    receiver.role = "decode"
    async with receiver.engine:
        how = {"url": receiver.engine.url, "secret": WEBHOOK_SECRET}
        if refused:
            # It refuses the act alone: an undo brings about what is so already.
            receiver.refusals = {"act": "no node to spare"}
        async with scripted_system(
            tmp_path,
            names=NAMES,
            entries=CONVERTIBLE,
            model=MODEL,
            scheduler=acting_by("webhook", how),
        ) as system:
            done = await until_over(system)
    conversion = done["conversion"]
    told = [each.json()["phase"] for each in receiver.engine.requests]
    if refused:
        assert conversion["phase"] == "rolled_back", conversion
        assert conversion["cause"] == "the webhook refuses: no node to spare"
        assert told == ["act", "undo"]
        assert roles(done) == UNCHANGED
    else:
        assert conversion["phase"] == "settled", conversion
        assert told == ["act", "confirm"]
        assert roles(done) - UNCHANGED == {(conversion["instance"], "prefill", "active")}
