"""The client's side of the wire: what is slow, endless, ambiguous or too much."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from router.domain.units import Seconds
from tests.fakes.raw_clients import RawCall, calling
from tests.fakes.scripted_engine import Hold, Until, stream
from tests.fakes.systems import MODEL, System, scripted_system

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "a"}).encode()
QUICK = {"head_seconds": 0.3, "body_seconds": 0.3}
SLOW = {"probe": {"interval_seconds": 30}}


def request(
    body: bytes = BODY,
    *fields: str,
    path: str = COMPLETIONS,
    method: str = "POST",
    length: bool = True,
) -> bytes:
    """Return the bytes of a request; `fields` are further header lines."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", *fields]
    if length:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def exchange(url: str, *parts: bytes, within: Seconds = 60.0) -> bytes:
    """Send bytes and return everything that comes until the gateway closes."""
    async with calling(url) as client:
        for part in parts:
            await client.send(part)
        return await client.read_rest(within)


def told(answer: bytes) -> tuple[int, dict[str, object]]:
    """Return the status and the error of a last answer, which says that it is the last."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error: dict[str, object] = json.loads(body)["error"]
    return int(head.split()[1]), error


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """One gateway over one engine, for requests that leave nothing behind."""
    directory = tmp_path_factory.mktemp("plain")
    async with scripted_system(directory, names="b0", upstream=SLOW) as system:
        yield system


# -- other protocols


@pytest.mark.parametrize("wish", ["h2c", "websocket", "TLS/1.3, foo/2"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.asyncio(loop_scope="module")
async def test_upgrades_are_ignored(plain: System, wish: str, *, chunked: bool) -> None:
    """A wish for another protocol costs a request nothing: its body is read, however it comes."""
    fields = ["connection: Upgrade, HTTP2-Settings", f"upgrade: {wish}", "http2-settings: AAMAAA"]
    if chunked:
        framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
        raw = request(framed, "transfer-encoding: chunked", *fields, length=False)
    else:
        raw = request(BODY, *fields)
    head = raw.index(b"\r\n\r\n") + 4
    for parts in ([raw], [raw[:head], raw[head:]], [raw[:20], raw[20:-3], raw[-3:]]):
        async with calling(plain.url) as client:
            for part in parts:
                await client.send(part)
                await asyncio.sleep(0.01)
            status, headers = await client.read_head()
            assert status == 200
            await client.reader.readexactly(int(headers["content-length"]))
            await client.send(request())  # and the connection goes on
            assert (await client.read_head())[0] == 200
        assert plain.engine("b0").calls[-2].body == BODY


# -- what could be read in two ways


@pytest.mark.parametrize(
    "head",
    [
        "content-length: 2\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 2",
        "content-length: 2\r\ncontent-length: 2",
        "content-length: 2\r\ncontent-length: 3",
        "content-length: 2, 2",
        "content-length: +2",
        "content-length: 0x2",
        "content-length: -1",
        "content-length: 99999999999999999999999",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: chunked, gzip",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "x-folded: a\r\n b\r\ncontent-length: 2",
        "x-spaced : a\r\ncontent-length: 2",
        "x-nul: a\x00b\r\ncontent-length: 2",
        "host: another\r\ncontent-length: 2",
        "no colon\r\ncontent-length: 2",
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_ambiguous_heads_are_refused(plain: System, head: str) -> None:
    """What a proxy before us could read differently is 400 in our shape, and the end."""
    calls = len(plain.engine("b0").calls)
    raw = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: gateway\r\n{head}\r\n\r\n".encode("latin-1")
    status, error = told(await exchange(plain.url, raw + b"{}" + request()))
    assert (status, error["code"]) == (400, "invalid_http")
    assert len(plain.engine("b0").calls) == calls


@pytest.mark.parametrize(
    "line",
    [
        b"CONNECT engine:80 HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"GET /health HTTP/1.2",
        b"GET /health",
        b"BREW /pot HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET / HTTP/1.1\nhost: a",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_other_protocols_are_refused(plain: System, line: bytes) -> None:
    """What is no HTTP/1 request is 400 in our shape."""
    answer = await exchange(plain.url, line + b"\r\nhost: gateway\r\n\r\n")
    assert told(answer)[0] == 400


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_names_its_host(plain: System) -> None:
    """HTTP/1.1 without Host is refused, HTTP/1.0 is not; a target may be absolute."""
    assert told(await exchange(plain.url, b"GET /health HTTP/1.1\r\n\r\n"))[0] == 400
    assert b" 200 OK" in await exchange(plain.url, b"GET /health HTTP/1.0\r\n\r\n")
    absolute = b"GET http://gateway/health HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"
    assert b" 200 OK" in await exchange(plain.url, absolute)


@pytest.mark.asyncio(loop_scope="module")
async def test_r25_trailers_are_no_fields(plain: System) -> None:
    """What comes after a chunked body cannot set a header of its request."""
    body = b"%x\r\n%s\r\n0\r\nx-request-id: trailer\r\nx-prfaas-home: west\r\n\r\n"
    raw = request(body % (len(BODY), BODY), "transfer-encoding: chunked", length=False)
    async with calling(plain.url) as client:
        await client.send(raw)
        status, headers = await client.read_head()
    assert status == 200
    assert headers["x-request-id"] != "trailer"
    names = {name for name, _ in plain.engine("b0").calls[-1].headers}
    assert b"x-prfaas-home" not in names


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "//v1/models", 404),
        ("GET", "/v1//models", 404),
        ("GET", "/v1/../metrics", 404),
        ("GET", "/v1/%2e%2e/metrics", 404),
        ("GET", "/v1/models/../../metrics", 404),
        ("GET", "/v1/models/%00", 404),
        ("GET", "/v1/responses/..%2f..%2fmetrics", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/V1/chat/completions", 404),
        ("GET", "/%68ealth", 200),
        ("GET", "/v1/mod%65ls?x=%zz", 200),
        ("HEAD", "/health", 200),
        ("HEAD", "/v1/models", 200),
        ("HEAD", CHAT, 405),
        ("OPTIONS", CHAT, 405),
        ("OPTIONS", "*", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/chat%2Fcompletions", 400),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_paths_are_what_they_say(plain: System, method: str, path: str, status: int) -> None:
    """A path is decoded once and compared whole: no way round leads to another room."""
    raw = request(b"", "connection: close", method=method, path=path)
    answer = await exchange(plain.url, raw)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert (body == b"") == (method == "HEAD")


# -- JSON that readers differ about


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model":"tiny","prompt":[1180591620717411303424]}',
        b'{"model":"tiny","prompt":[-1]}',
        b'{"model":"tiny","prompt":""}',
        b'{"model":"tiny","prompt":[[]]}',
        b'{"model":"no","model":"tiny","prompt":"a"}',
        b'{"model":"tiny","prompt":"a\\u0000b"}',
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_engines_judge_reaches_them(plain: System, sent: bytes) -> None:
    """Odd values that are JSON are the engine's to judge; of twins the last counts."""
    answer = await plain.client.post(COMPLETIONS, content=sent)
    assert answer.status_code == 200
    assert plain.engine("b0").calls[-1].body == sent


