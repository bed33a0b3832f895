"""Every actuator that calls somebody, against the suite, and what is each one's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from router.adapters.actuators.calls import Caller
from router.adapters.actuators.kube_api import KubeApi, ServiceAccount, Workload, WorkloadKind
from router.adapters.actuators.kubernetes import KubernetesActuator, WorkloadPair
from router.adapters.actuators.scalings import ScalingRecord
from router.adapters.actuators.sglang import SglangActuator
from router.adapters.actuators.webhook import Receiver, WebhookActuator, sign
from router.adapters.clocks import SystemClock
from router.adapters.memory_state import MemoryState
from router.domain.conversions import Conversion
from router.domain.errors import ActuationFailed, NotFound, NotLeading, StoreAway
from router.domain.topology import Instance, Role
from router.ports import Fence, Kept, StateStore
from tests.contract.actuator_suite import CONVERSION, PATIENT, ActuatorSuite
from tests.fakes.conversion_peers import (
    ENGINE_KEY,
    WEBHOOK_SECRET,
    SglangEngine,
    WebhookReceiver,
)
from tests.fakes.kube_api_server import (
    COST,
    TOKEN,
    FakePod,
    FakeWorkload,
    KubeApiServer,
    write_account,
)
from tests.fakes.scripted_engine import Until, json_answer

BRIEF = 1.0
"""Seconds in which a peer on loopback answers, and that a test waits for what never comes."""

BACK = Conversion("m", "east", "p1", Role.DECODE, Role.PREFILL)


class Known:
    """Finds the instances that it was given."""

    def __init__(self, *instances: Instance) -> None:
        self._instances = {each.name: each for each in instances}

    def __call__(self, name: str) -> Instance:
        if name not in self._instances:
            raise NotFound(f"no instance is named {name!r}")
        return self._instances[name]


# ---------------------------------------------------------------------------- sglang


class SglangWorld:
    """An engine that prefills, and whoever asks it."""

    secrets = (ENGINE_KEY,)

    def __init__(self, peer: SglangEngine) -> None:
        self.peer = peer
        self.engine = peer.engine

    def actuator(self, timeout: float, *, graph_memory_gb: float | None = None) -> SglangActuator:
        instance = Instance("p1", "east", self.engine.url, Role.PREFILL, api_key=ENGINE_KEY)
        return SglangActuator(
            Caller("the engine", timeout),
            Known(instance),
            clock=SystemClock(),
            graph_memory_gb=graph_memory_gb,
            pause=0.01,
        )

    def roles(self) -> object:
        return self.peer.role

    def hold_back(self) -> None:
        self.peer.loading = True

    def finish(self) -> None:
        self.peer.loading = False

    def refuse(self, reason: str) -> None:
        self.peer.refusal = reason


class TestSglangActuator(ActuatorSuite):
    """Engines that switch by themselves."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[SglangWorld]:
        peer = SglangEngine()
        async with peer.engine:
            yield SglangWorld(peer)

    async def test_the_live_role_counts(self, world: SglangWorld) -> None:
        """Every scheduler tells its own; what the engine was launched with stays what it was."""
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.switched == 1
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True
        assert await world.actuator(PATIENT).confirm(BACK) is False

    async def test_an_older_path_tells_it_as_well(self, world: SglangWorld) -> None:
        """`/get_server_info` is what `/server_info` was called before."""
        world.peer.info_path = "/get_server_info"
        await world.actuator(PATIENT).act(CONVERSION)
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True

    async def test_an_engine_that_still_sends_is_asked_again(self, world: SglangWorld) -> None:
        """It is not idle while KV leaves it, which no queue shows."""
        world.peer.busy = 3
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.role == "decode"
        world.peer.busy = 10**6
        with pytest.raises(ActuationFailed, match="p1 refuses to prefill: instance is not idle"):
            await world.actuator(BRIEF).undo(CONVERSION)

    async def test_a_long_switch_is_left_to_confirm(self, world: SglangWorld) -> None:
        """Graphs are captured before it answers; an undo needs the answer."""
        world.engine.on("/pd_role_switch", [Until(never := asyncio.Event())])
        await world.actuator(BRIEF).act(CONVERSION)
        assert await world.actuator(PATIENT).confirm(CONVERSION) is False
        world.peer.role = "decode"
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True
        with pytest.raises(ActuationFailed, match=r"p1 did not answer within 1 s"):
            await world.actuator(BRIEF).undo(CONVERSION)
        never.set()

    async def test_memory_for_graphs_is_named(self, world: SglangWorld) -> None:
        """As configured, else as the engine reports; only where it is to decode."""
        world.peer.graph_memory = 3.5
        await world.actuator(PATIENT).act(CONVERSION)
        await world.actuator(PATIENT).undo(CONVERSION)
        await world.actuator(PATIENT, graph_memory_gb=7).act(CONVERSION)
        asked = [each.json() for each in world.engine.requests if each.method == "POST"]
        assert asked == [
            {"new_role": "decode", "decode_cuda_graph_memory_gb": 3.5},
            {"new_role": "prefill"},
            {"new_role": "decode", "decode_cuda_graph_memory_gb": 7},
        ]

    async def test_what_cannot_switch_is_told(self, world: SglangWorld) -> None:
        """No such path, no role told, a key that is not accepted, an instance that is gone."""
        world.engine.on("/pd_role_switch", json_answer({"detail": "Not Found"}, 404))
        with pytest.raises(ActuationFailed, match="it has no /pd_role_switch"):
            await world.actuator(PATIENT).act(CONVERSION)
        world.engine.on("/pd_role_switch", json_answer({}, 403))
        with pytest.raises(ActuationFailed, match=r"does not accept our api_key \(403\)"):
            await world.actuator(PATIENT).act(CONVERSION)
        world.peer.schedulers = 0
        with pytest.raises(ActuationFailed, match="p1 does not tell its role"):
            await world.actuator(PATIENT).confirm(CONVERSION)
        elsewhere = Conversion("m", "east", "p9", Role.PREFILL, Role.DECODE)
        with pytest.raises(ActuationFailed, match="p9 is no instance any more"):
            await world.actuator(PATIENT).act(elsewhere)


