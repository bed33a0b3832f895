"""Laws of dividing slots, over any demands."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from router.control.shares import Claim, aim, divide, is_contended

demands = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 40), min_size=1)
totals = st.integers(0, 60)
turns = st.integers(0, 1000)


@given(totals, demands, turns)
def test_a_division_is_whole_and_max_min_fair(
    total: int, wanted: Mapping[str, int], turn: int
) -> None:
    """All that can be used is given; who gets less than he wants gets no less than anybody."""
    shares = divide(total, wanted, turn)
    assert sum(shares.values()) == min(total, sum(wanted.values()))
    assert all(0 <= shares[name] <= wanted[name] for name in wanted)
    for name, share in shares.items():
        if share < wanted[name]:
            assert share >= max(shares.values()) - 1


@given(demands, turns)
def test_what_does_not_divide_goes_round(wanted: Mapping[str, int], turn: int) -> None:
    """Of those who want the one slot each has it in turn."""
    hungry = {name for name, demand in wanted.items() if demand}
    had = [
        name
        for each in range(turn, turn + len(hungry))
        for name, share in divide(1, wanted, each).items()
        if share
    ]
    assert sorted(had) == sorted(hungry)


@given(totals, demands, turns)
def test_aims_of_all_fit_into_what_there_is(
    total: int, wanted: Mapping[str, int], turn: int
) -> None:
    """Whether contended or not, if all reach what they strive for nothing is given twice."""
    for share in (0, 1000):
        claims = {name: Claim(min(share, each), each) for name, each in wanted.items()}
        aims = {
            name: aim(
                total,
                name,
                mine,
                {other: claim for other, claim in claims.items() if other != name},
                turn,
            )
            for name, mine in claims.items()
        }
        if is_contended(total, Claim(), claims):
            assert sum(aims.values()) <= total
        else:
            assert all(aims[name] >= wanted[name] for name in wanted)
            assert sum(aims.values()) <= total // 2 + sum(wanted.values())