@pytest.mark.asyncio(loop_scope="module")
async def test_a_byte_order_mark_is_left_out(plain: System) -> None:
    """A mark before the JSON, as some editors write it, is no fault: vLLM takes it too."""
    answer = await plain.client.post(COMPLETIONS, content=b"\xef\xbb\xbf" + BODY)
    assert answer.status_code == 200
    assert plain.engine("b0").calls[-1].body == BODY


@pytest.mark.parametrize(
    "sent",
    [
        BODY + b"\x00",
        BODY + b" {}",
        BODY[:-1] + b',"x":NaN}',
        BODY[:-1] + b',"x":01}',
        BODY[:-1] + b',"user":"\\ud800"}',
        BODY[:-1] + b',"x":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        gzip.compress(BODY),
        BODY.decode().encode("utf-16"),
    ],
    ids=["nul", "two", "nan", "octal", "surrogate", "deep", "gzip", "utf-16"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_no_json_reaches_nobody(plain: System, sent: bytes) -> None:
    """What is not JSON, or is packed, is 400 in one line and no call."""
    calls = len(plain.engine("b0").calls)
    answer = await plain.client.post(COMPLETIONS, content=sent)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert "\n" not in answer.json()["error"]["message"]
    assert len(plain.engine("b0").calls) == calls


# -- what comes late


async def test_a_head_that_never_ends(tmp_path: Path) -> None:
    """A head in pieces gets its time and no more, however often another piece comes."""
    async with scripted_system(tmp_path, names="b0", server={"timeouts": QUICK}) as system:
        async with calling(system.url) as client:
            await client.send(b"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\n")
            rest = asyncio.create_task(client.read_rest())
            while not rest.done():
                client.writer.write(b"x-more: 1\r\n")
                await asyncio.sleep(0.05)
            status, error = told(await rest)
        assert (status, error["type"]) == (408, "timeout_error")
        assert await exchange(system.url) == b""  # who says nothing is told nothing
        assert await exchange(system.url, b"\r\n\r\n") == b""
        metrics = await system.metrics()
        assert metrics.total("refused_connections_total") == 1
        assert metrics.total("refused_connections_total", cause="too_slow") == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, []),
        ("/v1/messages", []),
        ("/v1/embeddings", ["content-type: multipart/form-data; boundary=x"]),
        ("/admin/v1/decisions:explain", ["content-type: application/json"]),
    ],
)
async def test_a_body_that_stops_is_408(tmp_path: Path, path: str, fields: list[str]) -> None:
    """Half a body is told to be late in the API's own shape, and its connection ends."""
    async with scripted_system(tmp_path, names="b0", server={"timeouts": QUICK}) as system:
        raw = request(b'{"model": "tiny"' + b" " * 84, *fields, path=path)
        answer = await exchange(system.url, raw[:-60])
        status, error = told(answer)
        assert (status, error["type"]) == (408, "timeout_error")
        assert (b'{"type":"error"' in answer) == (path == "/v1/messages")
        if not path.startswith("/admin"):
            await system.counted("requests_total", code="408")
        await until_empty(system)


