"""`millstream coord pool init`, `join` and `status`: the nodes that coordinate together.

Invariants:
1. What was done already is no error: a command can be said again until it has worked.
2. `status`: exit code 0 if every group has a primary that was heard of lately, else 1.

`millstream cluster init` and `join` do these steps by themselves; these commands are for
coordination without a cluster, and for groups besides the first.

Elsewhere: what the nodes do (`coordination.core.pool.admin_commands`), clusters
(`cli.serving.cluster`).
"""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Column, Table

from millstream.cli.connect import (
    JsonOption,
    NodeOptions,
    at_node,
)
from millstream.cli.coordination.coord import Coordination, ask_primary, coordination_at
from millstream.errors import UnavailableError, UsageError
from millstream.model.addresses import parse_address

__all__ = [
    "CHANGE_S",
    "FRESH_MS",
    "GROUP_DEFAULT",
    "PEER_PORT",
    "app",
    "grow",
]

app = typer.Typer(no_args_is_help=True)

GROUP_DEFAULT: Final = 1
"""The group that the first node of a pool founds by itself."""
SIZES: Final = (1, 3, 5, 7)
PEER_PORT: Final = 7380
FRESH_MS: Final = 5000
"""A primary that was not heard of for so long may be none any more."""
CHANGE_S: Final = 630.0
"""How long a group may take to bring new members up to date."""
_WIDTH_MIN: Final = 120
"""Characters of a line; a narrower terminal wraps it, and nothing is left out."""

GroupOption = Annotated[
    int, typer.Option("--group", metavar="N", help="Which group.", show_default=True)
]


@app.command()
@at_node
def init(
    node: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="Ids of the members, or how they begin."),
    ] = None,
    group: GroupOption = GROUP_DEFAULT,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Have a group span several nodes, so that it tolerates failures.

    Without NODE all nodes of the pool become members; there have to be 3, 5 or 7.
    """
    with coordination_at(at.address, at.who, at.tls) as here:
        wanted = [_node_like(here, each) for each in node or ()] or _ids(here)
        epoch, members = grow(here, group, wanted)
    found = {"group": group, "epoch": epoch, "members": members}
    if json:
        print(json_module.dumps(found))
    else:
        tolerated = len(members) // 2
        print(f"group {group}, epoch {epoch}: {len(members)} members, {tolerated} may fail")


def grow(here: Coordination, group: int, wanted: list[str]) -> tuple[int, list[str]]:
    """Make these nodes the members of a group; return its epoch and them.

    Raises:
        UsageError: `badconfig`: a group of so many cannot be.
        MillstreamError: the group refused.
    """
    if len(wanted) not in SIZES:
        raise UsageError(
            f"a group has 1, 3, 5 or 7 members, not {len(wanted)}: name them", code="badconfig"
        )
    entry = here.ask("VDS", str(group))[str(group).encode()]
    members = sorted(member.decode() for member in entry[b"nodes"])
    if members == sorted(wanted):
        return int(entry[b"epoch"]), members
    words = ("ADMIN", "GROUP", "RECONFIG", str(group), *sorted(wanted))
    epoch, now = ask_primary(here, *words, timeout_s=CHANGE_S)
    return int(epoch), [member.decode() for member in now]


def _ids(here: Coordination) -> list[str]:
    return [row[b"node"].decode() for row in here.ask("ADMIN", "NODES")]


def _node_like(here: Coordination, beginning: str) -> str:
    found = [one for one in _ids(here) if one.startswith(beginning.lower())]
    if len(found) != 1:
        raise UsageError(f"{beginning} does not begin the id of one node", code="unknown_node")
    return found[0]


@app.command()
@at_node
def join(
    peer: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Peer port of a node of the pool.")
    ],
    *,
    at: NodeOptions,
) -> None:
    """Let the node that is asked join the pool of another node."""
    host, port = parse_address(peer, default_port=PEER_PORT)
    with coordination_at(at.address, at.who, at.tls) as here:
        here.ask("ADMIN", "JOIN", host, str(port))
        print(f"{len(_ids(here))} nodes are in the pool")


@app.command()
@at_node
def status(
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Show the nodes of the pool and where its groups are led, as one node sees it.

    Exit code 1 if a group has no primary that was heard of lately.
    """
    with coordination_at(at.address, at.who, at.tls) as here:
        found = _plain({"nodes": here.ask("ADMIN", "NODES"), "groups": here.ask("VDS")})
    if json:
        print(json_module.dumps(found))
    else:
        _show(found)
    lost = [name for name, entry in found["groups"].items() if not _is_led(entry)]
    if lost:
        raise UnavailableError(f"nobody is known to lead group {', '.join(lost)}")


def _is_led(entry: dict[str, Any]) -> bool:
    age_ms = entry["freshness_ms"]
    return entry["primary"] is not None and age_ms is not None and age_ms <= FRESH_MS


def _plain(thing: Any) -> Any:
    """Return a reply as JSON can have it."""
    match thing:
        case bytes():
            return thing.decode(errors="replace")
        case dict():
            return {_plain(name): _plain(one) for name, one in thing.items()}
        case list() | tuple():
            return [_plain(one) for one in thing]
    return thing


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH_MIN)
    table = Table(
        Column("node", min_width=32), "for clients", "for nodes", "groups", "heard", box=None
    )
    for row in found["nodes"]:
        heard = "here" if row["is_here"] else _ago(row["heard_ms"])
        groups = ", ".join(map(str, row["groups"]))
        table.add_row(row["node"], row["coord"] or "-", row["peer"], groups, heard)
    console.print(table)
    table = Table("group", "epoch", "view", "primary", "members", "heard", box=None)
    for name, entry in found["groups"].items():
        table.add_row(
            name, str(entry["epoch"]), str(entry["view"]), entry["primary"] or "?",
            ", ".join(entry["members"]), _ago(entry["freshness_ms"]),
        )  # fmt: skip
    console.print(table)


def _ago(age_ms: int | None) -> str:
    return "never" if age_ms is None else f"{age_ms / 1000:.1f} s ago"