# ---------------------------------------------------------------------------- kubernetes


PREFILL = Workload(WorkloadKind.STATEFUL_SET, "prefill")
DECODE = Workload(WorkloadKind.STATEFUL_SET, "decode")


class KubernetesWorld:
    """Two workloads, `prefill` of 2 pods and `decode` of 1."""

    secrets = (TOKEN,)

    def __init__(self, peer: KubeApiServer, account: Path) -> None:
        self.peer = peer
        self.engine = peer.engine
        self.state: StateStore = MemoryState()
        self.url = "http://prefill-1.prefill.engines:8000"
        self.leads = True
        self.pairs = {("east", None): WorkloadPair(PREFILL, DECODE)}
        self.trust = ServiceAccount(account).trust
        self._account = account

    def actuator(self, timeout: float) -> KubernetesActuator:
        api = KubeApi(
            Caller("kubernetes", timeout, trust=self.trust),
            self.engine.url,
            ServiceAccount(self._account),
            "engines",
            attempts=3,
            pause=0.01,
        )
        known = Known(Instance("p1", "east", self.url, Role.PREFILL))
        return KubernetesActuator(api, self.pairs, known, ScalingRecord(self.state, self.fence))

    def fence(self) -> Fence | None:
        if not self.leads:
            raise NotLeading("this process does not lead")
        return None

    def roles(self) -> object:
        return self.peer.replicas()

    def hold_back(self) -> None:
        """Pods take their time anyway."""

    def finish(self) -> None:
        self.peer.settle()

    def refuse(self, reason: str) -> None:
        self.engine.reply(json_answer({"kind": "Status", "message": reason}, 403))

    def use(self, kind: WorkloadKind) -> None:
        """Have workloads of another kind."""
        pair = WorkloadPair(Workload(kind, "prefill"), Workload(kind, "decode"))
        self.pairs = {("east", None): pair}
        self.peer.workloads = {
            (kind.plural, "prefill"): FakeWorkload(2, 2),
            (kind.plural, "decode"): FakeWorkload(1, 1),
        }