async def test_a_body_is_not_late_while_we_do_not_read(tmp_path: Path) -> None:
    """An upload that its engine takes slowly is cut by nobody."""
    gate = asyncio.Event()
    quick = {**QUICK, "body_seconds": 0.3}
    async with scripted_system(tmp_path, names="b0", server={"timeouts": quick}) as system:
        engine = system.engine("b0")
        engine.on("/v1/embeddings", [Until(gate)])
        form = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\ntiny\r\n'
        async with calling(system.url) as client:
            raw = request(
                form + b"x" * 500_000,
                "content-type: multipart/form-data; boundary=x",
                path="/v1/embeddings",
            )
            await client.send(raw)
            await engine.received(1)
            with pytest.raises(TimeoutError):
                await client.read_head(1.0)
            gate.set()


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    """A kept connection may wait for its next request for so long and no longer."""
    timeouts = {"idle_seconds": 0.3}
    async with (
        scripted_system(tmp_path, names="b0", server={"timeouts": timeouts}) as system,
        calling(system.url) as client,
    ):
        for _ in range(3):
            await client.send(request())
            _, headers = await client.read_head()
            await client.reader.readexactly(int(headers["content-length"]))
            await asyncio.sleep(0.1)
        assert await client.read_rest() == b""


async def test_a_long_answer_is_no_idle_connection(tmp_path: Path) -> None:
    """However short the times for clients are, they do not run while the gateway works."""
    times = {"head_seconds": 0.1, "body_seconds": 0.1, "idle_seconds": 0.1, "stall_seconds": 0.1}
    gate = asyncio.Event()
    async with scripted_system(tmp_path, names="b0", server={"timeouts": times}) as system:
        system.engine("b0").then([Until(gate), *stream(b"data: [DONE]\n\n")])
        async with calling(system.url) as client:
            await client.send(request(BODY[:-1] + b',"stream":true}'))
            with pytest.raises(TimeoutError):
                await client.read_head(0.6)
            gate.set()
            assert (await client.read_head())[0] == 200


