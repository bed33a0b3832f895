"""The access log's lines: gathered, in order, written once."""

from __future__ import annotations

import asyncio
import re

from router.adapters.access_lines import AccessLines


async def test_lines_are_written_together_and_in_order() -> None:
    """Lines of one moment leave in one write, each with the time at which it came."""
    written: list[bytes] = []
    done = asyncio.Event()

    def write(text: bytes) -> None:
        written.append(text)
        done.set()

    moments = iter([1000.0, 1000.25, 1001.5])
    lines = AccessLines(write, wall=lambda: next(moments))
    for word in (b"one", b"two", b"three"):
        lines.write(b'{"word":"%s"}' % word)
    assert not written
    await asyncio.wait_for(done.wait(), 30)
    assert len(written) == 1
    form = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,(\d{3}) INFO prfaas\.access \{\"word\":\"(\w+)\"\}\n"
    assert re.findall(form, written[0]) == [
        (b"000", b"one"),
        (b"250", b"two"),
        (b"500", b"three"),
    ]


async def test_many_lines_do_not_wait() -> None:
    """What is gathered is bounded: a full buffer is written at once, and nothing twice."""
    written: list[bytes] = []
    lines = AccessLines(written.append, wall=lambda: 0.0)
    for number in range(700):
        lines.write(b"%d" % number)
    assert written
    lines.flush()
    lines.flush()
    numbers = [line.rsplit(b" ")[-1] for line in b"".join(written).splitlines()]
    assert numbers == [b"%d" % number for number in range(700)]