class TestKubernetesActuator(ActuatorSuite):
    """Workloads that are scaled, over TLS."""

    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
        peer = KubeApiServer()
        async with peer.engine:
            world = KubernetesWorld(peer, write_account(tmp_path))
            world.use(WorkloadKind.STATEFUL_SET)
            yield world

    @pytest.mark.parametrize("kind", WorkloadKind)
    async def test_one_goes_and_one_comes(self, world: KubernetesWorld, kind: WorkloadKind) -> None:
        """The source has one replica less, the target one more, whatever they are."""
        world.use(kind)
        world.peer.pods = {"prefill-1": FakePod("10.0.0.1")}
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 2}
        assert await world.actuator(PATIENT).confirm(CONVERSION) is False
        world.peer.settle()
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True

    async def test_what_is_confirmed_can_be_undone(self, world: KubernetesWorld) -> None:
        """Until another one begins: an operator may abort it just when it is done."""
        world.peer.workloads["statefulsets", "prefill"].replicas = 3
        world.url = "http://prefill-2.prefill.engines:8000"
        await world.actuator(PATIENT).act(CONVERSION)
        world.peer.settle()
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True
        await world.actuator(PATIENT).undo(CONVERSION)
        assert world.peer.replicas() == {"prefill": 3, "decode": 1}
        assert (await world.state.read("scalings")).document == b"{}"

    async def test_the_same_conversion_may_come_again(self, world: KubernetesWorld) -> None:
        """What was before the last one is not what was before this one."""
        await world.actuator(PATIENT).act(CONVERSION)
        world.peer.settle()
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True
        world.peer.workloads["statefulsets", "prefill"].replicas = 1
        with pytest.raises(ActuationFailed, match="none to spare"):
            await world.actuator(PATIENT).act(CONVERSION)
        await world.actuator(PATIENT).undo(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 2}
        world.peer.workloads["statefulsets", "prefill"].replicas = 2
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 3}

    async def test_a_flushed_store_knows_nothing(self, world: KubernetesWorld) -> None:
        """Then it is done where every replica is ready, and there is nothing to undo."""
        await world.actuator(PATIENT).act(CONVERSION)
        world.state = MemoryState()
        assert await world.actuator(PATIENT).confirm(CONVERSION) is False
        world.peer.settle()
        assert await world.actuator(PATIENT).confirm(CONVERSION) is True

    async def test_what_its_controller_has_not_seen_is_not_ready(
        self, world: KubernetesWorld
    ) -> None:
        """Enough replicas of a generation before do not count."""
        await world.actuator(PATIENT).act(CONVERSION)
        world.peer.workloads["statefulsets", "decode"].ready = 2
        assert await world.actuator(PATIENT).confirm(CONVERSION) is False

    async def test_conflicts_are_tried_again(self, world: KubernetesWorld) -> None:
        """Who writes meanwhile is not overwritten, and does not stop it."""
        world.peer.conflicts = 2
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 2}
        world.peer.conflicts = 10**6
        with pytest.raises(ActuationFailed, match="StatefulSet decode is changed all the time"):
            await world.actuator(PATIENT).undo(CONVERSION)

    async def test_an_overloaded_server_is_asked_again(self, world: KubernetesWorld) -> None:
        """Also where it may have done it: the version tells."""
        world.peer.failures.extend([429, 503])
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 2}
        world.peer.failures.extend([500] * 3)
        with pytest.raises(ActuationFailed, match=r"\(500\): etcdserver: leader changed"):
            await world.actuator(PATIENT).undo(CONVERSION)

    async def test_who_else_scales_is_told(self, world: KubernetesWorld) -> None:
        """A number that is not ours is left alone."""
        await world.actuator(PATIENT).act(CONVERSION)
        world.peer.workloads["statefulsets", "decode"].replicas = 7
        with pytest.raises(ActuationFailed, match="has 7 replicas, neither 2 nor 1"):
            await world.actuator(PATIENT).undo(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 7}

    async def test_an_act_that_failed_halfway_is_ended_or_undone(
        self, world: KubernetesWorld
    ) -> None:
        """What was before is known from before the first change on, to whoever comes then."""
        for end in (world.actuator(PATIENT).undo, world.actuator(PATIENT).act):
            world.peer.broken.add("decode")
            with pytest.raises(ActuationFailed, match="cannot update scale of StatefulSet decode"):
                await world.actuator(PATIENT).act(CONVERSION)
            assert world.peer.replicas() == {"prefill": 1, "decode": 1}
            world.peer.broken.clear()
            await end(CONVERSION)
            assert sum(world.peer.replicas().values()) == 3
        assert world.peer.replicas() == {"prefill": 1, "decode": 2}

    async def test_a_missing_right_is_told(self, world: KubernetesWorld) -> None:
        """With the server's own words, which name the right."""
        world.peer.forbidden.add(("get", "statefulsets/scale"))
        with pytest.raises(ActuationFailed, match=r"cannot get scale .* \(403\): .*is forbidden"):
            await world.actuator(PATIENT).act(CONVERSION)
        world.peer.token = "another"
        with pytest.raises(ActuationFailed, match=r"does not accept our token \(401\)"):
            await world.actuator(PATIENT).act(CONVERSION)

    async def test_a_renewed_token_is_used(self, world: KubernetesWorld, tmp_path: Path) -> None:
        """Kubernetes writes a new one each hour; one that vanished is told."""
        await world.actuator(PATIENT).act(CONVERSION)
        world.peer.token = "renewed"
        write_account(tmp_path, token="renewed")
        actuator = world.actuator(PATIENT)
        await actuator.undo(CONVERSION)
        (tmp_path / "ca.crt").write_text("no certificate")
        with pytest.raises(ActuationFailed, match=r"account's ca\.crt holds no certificate"):
            await actuator.act(CONVERSION)
        (tmp_path / "token").unlink()
        with pytest.raises(ActuationFailed, match="account's token cannot be read"):
            await actuator.act(CONVERSION)

    async def test_the_server_is_verified(self, world: KubernetesWorld) -> None:
        """A server that our authority does not vouch for gets no token."""
        world.trust = ssl.create_default_context
        with pytest.raises(ActuationFailed, match=r"kubernetes cannot be reached: .*verify failed"):
            await world.actuator(PATIENT).act(CONVERSION)
        assert world.engine.requests == []

    @pytest.mark.parametrize("kind", [WorkloadKind.STATEFUL_SET, WorkloadKind.LEADER_WORKER_SET])
    async def test_only_the_last_ordinal_is_converted(
        self, world: KubernetesWorld, kind: WorkloadKind
    ) -> None:
        """Another pod than the drained one would be removed: refused before anything is done."""
        world.use(kind)
        world.url = "http://prefill-0.prefill.engines:8000"
        with pytest.raises(ActuationFailed, match="removes its pod prefill-1 first"):
            await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.writes() == []

    async def test_the_last_ordinal_is_chosen(self, world: KubernetesWorld) -> None:
        """Of each workload, by number; who is in none is not; of a Deployment anyone is."""

        def instance(host: str, role: Role = Role.PREFILL, cluster: str = "east") -> Instance:
            return Instance(host, cluster, f"http://{host}.engines:8000", role)

        live = [
            instance("prefill-9"),
            instance("prefill-10"),
            instance("prefill-x"),
            instance("decode-0", Role.DECODE),
            instance("other-11"),
            instance("prefill-12", Role.BOTH),
            instance("prefill-13", cluster="north"),
        ]
        chosen = world.actuator(PATIENT).choose("m", live)
        assert [each.name for each in chosen] == ["prefill-10", "decode-0"]
        world.use(WorkloadKind.DEPLOYMENT)
        chosen = world.actuator(PATIENT).choose("m", live[:3])
        assert chosen == live[:3]

    async def test_ordinals_may_begin_elsewhere(self, world: KubernetesWorld) -> None:
        """The last one is counted from the StatefulSet's own start."""
        world.peer.workloads["statefulsets", "prefill"].start = 5
        world.url = "http://prefill-6.prefill.engines:8000"
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 2}

    @pytest.mark.parametrize("host", ["10.0.0.1", "prefill-x7k2p.engines"])
    async def test_of_a_deployment_the_drained_pod_is_cheapest(
        self, world: KubernetesWorld, host: str
    ) -> None:
        """Found by its address or its name; an undo takes the mark away."""
        world.use(WorkloadKind.DEPLOYMENT)
        world.peer.pods = {"prefill-x7k2p": FakePod("10.0.0.1"), "other": FakePod("10.0.0.2")}
        world.url = f"http://{host}:8000"
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.pods["prefill-x7k2p"].annotations == {COST: str(-(2**31))}
        assert world.peer.pods["other"].annotations == {}
        await world.actuator(PATIENT).undo(CONVERSION)
        assert world.peer.pods["prefill-x7k2p"].annotations == {}

    async def test_a_pod_that_is_gone_does_not_matter(self, world: KubernetesWorld) -> None:
        """It was removed, as it should; one that never was is told."""
        world.use(WorkloadKind.DEPLOYMENT)
        world.url = "http://10.0.0.1:8000"
        with pytest.raises(ActuationFailed, match=r"0 pods have the address 10\.0\.0\.1"):
            await world.actuator(PATIENT).act(CONVERSION)
        world.peer.pods = {"prefill-x7k2p": FakePod("10.0.0.1")}
        await world.actuator(PATIENT).act(CONVERSION)
        world.peer.pods = {}
        await world.actuator(PATIENT).act(CONVERSION)
        await world.actuator(PATIENT).undo(CONVERSION)
        assert world.peer.replicas() == {"prefill": 2, "decode": 1}

    async def test_the_last_replica_stays(self, world: KubernetesWorld) -> None:
        """Nobody would prefill."""
        world.peer.workloads["statefulsets", "prefill"].replicas = 1
        world.url = "http://prefill-0.prefill.engines:8000"
        with pytest.raises(ActuationFailed, match="has 1 replica"):
            await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.writes() == []

    async def test_a_models_own_workloads_come_first(self, world: KubernetesWorld) -> None:
        """A pair without a model is for the others; without any it is told."""
        other = Workload(WorkloadKind.STATEFUL_SET, "other")
        world.pairs = {("east", "m"): WorkloadPair(PREFILL, DECODE)} | {
            ("east", None): WorkloadPair(other, other)
        }
        await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.replicas() == {"prefill": 1, "decode": 2}
        world.pairs = {("west", None): WorkloadPair(PREFILL, DECODE)}
        with pytest.raises(ActuationFailed, match="no workloads are configured for m in east"):
            await world.actuator(PATIENT).act(CONVERSION)

    async def test_without_a_record_nothing_is_scaled(self, world: KubernetesWorld) -> None:
        """Where the store is away nobody could tell what was before."""
        world.state = AwayState()
        for call in (world.actuator(PATIENT).act, world.actuator(PATIENT).undo):
            with pytest.raises(ActuationFailed, match="cannot be recorded: the store is away"):
                await call(CONVERSION)
        assert world.peer.writes() == []

    async def test_who_leads_no_more_scales_nothing(self, world: KubernetesWorld) -> None:
        """The record is written under the leader's fence, and first."""
        world.leads = False
        with pytest.raises(ActuationFailed, match="cannot be recorded: this process does not"):
            await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.writes() == []