async def test_a_reader_that_takes_nothing_is_cut(tmp_path: Path) -> None:
    """A stream nobody reads stops its engine, holds little, and after a time is aborted."""
    event = b"data: " + b'{"choices":[]}'.rjust(60_000) + b"\n\n"
    timeouts = {"stall_seconds": 0.5}
    async with scripted_system(tmp_path, names="b0", server={"timeouts": timeouts}) as system:
        engine = system.engine("b0")
        engine.then(stream(*[event] * 800, end=[Hold()]))
        place = system.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((place[0], int(place[1])))
            client.sendall(request(BODY[:-1] + b',"stream":true}'))
            call = await engine.called()
            await engine.peer_closed(call, within=10)
        await system.settled()
        metrics = await system.counted("requests_total", code="200")
        assert metrics.total("instance_inflight") == 0
        assert metrics.total("refused_connections_total", cause="stalled") == 1
        await until_empty(system)


# -- what is too much


async def test_heads_are_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A head over its bytes or fields is 431, in one piece or many, complete or not.

    No request's counts and lines tell of it; it has its own.
    """
    caplog.set_level(logging.INFO, "prfaas.access")
    server = {"max_head_bytes": 4096, "max_head_fields": 20}
    async with scripted_system(tmp_path, names="b0", server=server) as system:
        assert told(await exchange(system.url, request(BODY, "x: " + "a" * 4096)))[0] == 431
        assert told(await exchange(system.url, request(BODY, *["x: a"] * 30)))[0] == 431
        assert told(await exchange(system.url, request(path="/" + "a" * 5000)))[0] == 431
        pieces = [b"GET /health HTTP/1.1\r\nx: ", *[b"a" * 1000] * 8]
        async with calling(system.url) as client:
            for piece in pieces:
                client.writer.write(piece)
                await asyncio.sleep(0.01)
            assert told(await client.read_rest())[0] == 431
        metrics = await system.metrics()
        assert metrics.total("refused_connections_total", cause="head_too_large") == 4
        lines = [json.loads(each.message) for each in caplog.records]
        (line,) = {json.dumps(each) for each in lines if "refused" in each}
        assert json.loads(line) == {
            "status": 431,
            "refused": "head_too_large",
            "error": "the head is over 4096 bytes or 20 fields",
        }
        enough = request(BODY, "connection: close", *["x: a"] * 17)
        assert b" 200 OK" in await exchange(system.url, enough)


async def test_framing_is_bounded(tmp_path: Path) -> None:
    """Chunk extensions and trailers without end are refused; chunks of one byte are not."""
    server = {"max_head_bytes": 4096, "max_head_fields": 20}
    start = request(b"", "transfer-encoding: chunked", length=False)
    async with scripted_system(tmp_path, names="b0", server=server) as system:
        for endless in (b"2;" + b"e" * 1000, b"0\r\n" + b"trailer: 1\r\n" * 80):
            async with calling(system.url) as client:
                await client.send(start)
                for _ in range(20):
                    client.writer.write(endless)
                    await asyncio.sleep(0.005)
                assert told(await client.read_rest())[0] == 400
        async with calling(system.url) as client:
            await client.send(start)
            for byte in BODY:
                await client.send(b"1\r\n%c\r\n" % byte)
            await client.send(b"0\r\n\r\n")
            assert (await client.read_head())[0] == 200


async def test_connections_over_the_limit(tmp_path: Path) -> None:
    """One too many is told 503 with Retry-After at once; probes are answered all the same."""
    server = {"max_connections": 4}
    async with scripted_system(tmp_path, names="b0", server=server) as system:
        await system.client.aclose()
        held = [await RawCall.open(system.url) for _ in range(4)]
        await until(lambda: len(system.edge.connections) == 4)
        answer = await exchange(system.url, request())
        assert told(answer)[0] == 503
        assert b"retry-after: 1" in answer
        assert b'{"type":"error"' in await exchange(system.url, request(path="/v1/messages"))
        assert system.engine("b0").calls == []
        for path in ("/health", "/ready", "/metrics", "/admin/v1/state"):
            raw = request(b"", path=path, method="GET")
            answer = await exchange(system.url, raw)
            assert b" 200 OK" in answer
            if path == "/metrics":
                assert b'prfaas_refused_connections_total{cause="too_many"} 2.0' in answer
        for call in held:
            call.leave()
        await until(lambda: not system.edge.connections)
        async with calling(system.url) as client:
            await client.send(request())
            assert (await client.read_head())[0] == 200


async def test_connections_far_over_the_limit(tmp_path: Path) -> None:
    """Beyond those that may be told, connections are told and closed before they ask."""
    async with scripted_system(tmp_path, names="b0", server={"max_connections": 1}) as system:
        await system.client.aclose()
        held = [await RawCall.open(system.url) for _ in range(65)]
        await until(lambda: len(system.edge.connections) == 65)
        assert told(await exchange(system.url))[0] == 503
        for call in held:
            call.leave()


async def test_bodies_are_bounded_in_total(tmp_path: Path) -> None:
    """Half-sent bodies of many clients fill no more memory than is set aside for them."""
    server = {"max_body_bytes": 40_000, "max_buffered_bytes": 100_000}
    half = request(b"x" * 40_000)[:-1]
    async with scripted_system(tmp_path, names="b0", server=server) as system:
        held = [await RawCall.open(system.url) for _ in range(2)]
        for call in held:
            await call.send(half)
        await system.until(lambda _: held_bytes(system) == 2 * 39_999)
        async with calling(system.url) as client:
            await client.send(half)
            status, headers = await client.read_head()
        assert (status, headers["retry-after"]) == (503, "1")
        for call in held:
            call.leave()
        await system.until(lambda _: held_bytes(system) == 0)
        assert (await system.complete("a" * 30_000)).status_code == 200
        await system.until(lambda _: held_bytes(system) == 0)


def held_bytes(system: System) -> int:
    """Return how many bytes of bodies a gateway holds."""
    return system.gateway.budget.held


async def test_r32_a_refusal_reaches_who_still_sends(tmp_path: Path) -> None:
    """A 413 is not lost in the reset of a connection whose client goes on sending."""
    async with scripted_system(tmp_path, names="b0", server={"max_body_bytes": 10_000}) as system:
        for _ in range(20):
            async with calling(system.url) as client:
                await client.send(request(b"x" * 150_000))
                assert told(await client.read_rest())[0] == 413
        await until_empty(system)


async def test_a_body_nobody_wants_is_not_read_for_ever(tmp_path: Path) -> None:
    """What follows a refusal is dropped, and the connection cut when it does not end."""
    async with scripted_system(tmp_path, names="b0", server={"max_body_bytes": 10_000}) as system:
        async with calling(system.url) as client:
            await client.send(request(b"", "content-length: 1000000000", length=False))
            with pytest.raises(ConnectionError):
                await flood(client)
        await until_empty(system)


async def flood(client: RawCall) -> None:
    """Send more than anybody reads."""
    for _ in range(200):
        await client.send(b"x" * 1_000_000)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/messages", b"", 405),
        ("POST", "/v1/messages", b"{", 400),
        ("POST", "/v1/messages", b'{"model":"no","messages":[]}', 404),
        ("POST", "/v1/messages", b"x" * 10_001, 413),
        ("POST", "/v1/messages/nothing", b"", 404),
        ("POST", "/v1/messages/count_tokens", b"[]", 400),
        ("GET", "/v1/messages/count_tokens", b"", 405),
    ],
)
async def test_errors_have_the_shape_of_their_api(
    tmp_path: Path, method: str, path: str, body: bytes, status: int
) -> None:
    """Anthropic's paths tell every error as Anthropic's clients read it, others as OpenAI's do."""
    async with scripted_system(tmp_path, names="b0", server={"max_body_bytes": 10_000}) as system:
        for where, anthropic in ((path, True), (path.replace("messages", "nothing"), False)):
            answer = await system.client.request(method, where, content=body)
            document = answer.json()
            assert (document.get("type") == "error") == anthropic
            assert {"message", "type", "param", "code"} <= document["error"].keys()
            assert answer.status_code == status or not anthropic


