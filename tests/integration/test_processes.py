"""The commands that serve, as processes: how they start, drain and end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from router.compose.running import listen
from tests.fakes.live_engines import DONE, LiveEngine, chat_event
from tests.fakes.processes import RunningCommand, gone, prfaas
from tests.fakes.scripted_engine import BlackHole, Step, Until, stream
from tests.fakes.systems import describe, free_port, write_configuration
from tests.soak.vitals import read_vitals

GATEWAY = r"prfaas gateway on (http://\S+)"


def configure(directory: Path, url: str = "http://127.0.0.1:9", **changes: Any) -> Path:  # noqa: ANN401
    """Write a configuration with one aggregated engine."""
    instance = {"name": "b0", "url": url, "role": "both"}
    clusters = [{"name": "east", "kind": "pd", "instances": [instance]}]
    model = {"tokenizer": {"kind": "none"}}
    document = describe(clusters, threshold=100, model=model, links=[], **changes)
    return write_configuration(directory, document)


@asynccontextmanager
async def serving(
    directory: Path, **changes: object
) -> AsyncIterator[tuple[RunningCommand, httpx.AsyncClient, LiveEngine]]:
    """A gateway process over one scripted engine, a client of it, and the engine."""
    async with LiveEngine("b0") as engine:
        config = configure(directory, engine.url, **changes)
        async with prfaas("serve", "--config", str(config), "--port", "0", directory=directory) as (
            command
        ):
            url = (await command.said(GATEWAY))[1]
            async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client:
                yield command, client, engine


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


async def chat(client: httpx.AsyncClient) -> int:
    return (await client.post("/v1/chat/completions", json=CHAT)).status_code


def held_stream(gate: asyncio.Event) -> list[Step]:
    """A stream that ends only after `gate`."""
    head, first, second, *rest = stream(chat_event("tiny", "a"), chat_event("tiny", "b"), DONE)
    return [head, first, Until(gate), second, *rest]


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """`serve` on a taken port ends with 1 and one line that names the place."""
    with free_port() as port:
        config = configure(tmp_path, server={"port": port})
        async with prfaas("serve", "--config", str(config), directory=tmp_path) as command:
            assert await command.ended() == 1
    (line,) = command.stderr
    assert f"127.0.0.1:{port}" in line
    assert command.stdout == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [}", "prfaas.yaml:1"),
        ("model: []", "model"),
        ("", "prfaas.yaml"),
    ],
)
async def test_a_bad_configuration(tmp_path: Path, text: str, said: str) -> None:
    """`serve` with a file that is no configuration ends with 2 and names its place."""
    path = tmp_path / "prfaas.yaml"
    path.write_text(text)
    async with prfaas("serve", "--config", str(path), directory=tmp_path) as command:
        assert await command.ended() == 2
    assert said in "\n".join(command.stderr)
    assert "Traceback" not in "\n".join(command.stderr)


async def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    """`serve` without its file ends with 2 in one line."""
    async with prfaas("serve", "--config", "none.yaml", directory=tmp_path) as command:
        assert await command.ended() == 2
    (line,) = command.stderr
    assert "none.yaml" in line


async def test_several_workers_need_a_store(tmp_path: Path) -> None:
    """`--workers 2` on memory:// ends with 2 and names Redis."""
    config = configure(tmp_path)
    async with prfaas(
        "serve", "--config", str(config), "--workers", "2", directory=tmp_path
    ) as command:
        assert await command.ended() == 2
    (line,) = command.stderr
    assert "Redis" in line


async def test_engines_of_an_unknown_cluster(tmp_path: Path) -> None:
    """`engines` of a cluster that nobody configured ends with 2 and names those that are."""
    config = configure(tmp_path)
    async with prfaas(
        "engines", "--config", str(config), "--cluster", "mars", directory=tmp_path
    ) as command:
        assert await command.ended() == 2
    (line,) = command.stderr
    assert "mars" in line
    assert "east" in line