class AwayState(MemoryState):
    """A store that does not answer."""

    async def read(self, name: str) -> Kept:
        raise StoreAway(f"the store is away: {name}")


# ---------------------------------------------------------------------------- webhook


class WebhookWorld:
    """A receiver, and whoever asks it."""

    secrets = (WEBHOOK_SECRET,)

    def __init__(self, peer: WebhookReceiver) -> None:
        self.peer = peer
        self.engine = peer.engine
        self.secret = WEBHOOK_SECRET
        self.undo_timeout = PATIENT
        self._keys = count()

    def actuator(self, timeout: float) -> WebhookActuator:
        return WebhookActuator(
            Caller("the webhook", timeout),
            Receiver(
                f"{self.engine.url}/convert",
                self.secret.encode(),
                pause=0.01,
                undo_timeout=self.undo_timeout,
            ),
            in_place=True,
            clock=SystemClock(),
            term=lambda: 7,
            make_key=lambda: f"key-{next(self._keys)}",
        )

    def roles(self) -> object:
        return self.peer.role

    def hold_back(self) -> None:
        self.peer.working = True

    def finish(self) -> None:
        self.peer.working = False

    def refuse(self, reason: str) -> None:
        self.peer.refusal = reason


class TestWebhookActuator(ActuatorSuite):
    """Somebody else who is asked."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[WebhookWorld]:
        peer = WebhookReceiver()
        async with peer.engine:
            yield WebhookWorld(peer)

    async def test_the_receiver_is_told_what_and_for_whom(self, world: WebhookWorld) -> None:
        """The conversion, the phase, the leader's number and a key."""
        await world.actuator(PATIENT).act(CONVERSION)
        await world.actuator(PATIENT).confirm(CONVERSION)
        await world.actuator(PATIENT).undo(CONVERSION)
        sent = [each.json() for each in world.engine.requests]
        assert [each["phase"] for each in sent] == ["act", "confirm", "undo"]
        assert sent[0] == {
            "conversion": {
                "model": "m",
                "cluster": "east",
                "instance": "p1",
                "source": "prefill",
                "target": "decode",
                "in_place": True,
            },
            "phase": "act",
            "term": 7,
            "idempotency_key": "key-0",
        }
        assert len({each["idempotency_key"] for each in sent}) == 3

    async def test_attempts_of_a_call_carry_one_key(self, world: WebhookWorld) -> None:
        """So that a receiver whose answer was lost does it once; a confirm is not repeated."""
        world.peer.failures.extend([500, 503])
        await world.actuator(PATIENT).act(CONVERSION)
        assert len({each.json()["idempotency_key"] for each in world.engine.requests}) == 1
        assert len(world.engine.requests) == 3
        world.peer.failures.append(500)
        assert await world.actuator(PATIENT).confirm(CONVERSION) is False
        assert len(world.engine.requests) == 4

    async def test_a_wrong_secret_is_told(self, world: WebhookWorld) -> None:
        """The receiver refuses it, and nothing is done; the secret is in no repr either."""
        world.secret = "another"
        with pytest.raises(ActuationFailed, match=r"does not accept our signature \(401\)"):
            await world.actuator(PATIENT).act(CONVERSION)
        assert world.peer.switched == 0
        assert "hidden" not in repr(Receiver("http://x", b"hidden"))

    async def test_a_confirm_may_be_refused(self, world: WebhookWorld) -> None:
        """It never will be served: nobody polls on."""
        world.peer.refusal = "the node is gone"
        with pytest.raises(ActuationFailed, match="refuses: the node is gone"):
            await world.actuator(PATIENT).confirm(CONVERSION)

    async def test_an_undo_is_asked_until_it_is_done(self, world: WebhookWorld) -> None:
        """202 is not the end of it; what does not end is told."""
        world.engine.then(*[json_answer({}, 202)] * 3)
        await world.actuator(PATIENT).undo(CONVERSION)
        assert len(world.engine.requests) == 4
        assert len({each.json()["idempotency_key"] for each in world.engine.requests}) == 1
        world.peer.working = True
        world.undo_timeout = 0.05
        with pytest.raises(ActuationFailed, match=r"has not undone it within 0\.05 s"):
            await world.actuator(PATIENT).undo(CONVERSION)


def test_the_signature_is_a_known_one() -> None:
    """Computed with openssl: `printf %s '1700000000.{"a":1}' | openssl dgst -sha256 -hmac k`."""
    signed = sign(b"k", b'{"a":1}', 1700000000)
    assert (
        signed == "t=1700000000,v1=1b6ad1bc9bf48c52ce01939866d5877c6cc4e87ddad27e16673cb8c4964394a3"
    )
