"""The soak's books: whatever does not add up is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.fakes.systems import Metrics
from tests.soak.accounts import Books, count_codes, read_log
from tests.soak.traffic import Asking
from tests.soak.visits import Ending, Manner, Result, Visit
from tests.soak.vitals import Vitals, growth_bytes

Logged = dict[str, list[int]]


def result(
    number: int, status: int | None, ending: Ending = Ending.WHOLE, *, sent: bool = True
) -> Result:
    visit = Visit(
        f"r{number}", "chat", "/", b"", None, streams=True, manner=Manner.STAY, patience=1
    )
    return Result(visit, sent, status, ending)


RESULTS = [result(1, 200), result(2, None, Ending.LEFT), result(3, None, Ending.LEFT, sent=False)]
LOGGED: Logged = {"r1": [200], "r2": [499]}
COUNTED = {200: 1, 499: 1}


def faults(
    results: Sequence[Result] = RESULTS,
    logged: Mapping[str, Sequence[int]] = LOGGED,
    counted: Mapping[int, int] = COUNTED,
) -> list[str]:
    books = Books()
    books.compare(results, logged, counted)
    return books.faults


def test_books_that_agree_have_no_fault() -> None:
    """One answered, one abandoned, one that never came."""
    assert faults() == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda: faults(logged={"r1": [200]}, counted={200: 1}), "not in the log"),
        (lambda: faults(logged=LOGGED | {"r1": [200, 200]}, counted={200: 2, 499: 1}), "twice"),
        (lambda: faults(logged=LOGGED | {"r1": [502]}, counted={502: 1, 499: 1}), "logged 502"),
        (lambda: faults(logged=LOGGED | {"r9": [200]}, counted={200: 2, 499: 1}), "nobody sent"),
        (lambda: faults(counted={200: 2, 499: 1}), "counters differ"),
        (lambda: faults([result(1, 500)], {"r1": [500]}, {500: 1}), "unexpected statuses"),
        (lambda: faults([result(1, 200, Ending.BARE)], {"r1": [200]}, {200: 1}), "ended bare"),
        (lambda: faults([result(1, 200, Ending.HUNG)], {"r1": [200]}, {200: 1}), "ended hung"),
    ],
)
def test_each_disagreement_is_told(changed: Callable[[], list[str]], told: str) -> None:
    """Missing, doubled, other than told, of nobody; and answers that end as none may."""
    assert any(told in fault for fault in changed())


def test_what_is_held_at_rest_is_told() -> None:
    """Slots, bytes, gauges and engines: each by itself."""
    books = Books()
    idle = {"name": "d0", "inflight": 0, "decode_slots_held": 1, "prefills_inflight": 0}
    link = {"name": "west-east", "inflight_bytes": 7}
    text = '# TYPE prfaas_queue_depth gauge\nprfaas_queue_depth{tenant="a"} 2\n'
    books.check_rest({"instances": [idle], "links": [link]}, Metrics(text))
    books.check_engine("p0", {"running": 0, "waiting": 0, "deferred": 0, "handoffs": 1})
    books.check_output(["Traceback (most recent call last):"])
    assert len(books.faults) == 5


def test_log_lines_and_counters_are_read() -> None:
    """By request id, and by status."""
    line = {"request_id": "r1", "status": 200}
    assert read_log(["x", f"INFO prfaas.access {json.dumps(line)}"]) == {"r1": [200]}
    text = (
        "# TYPE prfaas_requests counter\n"
        'prfaas_requests_total{route="local",reason="a",code="200"} 2\n'
        'prfaas_requests_total{route="prfaas",reason="b",code="200"} 3\n'
    )
    assert count_codes(Metrics(text)) == {200: 5}


def test_growth_is_of_the_second_half() -> None:
    """Warm-up is no growth; a slope after it is."""
    looks = [Vitals(at, min(at, 50) * 10, 1, 1) for at in range(100)]
    assert growth_bytes(looks) == 0
    assert growth_bytes([Vitals(at, at * 10, 1, 1) for at in range(100)]) == 400


def test_the_same_seed_asks_the_same() -> None:
    """Visits are drawn by chance that is an argument."""
    first, again, other = (Asking(seed) for seed in (1, 1, 2))
    assert [first.next() for _ in range(50)] == [again.next() for _ in range(50)]
    assert first.next().body != other.next().body
