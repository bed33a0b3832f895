"""What a leader solved, as it is kept for everybody: t by model and PD cluster, and for what.

One document, like the operators' orders. It is written whole, by leaders alone, and says by whom,
in which term and under which number of its own: so nobody takes an older one for news, whatever a
store has lost. Inputs are in it, so that another process can go on where this one ended, and tell
what the stages bear.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Struct

from router.control.thresholds import InForce, Solved, Today
from router.domain.topology import ClusterKind
from router.domain.units import BytesPerSecond, Seconds, Tokens
from router.service.lengths import KeptLengths
from router.service.models import ServedModel
from router.throughput.planner import tabulate
from router.throughput.stages import Deployment, PdPool, RemotePool


class KeptPool(Struct, frozen=True):
    """A PrfaaS pool as it was solved for."""

    name: str
    instances: int
    egress: float
    share: float


class KeptSolution(Struct, frozen=True):
    """What holds for a model in a PD cluster, since when, and what was solved last."""

    model: str
    pd: str
    tokens: Tokens
    changed_at: datetime
    solved_tokens: Tokens
    rate: float
    local_rate: float
    pools: tuple[KeptPool, ...]
    prefill: int
    decode: int


class KeptSolutions(Struct, frozen=True):
    """All that is solved. `lengths` are those that each model was solved for last."""

    term: int = 0
    number: int = 0
    by: str = ""
    at: datetime | None = None
    lengths: dict[str, KeptLengths] = {}
    solutions: tuple[KeptSolution, ...] = ()

    @property
    def order(self) -> tuple[int, int]:
        """What rises with each: documents of an older term are older, however many they were."""
        return self.term, self.number

    def of(self, model: str, pd: str) -> KeptSolution | None:
        """Return one of them."""
        found = (each for each in self.solutions if (each.model, each.pd) == (model, pd))
        return next(found, None)


_DECODER = msgspec.json.Decoder(KeptSolutions)


def encode_solutions(solutions: KeptSolutions) -> bytes:
    """Return them as they are kept."""
    return msgspec.json.encode(solutions)


def decode_solutions(document: bytes) -> KeptSolutions:
    """Return them as they were kept. Raises msgspec.DecodeError for what is no such document."""
    return _DECODER.decode(document)


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant by both clocks: what is kept is dated by the wall, and waits by the other."""

    wall: datetime
    monotonic: Seconds

    def seconds_at(self, wall: datetime) -> Seconds:
        """Return when that was; what lies ahead, since walls differ, is now."""
        return self.monotonic - max(0.0, (self.wall - wall).total_seconds())


def keep_solution(
    model: str,
    pd: str,
    in_force: InForce,
    before: InForce | None,
    kept: KeptSolution | None,
    now: Moment,
) -> KeptSolution:
    """Return what is in force as it is kept; `kept` is what was kept of `before`."""
    same = before is not None and kept is not None and before.changed_at == in_force.changed_at
    today = in_force.solved.today.deployment
    return KeptSolution(
        model=model,
        pd=pd,
        tokens=in_force.tokens,
        changed_at=kept.changed_at if same and kept is not None else now.wall,
        solved_tokens=in_force.solved.tokens,
        rate=in_force.solved.rate,
        local_rate=in_force.solved.local_rate,
        pools=tuple(
            KeptPool(pool.name, pool.instances, pool.egress, pool.share) for pool in today.remotes
        ),
        prefill=today.pds[0].prefill,
        decode=today.pds[0].decode,
    )


def restore_solution(
    kept: KeptSolution, lengths: KeptLengths, model: ServedModel, now: Moment
) -> InForce | None:
    """Return what was kept as it was in force, None where the model has no profiles any more.

    Raises OutOfRange where its profiles may not be extrapolated to these lengths, WorkloadError
    where there are none. Cost: some milliseconds.
    """
    near = model.profiles.get(ClusterKind.PD)
    far = model.profiles.get(ClusterKind.PRFAAS)
    if near is None or far is None:
        return None
    remotes = tuple(
        RemotePool(pool.name, far, pool.instances, BytesPerSecond(pool.egress), pool.share)
        for pool in kept.pools
    )
    pd = PdPool(kept.pd, near, kept.prefill, kept.decode, model.decode_rules)
    today = Today(Deployment(remotes, (pd,)), lengths.workload())
    table = tabulate(today.deployment, today.workload)
    solved = Solved(kept.solved_tokens, kept.rate, kept.local_rate, today, table)
    return InForce(kept.tokens, now.seconds_at(kept.changed_at), solved)
