"""`prfaas link-agent`: a host's egress, measured and told to the gateways."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from router.adapters.linux_egress import Network, find_default_interface, read_sent
from router.commands.admin_client import DEFAULT_URL, KeyOption, check_url
from router.commands.logs import configure_logs
from router.commands.output import (
    AsJson,
    CommandFailed,
    Unusable,
    print_fault,
    print_json,
    print_pairs,
)
from router.commands.process_environment import LogOption, read_process_environment
from router.compose.link_agent import AgentOptions, open_agent
from router.domain.units import from_gbps


def register(app: typer.Typer) -> None:
    """Add `link-agent`."""
    app.command("link-agent")(link_agent)


def link_agent(
    link: Annotated[str, typer.Option(metavar="NAME", help="The link, as configured.")],
    *,
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A gateway's admin address; several are all told."
            f" (env PRFAAS_URL; default {DEFAULT_URL})",
        ),
    ] = None,
    key: KeyOption = None,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the admin key is, in place of --key.")
    ] = None,
    interface: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="By which KV leaves; several add up. (default: the default route's)",
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="A network at the other end, for round-trip times. (default: every other host)",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.05, max=3600, help="Seconds between two measurements.")
    ] = 1.0,
    capacity_gbps: Annotated[
        float | None,
        typer.Option(
            min=1e-6, max=1e9, help="The interfaces' greatest rate. (default: as they say)"
        ),
    ] = None,
    available_gbps: Annotated[
        float | None,
        typer.Option(min=0, max=1e9, help="What this host may send at most, where it is shaped."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Measure over one interval, tell it, and end.")
    ] = False,
    as_json: AsJson = False,
    log_level: LogOption = None,
) -> None:
    """Measure what leaves this host by its interfaces, and tell the gateways every second.

    Runs on the host by which KV leaves over a link, until SIGTERM or Ctrl-C. Reads bytes, TCP
    retransmissions and round-trip times from the Linux kernel, which takes no privilege. A key of
    the role `telemetry` is enough. Gateways that are away are told as soon as they are back.

    Examples: prfaas link-agent --link west-east --url http://gateway:8001 --key-file agent.key ·
    prfaas link-agent --link west-east --once --json
    """
    options = AgentOptions(
        link=link,
        urls=_read_urls(url),
        key=_read_key(key, key_file),
        interfaces=_read_interfaces(interface),
        peers=tuple(_read_network(each) for each in peer or ()),
        interval=interval,
        capacity=None if capacity_gbps is None else from_gbps(capacity_gbps),
        available=None if available_gbps is None else from_gbps(available_gbps),
    )
    configure_logs(log_level or read_process_environment().log_level)
    if once:
        asyncio.run(_measure_once(options, as_json=as_json))
        return
    print_fault(
        f"prfaas link-agent: {', '.join(options.interfaces)} for link {link},"
        f" every {interval:g} s to {', '.join(options.urls)}"
    )
    asyncio.run(_measure(options, as_json=as_json))


async def _measure_once(options: AgentOptions, *, as_json: bool) -> None:
    async with open_agent(options) as agent:
        try:
            document = await agent.measure()
        except OSError as error:
            raise CommandFailed(f"the counters cannot be read: {error}") from error
        if document is None:
            raise CommandFailed("a counter began anew while it was measured: try again")
        told = await agent.tell(document)
    failed = {where: said for where, said in told.items() if said is not None}
    if as_json:
        print_json({"link": options.link, "telemetry": document, "told": told})
    else:
        print_pairs(options.link, document)
    if failed:
        raise CommandFailed(
            "not told: " + "; ".join(f"{where}: {said}" for where, said in failed.items())
        )


async def _measure(options: AgentOptions, *, as_json: bool) -> None:
    """Measure until SIGTERM or SIGINT."""
    async with open_agent(options) as agent:
        running = asyncio.ensure_future(agent.run(_print_line if as_json else _keep_quiet))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            return


def _print_line(document: Mapping[str, object]) -> None:
    print(json.dumps(document), flush=True)


def _keep_quiet(_: Mapping[str, object]) -> None:
    """Measurements are for the gateways."""


def _read_urls(given: list[str] | None) -> tuple[str, ...]:
    urls = given or [os.environ.get("PRFAAS_URL") or DEFAULT_URL]
    return tuple(dict.fromkeys(check_url(each) for each in urls))


def _read_key(given: str | None, file: Path | None) -> str | None:
    if given is not None and file is not None:
        raise Unusable("give either --key or --key-file")
    if file is None:
        return given or os.environ.get("PRFAAS_ADMIN_KEY") or None
    try:
        key = file.read_text("utf-8").strip()
    except OSError as error:
        raise Unusable(f"--key-file {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unusable(f"--key-file {file} holds no text") from error
    if not key:
        raise Unusable(f"--key-file {file} is empty")
    return key


def _read_interfaces(given: list[str] | None) -> tuple[str, ...]:
    names = given
    if not names:
        default = find_default_interface()
        if default is None:
            raise Unusable("this host has no default route: name the link's --interface")
        names = [default]
    for name in names:
        if "/" in name or name in {"", ".", ".."}:
            raise Unusable(f"--interface {name!r} is no interface's name")
        try:
            read_sent(name)
        except OSError as error:
            raise Unusable(f"--interface {name}: this host has no counters of it") from error
    return tuple(dict.fromkeys(names))


def _read_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise Unusable(f"--peer {text!r} is no network: write 10.1.0.0/16") from error