async def test_r63_sigterm_drains(tmp_path: Path) -> None:
    """Not ready at once, serving on for the delay, streams end with [DONE], exit 0."""
    drain = {"delay_seconds": 3.0, "grace_seconds": 10}
    async with serving(tmp_path, drain=drain) as (command, client, engine):
        gate = asyncio.Event()
        engine.then(held_stream(gate))
        body = {**CHAT, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as running:
            pieces = running.aiter_raw()
            first = await anext(pieces)
            command.send(signal.SIGTERM)
            await unready(client)
            assert (await client.get("/health")).status_code == 200
            assert await chat(client) == 200
            await refused(str(client.base_url))
            assert command.process.returncode is None
            gate.set()
            rest = b"".join([piece async for piece in pieces])
        assert (first + rest).endswith(DONE)
        assert await command.ended(within=20) == 0
    assert not any("Traceback" in line for line in command.stderr)


async def unready(client: httpx.AsyncClient) -> None:
    """Wait until the gateway is not ready; one that is gone is not."""
    async with asyncio.timeout(30):
        while True:
            try:
                if (await client.get("/ready")).status_code == 503:
                    return
            except httpx.TransportError:
                return
            await asyncio.sleep(0.01)


async def refused(url: str) -> None:
    """Wait until nobody listens any more."""
    async with asyncio.timeout(30), httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                await client.get(f"{url}/health")
            except httpx.ConnectError:
                return
            except httpx.TransportError:
                pass  # taken by the closing listener, and let go
            await asyncio.sleep(0.02)


async def test_streams_are_cut_after_the_grace(tmp_path: Path) -> None:
    """A stream that outlasts the grace is cut, and the process still ends by itself."""
    drain = {"delay_seconds": 0, "grace_seconds": 1}
    async with serving(tmp_path, drain=drain) as (command, client, engine):
        engine.then(held_stream(asyncio.Event()))
        body = {**CHAT, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as running:
            pieces = running.aiter_raw()
            await anext(pieces)
            command.send(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in pieces:
                    pass
        assert await command.ended(within=20) == 0


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        [signal.SIGTERM, signal.SIGTERM],
        [signal.SIGTERM, signal.SIGINT],
    ],
    ids=["int", "term_term", "term_int"],
)
async def test_a_second_signal_does_not_wait(tmp_path: Path, signals: list[signal.Signals]) -> None:
    """Ctrl-C, or a signal after SIGTERM, ends an idle gateway without the delay."""
    drain = {"delay_seconds": 60, "grace_seconds": 60}
    async with serving(tmp_path, drain=drain) as (command, client, _):
        assert await chat(client) == 200
        for number in signals:
            command.send(number)
            if number is not signals[-1] or signals.count(number) > 1:
                await unready(client)
        assert await command.ended(within=20) == 0


async def test_r63_sigterm_while_it_starts(tmp_path: Path) -> None:
    """SIGTERM while the fleet is probed for the first time ends the process cleanly and soon."""
    with BlackHole() as nowhere:
        changes = {"upstream": {"probe": {"timeout_seconds": 60}}}
        config = configure(tmp_path, nowhere, **changes)
        async with prfaas(
            "serve", "--config", str(config), "--port", "0", directory=tmp_path
        ) as command:
            await command.said("probing")
            command.send(signal.SIGTERM)
            assert await command.ended(within=20) == 0
    assert not any("Traceback" in line for line in command.stderr)


async def test_r67_a_gateway_starts_with_nobody_alive(tmp_path: Path) -> None:
    """A fleet that is gone keeps no gateway from starting; it is not ready and says 503."""
    config = configure(tmp_path)
    async with prfaas(
        "serve", "--config", str(config), "--port", "0", directory=tmp_path
    ) as command:
        url = (await command.said(GATEWAY))[1]
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/health")).status_code == 200
            assert await chat(client) == 503
        command.send(signal.SIGINT)
        assert await command.ended(within=20) == 0


async def test_one_log_line_a_request(tmp_path: Path) -> None:
    """Each request is one JSON line on stderr, with its route and nothing of its prompt."""
    async with serving(tmp_path) as (command, client, _):
        await chat(client)
        line = await command.said(r"prfaas.access (\{.*\})")
        document = json.loads(line[1])
        command.send(signal.SIGINT)
        await command.ended()
    assert (document["route"], document["status"]) == ("local", 200)
    assert "Hello" not in "\n".join(command.stderr)


@pytest.mark.parametrize("declared", [False, True], ids=["chunked", "length"])
async def test_r32_a_body_over_the_limit_costs_no_memory(tmp_path: Path, declared: bool) -> None:
    """Reading stops at the limit: eight clients that send 40 MB each are no load."""
    limit = 2_000_000
    server = {"max_body_bytes": limit}
    async with serving(tmp_path, server=server) as (command, client, engine):
        assert await chat(client) == 200
        before = read_vitals(0.0, command.pid).resident_bytes
        framing = "content-length: 40000000" if declared else "transfer-encoding: chunked"
        url = str(client.base_url)
        statuses = await asyncio.gather(*(pour(url, framing) for _ in range(8)))
        risen = read_vitals(0.0, command.pid).resident_bytes - before
        assert statuses == [413] * 8
        await command.said(r'prfaas.access \{.*"status":413')
        assert len(engine.calls) == 1
        assert await chat(client) == 200
    assert risen < 8 * 2 * limit


async def test_r32_a_client_that_sends_all_before_it_reads_gets_its_413(tmp_path: Path) -> None:
    """A body far over the limit is read to its end and dropped: the answer is not lost."""
    async with serving(tmp_path, server={"max_body_bytes": 1_000_000}) as (_, client, engine):
        for content in (bytes(20_000_000), pieces_of(20_000_000)):
            reply = await client.post("/v1/completions", content=content)
            assert reply.status_code == 413
            assert reply.json()["error"]["code"] == "body_too_large"
        assert engine.calls == []


async def pieces_of(size: int) -> AsyncIterator[bytes]:
    """Yield a body of so many bytes, without telling its length before."""
    for _ in range(size // 100_000):
        yield bytes(100_000)


async def pour(url: str, framing: str) -> int:
    """Send 40 MB for as long as the gateway takes them; return what it answers.

    On a bare socket: what was answered can be read after sending has failed.
    """
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    piece = b" " * 100_000
    frame = b"%x\r\n%s\r\n" % (len(piece), piece) if "chunked" in framing else piece
    with socket.socket() as client:
        client.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_connect(client, (place.hostname, place.port))
            head = f"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\n{framing}\r\n\r\n"
            await loop.sock_sendall(client, head.encode())
            with contextlib.suppress(ConnectionError):
                for _ in range(400):
                    await loop.sock_sendall(client, frame)
            return int((await loop.sock_recv(client, 4096)).split()[1])


def test_listeners_send_at_once() -> None:
    """Accepted connections have TCP_NODELAY: no answer's body waits for an acknowledgement."""
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("host", ["::1", "::"])
async def test_ipv6_addresses(tmp_path: Path, host: str) -> None:
    """`serve` listens on IPv6, on `::` for IPv4 too, and announces a URL that works."""
    config = configure(tmp_path)
    arguments = ["serve", "--config", str(config), "--port", "0", "--host", host]
    async with prfaas(*arguments, directory=tmp_path) as command:
        url = (await command.said(GATEWAY))[1]
        assert url.startswith(f"http://[{host}]:")
        places = [url, url.replace("[::]", "127.0.0.1")] if host == "::" else [url]
        async with httpx.AsyncClient(trust_env=False) as client:
            for place in places:
                assert (await client.get(f"{place}/health")).status_code == 200
        command.send(signal.SIGINT)
        assert await command.ended(within=20) == 0


# -- the demo


@asynccontextmanager
async def demonstrating(directory: Path) -> AsyncIterator[tuple[RunningCommand, list[int]]]:
    """The demo, ready, and its children."""
    async with prfaas(
        "demo", "--port", "0", "--time-scale", "1000", directory=directory
    ) as command:
        await command.said("Ctrl-C ends it", within=60)
        children = command.children()
        assert len(children) == 3
        try:
            yield command, children
        finally:
            await command.stop()
            await gone(children)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the line is for curl")
async def test_the_demo_answers_its_own_curl_line(tmp_path: Path) -> None:
    """The demo serves; the very line that it prints works; Ctrl-C leaves nothing."""
    async with demonstrating(tmp_path) as (command, children):
        shown = "\n".join(command.stdout)
        line = shown[shown.index("curl -i") :].split("\n\n")[0]
        process = await asyncio.create_subprocess_shell(
            line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        said, _ = await asyncio.wait_for(process.communicate(), 10)
        head, _, body = said.decode().partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        assert "x-prfaas-route: local" in head
        assert "x-prfaas-reason: below_threshold" in head
        assert json.loads(body)["choices"][0]["message"]["content"]
        command.send(signal.SIGINT)
        assert await command.ended() == 0
        await gone(children)


async def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    """Even SIGKILL to the demo ends its engines and its gateway."""
    async with demonstrating(tmp_path) as (command, children):
        command.send(signal.SIGKILL)
        await command.process.wait()
        await gone(children)


async def test_a_killed_simulation_leaves_no_process(tmp_path: Path) -> None:
    """Its pool's processes end with it, at work or waiting for work."""
    case = Path(__file__).parents[2] / "examples/scenarios/case-study.yaml"
    many = ("--seeds", "100", "--requests", "100000", "--jobs", "2")
    async with prfaas("simulate", str(case), *many, directory=tmp_path) as command:
        async with asyncio.timeout(60):
            while len(pool := command.children()) < 2:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
        command.send(signal.SIGKILL)
        assert await command.ended() == -signal.SIGKILL
        await gone(pool)