# -- one request after the other


async def test_a_pipeline_is_answered_in_order_and_bounded(tmp_path: Path) -> None:
    """Requests sent ahead are answered in their order; thousands of them are not collected."""
    async with scripted_system(tmp_path, names="b0") as system:
        async with calling(system.url) as client:
            wanted = [404, 200, 404, 200, 200, 404]
            for code in wanted:
                model = MODEL if code == 200 else "no"
                client.writer.write(request(json.dumps({"model": model, "prompt": "a"}).encode()))
            for code in wanted:
                status, headers = await client.read_head()
                assert status == code
                await client.reader.readexactly(int(headers["content-length"]))
        calls = len(system.engine("b0").calls)
        answer = await exchange(system.url, request() * 2000)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert len(system.engine("b0").calls) == calls + 1
        await until_empty(system)


async def test_r08_leaving_a_pipeline_cuts_what_runs(tmp_path: Path) -> None:
    """A client that sent its next request and left is gone for the first one too."""
    async with scripted_system(tmp_path, names="b0") as system:
        engine = system.engine("b0")
        engine.reply([Hold()])
        async with calling(system.url) as client:
            await client.send(request() + request())
            call = await engine.called()
        await engine.peer_closed(call, within=10)
        await system.settled()
        assert len(engine.calls) == 1


