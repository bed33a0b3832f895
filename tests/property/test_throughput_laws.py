"""Laws of the throughput model, over generated workloads, profiles and deployments."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.domain.units import from_gbps
from router.throughput.curves import Curve, Interpolation
from router.throughput.demands import Form
from router.throughput.planner import (
    best_allocation,
    list_allocations,
    solve_threshold,
    solve_whole_threshold,
    sweep_thresholds,
    tabulate,
)
from router.throughput.profiles import Profile, ProfilePoint, ProfileSource
from router.throughput.stages import DecodeRules, Deployment, PdPool, RemotePool, Stage, evaluate
from router.throughput.workloads import Atoms, Histogram, TruncatedLogNormal, Workload

LENGTHS = (1000, 8000, 32_000, 128_000)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    steps = st.lists(st.floats(0.01, 10), min_size=4, max_size=4)
    seconds, sizes = draw(steps), draw(steps)
    points = [
        ProfilePoint(tokens, round(1e8 * sum(sizes[: i + 1])), sum(seconds[: i + 1]))
        for i, tokens in enumerate(LENGTHS)
    ]
    interpolation = draw(st.sampled_from(list(Interpolation)))
    return Profile.from_points(points, source=ProfileSource.MODELLED, interpolation=interpolation)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    kind = draw(st.sampled_from(["atoms", "histogram", "lognormal"]))
    weights = st.floats(0.01, 10)
    if kind == "atoms":
        lengths = st.integers(1, 200_000)
        return Atoms.of(draw(st.dictionaries(lengths, weights, min_size=1, max_size=8)))
    if kind == "histogram":
        bounds = sorted(draw(st.sets(st.integers(0, 200_000), min_size=2, max_size=8)))
        return Histogram.of(bounds, [draw(weights) for _ in bounds[1:]])
    return TruncatedLogNormal(draw(st.floats(7, 11)), draw(st.floats(0.3, 2)), 64, 200_000)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    remotes = tuple(
        RemotePool(
            f"prfaas-{i}",
            draw(profiles()),
            draw(st.integers(0, 8)),
            from_gbps(draw(st.floats(0, 200))),
        )
        for i in range(draw(st.integers(1, 2)))
    )
    rules = DecodeRules(20, 0.025, 1024)
    pd = PdPool("pd", draw(profiles()), draw(st.integers(0, 4)), draw(st.integers(0, 4)), rules)
    return Deployment(remotes, (pd,), overlap=draw(st.booleans()))


@settings(max_examples=60, deadline=None)
@given(workloads(), deployments())
def test_the_exact_ceilings_are_monotone(workload: Workload, deployment: Deployment) -> None:
    """As t grows the remote ceiling never falls and the local one never rises."""
    table = tabulate(deployment, workload)
    thresholds = [1, 500, 2000, 8000, 20_000, 50_000, 100_000, 150_000, 200_000]
    points = sweep_thresholds(deployment, table, thresholds)
    for lower, higher in pairwise(points):
        remote = [point.ceilings[Stage.PRFAAS] for point in (lower, higher)]
        local = [point.ceilings[Stage.PD_P] for point in (lower, higher)]
        assert remote[1] >= remote[0] * (1 - 1e-9)
        assert local[1] <= local[0] * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(workloads(), deployments(), st.sampled_from(list(Form)))
def test_no_share_beats_the_solver(workload: Workload, deployment: Deployment, form: Form) -> None:
    """Of 65 other ways to split the requests none sustains more than the solver's.

    In the representative form, which may peak between two slices, only to half a percent.
    """
    table = tabulate(deployment, workload)
    solved = solve_threshold(deployment, table, form)
    slack = 1e-6 if form is Form.EXACT else 5e-3
    for i in range(65):
        point = evaluate(deployment, table.at_share(i / 64, form))
        assert point.rate <= solved.rate * (1 + slack) + 1e-12


@settings(max_examples=60, deadline=None)
@given(workloads(), deployments())
def test_whole_tokens_never_do_better(workload: Workload, deployment: Deployment) -> None:
    """A threshold that the router can act on sustains no more than the balanced split."""
    table = tabulate(deployment, workload)
    solved = solve_threshold(deployment, table)
    whole = solve_whole_threshold(deployment, table, bounds=(512, 131_072))
    assert whole.rate <= solved.rate * (1 + 1e-6) + 1e-12
    assert whole.split.threshold == int(whole.split.threshold)
    assert 512 <= whole.split.threshold <= 131_072
    assert whole.split.tied_share == 0


@settings(max_examples=40, deadline=None)
@given(workloads(), deployments())
def test_more_of_anything_is_never_worse(workload: Workload, deployment: Deployment) -> None:
    """Twice the bandwidth, or one more PD instance, sustains at least as much."""
    table = tabulate(deployment, workload)
    before = best_allocation(list_allocations(deployment, table)).solution.rate
    wider = deployment.with_egress(2)
    assert solve_threshold(wider, table).rate >= solve_threshold(deployment, table).rate * (
        1 - 1e-6
    )
    pd = deployment.pds[0]
    larger = Deployment(
        deployment.remotes,
        (PdPool(pd.name, pd.profile, pd.prefill + 1, pd.decode, pd.rules),),
        deployment.overlap,
    )
    after = best_allocation(list_allocations(larger, table)).solution.rate
    assert after >= before * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(workloads(), deployments(), st.floats(0, 1))
def test_the_link_never_carries_more_than_it_can(
    workload: Workload, deployment: Deployment, stay: float
) -> None:
    """At Lambda_max the egress of all pools is within B_out, and Lambda is the least ceiling."""
    point = evaluate(deployment, tabulate(deployment, workload).at_share(stay))
    assert point.egress <= deployment.egress * (1 + 1e-9)
    assert point.rate == min(point.ceilings.values())
    assert point.ceilings[point.binding] == point.rate


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 100), min_size=3, max_size=8),
    st.sampled_from(list(Interpolation)),
    st.floats(0, 1),
)
def test_monotone_points_make_a_monotone_curve(
    steps: list[float], interpolation: Interpolation, at: float
) -> None:
    """Between two points a curve stays between their values, and passes through them."""
    xs = [1000.0 * (i + 1) for i in range(len(steps))]
    ys = [sum(steps[: i + 1]) for i in range(len(steps))]
    curve = Curve.through(xs, ys, interpolation=interpolation)
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        assert curve(x0) == pytest.approx(y0)
        assert y0 - 1e-9 <= curve(x0 + at * (x1 - x0)) <= y1 + 1e-9
