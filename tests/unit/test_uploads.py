"""Forms on their way through: their model is found, and every byte goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.domain.errors import BadRequest, BodyTooLarge, ClientGone
from router.gateway.requests import Message, Receive
from router.gateway.uploads import BodyStream

FILES = {"file": ("model.wav", b"\r\n\r\nname=model\r\n" * 3, "audio/wav")}
FORM = httpx.Request(
    "POST", "http://x", data={"language": "en", "model": "tiny"}, files=FILES
).read()


def receiving(pieces: Sequence[bytes], *, leaves: bool = False) -> Receive:
    """What a server gives of a body in these pieces."""
    left = [
        {"type": "http.request", "body": piece, "more_body": leaves or place + 1 < len(pieces)}
        for place, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        return left.pop(0) if left else {"type": "http.disconnect"}

    return receive


def stream_of(receive: Receive, limit: int = 100_000, **headers: str) -> BodyStream:
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    return BodyStream({"headers": fields}, receive, limit)


@given(st.lists(st.integers(0, len(FORM)), max_size=6))
async def test_the_model_is_found_however_the_form_is_cut(cuts: list[int]) -> None:
    """The model is read from any pieces, and what was read for it goes on with the rest."""
    places = [0, *sorted(cuts), len(FORM)]
    upload = stream_of(receiving([FORM[start:end] for start, end in pairwise(places)]))
    assert await upload.peek_model() == "tiny"
    assert not upload.started
    assert b"".join([piece async for piece in upload.pieces()]) == FORM
    assert upload.started


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="model"',
        b"content-disposition: form-data; name=model",
        b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain',
    ],
)
async def test_spellings_of_a_field(head: bytes) -> None:
    """Case, quotes and further header fields of a part do not matter."""
    form = b"--b\r\n" + head + b"\r\n\r\norg/tiny\r\n--b--\r\n"
    assert await stream_of(receiving([form])).peek_model() == "org/tiny"


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b'--b\r\nContent-Disposition: form-data; name="models"\r\n\r\ntiny\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="x"; filename="model"\r\n\r\nt\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\xfe\r\n--b--\r\n',
        b"\r\n" * 40_000,
    ],
    ids=["empty", "models", "filename", "no text", "endless"],
)
async def test_forms_without_a_model(form: bytes) -> None:
    """A form that does not tell its model in its beginning is refused, naming the field."""
    with pytest.raises(BadRequest) as refused:
        await stream_of(receiving([form])).peek_model()
    assert refused.value.param == "model"


async def test_bounds_and_leaving() -> None:
    """Too long by its word, too long in fact, and a client that leaves are told apart."""
    with pytest.raises(BodyTooLarge):
        stream_of(receiving([]), limit=10, **{"content-length": "11"})
    upload = stream_of(receiving([b"a" * 6, b"a" * 6]), limit=10)
    with pytest.raises(BodyTooLarge):
        _ = [piece async for piece in upload.pieces()]
    upload = stream_of(receiving([b"a"], leaves=True))
    with pytest.raises(ClientGone):
        _ = [piece async for piece in upload.pieces()]


@given(st.lists(st.integers(0, len(FORM)), max_size=6), st.integers(0, 8))
async def test_a_watch_costs_the_body_nothing(cuts: list[int], turns: int) -> None:
    """However far the watch has read ahead, every byte goes on, and then it sees the disconnect."""
    places = [0, *sorted(cuts), len(FORM)]
    calm = receiving([FORM[start:end] for start, end in pairwise(places)])

    async def receive() -> Message:
        await asyncio.sleep(0)
        return await calm()

    upload = stream_of(receive)
    watch = asyncio.create_task(upload.receive())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert b"".join([piece async for piece in upload.pieces()]) == FORM
    assert (await watch)["type"] == "http.disconnect"


async def test_a_watch_notices_who_leaves_before_the_body_is_on_its_way() -> None:
    """While a request waits for its turn, a client that leaves is noticed."""
    upload = stream_of(receiving([b"a" * 100], leaves=True))
    assert (await upload.receive())["type"] == "http.disconnect"


async def test_what_a_watch_finds_too_long_is_told_to_the_sender() -> None:
    """A body that is over its limit while it waits is 413 when it goes, not a client that left."""
    upload = stream_of(receiving([b"a" * 6, b"a" * 6]), limit=10)
    watch = asyncio.create_task(upload.receive())
    await asyncio.sleep(0)
    with pytest.raises(BodyTooLarge):
        _ = [piece async for piece in upload.pieces()]
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