async def test_a_fault_behind_a_stream_does_not_touch_it(tmp_path: Path) -> None:
    """Garbage after a request leaves the answer to that request as it is, and ends after it."""
    gate = asyncio.Event()
    async with scripted_system(tmp_path, names="b0") as system:
        events = [b'data: {"n":1}\n\n', b"data: [DONE]\n\n"]
        script = stream(*events)
        system.engine("b0").then([*script[:2], Until(gate), *script[2:]])
        async with calling(system.url) as client:
            await client.send(request(BODY[:-1] + b',"stream":true}'))
            assert (await client.read_head())[0] == 200
            assert await client.read_chunk() == events[0]
            await client.send(b"\x00 no HTTP at all\r\n\r\n")
            await asyncio.sleep(0.05)
            gate.set()
            assert await client.read_chunk() == events[1]
            assert await client.read_rest() == b"0\r\n\r\n"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_that_breaks_is_refused(plain: System) -> None:
    """A bad chunk is 400 where nothing was answered, and its request reaches nobody."""
    calls = len(plain.engine("b0").calls)
    for bad in (b"zz\r\n", b"2\r\n{}xx\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n"):
        raw = request(b"2\r\n{}\r\n" + bad, "transfer-encoding: chunked", length=False)
        assert told(await exchange(plain.url, raw))[0] == 400
    assert len(plain.engine("b0").calls) == calls


@pytest.mark.asyncio(loop_scope="module")
async def test_expect_100_continue(plain: System) -> None:
    """A body is asked for where it is wanted; where it is not, the refusal comes instead."""
    raw = request(BODY, "expect: 100-continue")
    head = raw.index(b"\r\n\r\n") + 4
    async with calling(plain.url) as client:
        await client.send(raw[:head])
        assert (await client.read_head())[0] == 100
        await client.send(raw[head:])
        assert (await client.read_head())[0] == 200
    huge = request(b"", "expect: 100-continue", "content-length: 99999999999", length=False)
    assert told(await exchange(plain.url, huge))[0] == 413


async def until_empty(system: System, within: Seconds = 60.0) -> None:
    """Wait until no connection is left but the test's own clients' idle ones."""
    await system.client.aclose()
    await until(lambda: not system.edge.connections, within)


async def until(condition: Callable[[], bool], within: Seconds = 60.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)
