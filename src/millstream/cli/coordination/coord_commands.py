"""`millstream coord watch PATH`, `coord get PATH`: elements of coordination as JSON lines.

Invariants:
1. A line stands for one change or one element; data that is no UTF-8 is in base64.
2. Nothing that happens to what is watched is left out: over lost connections the watch goes on
   where it was, or ends with an error.
3. What may not be read, or is locked, is told, and makes the exit code 1; it is not left out.

Elsewhere: the client (`coordination.aio.client.async_client`), everything else
(`cli.coordination.shell`).

Source: docs/reference/coord.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from base64 import b64encode
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any

import msgspec
import typer

from millstream.cli.connect import (
    NodeOptions,
    at_node,
)
from millstream.cli.coordination import pool
from millstream.cli.coordination.coord import coord_address_at
from millstream.cli.coordination.shell import CoordOption
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.aio.client.group_clients import words_of
from millstream.coordination.core.client.errors import LockedError, MissingError
from millstream.coordination.core.client.resumed_subscription import Change
from millstream.errors import AccessError, MillstreamError, UsageError
from millstream.vsr.core.versions import Version, parse_version

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)
app.add_typer(pool.app, name="pool", help="Nodes that coordinate together, and their groups.")

ScopeOption = Annotated[
    str,
    typer.Option(
        "--scope",
        metavar="tree|children|element",
        help="All below, too; which children there are, too; or the element alone.",
    ),
]
DataOption = Annotated[bool, typer.Option("--data", help="Print the data that was put, too.")]
AfterOption = Annotated[
    str | None,
    typer.Option(
        "--after",
        metavar="VERSION|LSN",
        help="Go on after a change printed before; its version also tells histories apart.",
    ),
]
PrefixOption = Annotated[
    bool, typer.Option("--prefix", help="All elements whose paths begin so; /app/ for all below.")
]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="As in /app/config.")]


@app.command("watch")
@at_node
def watch(
    path: PathArgument,
    scope: ScopeOption = "tree",
    data: DataOption = False,
    after: AfterOption = None,
    coord: CoordOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Print what happens to an element, and below it, as JSON lines until Ctrl-C."""
    known = None if after is None else _position(after)
    client = _client(coord, at)
    asyncio.run(_until_told(_watch(client, path, scope.upper(), with_data=data, after=known)))


@app.command("get")
@at_node
def get(
    path: PathArgument,
    prefix: PrefixOption = False,
    coord: CoordOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Print an element, or all whose paths begin so, as JSON lines."""
    client = _client(coord, at)
    asyncio.run(_print_all(client, path) if prefix else _print_one(client, path))


def _client(coord: str | None, at: NodeOptions) -> AsyncClient:
    who, tls = at.who, at.tls
    place = coord or coord_address_at(at.address, who, tls)
    return AsyncClient([place], user=who.user, password=who.password, tls=tls)


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    """Run until the end, or until told to stop, which is no failure."""
    task = asyncio.current_task()
    assert task is not None, "this is one"
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


def _position(text: str) -> int | Version:
    """Understand `--after`."""
    if version := parse_version(text.encode()):
        return version
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"--after {text!r} is neither a version, as in 0:1:42, nor an LSN", code="bad_position"
        )
    return int(text)


async def _watch(
    client: AsyncClient, path: str, scope: str, *, with_data: bool, after: int | Version | None
) -> None:
    async with (
        client,
        client.subscribe(path, scope, with_data=with_data, after=after) as changes,
    ):
        _print({"op": "start", "lsn": changes.lsn})
        async for change in changes:
            _print(_members_of(change))


def _members_of(change: Change) -> dict[str, Any]:
    members: dict[str, Any] = {
        "op": change.op,
        "lsn": change.lsn,
        "version": change.version.text.decode(),
        "path": change.path,
        "type": change.type,
        "ts": change.time_ms,
        "client": change.client,
    }
    if change.to:
        members["to"] = change.to
    if change.parts > 1:
        members |= {"part": change.part, "parts": change.parts}
    if change.data is not None:
        members |= _data_members(change.data)
    return members


async def _print_one(client: AsyncClient, path: str) -> None:
    async with client:
        _print(_element(path, await _read(client, path)))


async def _print_all(client: AsyncClient, prefix: str) -> None:
    """Print what begins so; what cannot be read is told, and is the error at the end."""
    if not prefix.startswith("/"):
        raise UsageError("a path begins with /", code="bad_path")
    parent, _, beginning = prefix.rpartition("/")
    async with client:
        failure = await _print_below(client, parent, beginning)
    if failure is not None:
        raise failure


async def _print_below(
    client: AsyncClient, parent: str, beginning: str = ""
) -> MillstreamError | None:
    """Print children and what is below them, an element before its children.

    Returns:
        why one could not be read.
    """
    failure: MillstreamError | None = None
    with contextlib.suppress(MissingError):  # there is nothing, or nothing any more
        async for name in client.list(parent or "/"):
            if not name.startswith(beginning):
                continue
            path = f"{parent}/{name}"
            try:
                found = await _read(client, path)
            except MissingError:
                continue
            except (AccessError, LockedError) as error:
                _print({"path": path, "error": str(error)})
                failure = error
                continue
            _print(_element(path, found))
            if found[b"nchildren"]:
                failure = await _print_below(client, path) or failure
    return failure


async def _read(client: AsyncClient, path: str) -> dict[bytes, Any]:
    found: dict[bytes, Any] = await client.execute_at(
        path, *words_of(("GET", path, "ATTR")), is_change=False
    )
    return found


def _element(path: str, found: Mapping[bytes, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "type": found[b"type"].decode(),
        "version": found[b"version"].decode(),
        "ts": found[b"ts"],
        "children": found[b"nchildren"],
        **_data_members(found.get(b"data")),
    }


def _data_members(data: Any) -> dict[str, Any]:
    """Return data as text, or in base64 if it is not text. Items of lists and queues likewise."""
    items = data if isinstance(data, list) else [data]
    try:
        shown = [item.decode() if isinstance(item, bytes) else item for item in items]
        name = "data"
    except UnicodeDecodeError:
        shown, name = [b64encode(item).decode() for item in items], "data_base64"
    return {name: shown if isinstance(data, list) else shown[0]}


def _print(members: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(members) + b"\n")
    sys.stdout.buffer.flush()
