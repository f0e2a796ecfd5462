"""`millstream cluster`: members, fail-over and rebalance of a managed cluster.

Every command asks one node; the orchestrator does what is asked, wherever it is. A node is named
by its name, by its id, or by a beginning of its id that no other id has.

Invariants:
1. Exit code 0: done; 1: not done, or something is not served; 2: used wrongly.
2. What makes the cluster less safe is only done if that is said: `--yes`, `--force`.

Elsewhere: how the cluster is asked (`cli.serving.cluster_asking`), the pages
(`gateway.aio.node.cluster_pages`), what is done (`cluster.core.requests`), what is printed
(`cli.serving.cluster_output`).

Source: docs/reference/cluster.md.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from millstream.cli.connect import JsonOption, NodeOptions, at_node
from millstream.cli.node_http import node_http, path_of, print_object
from millstream.cli.serving.cluster_asking import ask_cluster, settled, status_of
from millstream.cli.serving.cluster_output import (
    moves_text,
    show_recovery,
    show_status,
    unserved_of,
)
from millstream.cli.serving.cluster_promote import promote
from millstream.cli.serving.cluster_up import up
from millstream.errors import UnavailableError, UsageError

__all__ = ["app"]

CHANGE_S: Final = 300.0
"""Longest wait for `init` and `join`."""
COORDINATORS: Final = (1, 3, 5, 7)

app = typer.Typer(no_args_is_help=True, add_completion=False)

WaitOption = Annotated[bool, typer.Option("--wait", help="Return when nothing is under way.")]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Also if partitions have fewer copies afterwards.")
]


@app.callback()
def cluster() -> None:
    """Look after a cluster: its members, fail-over, rebalance."""


app.command()(up)
app.command()(promote)


@app.command()
@at_node
def init(
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of the cluster. Default: millstream.")
    ] = "",
    coordinators: Annotated[
        int,
        typer.Option(
            "--coordinators", metavar="N", help="How many nodes coordinate: 1, 3, 5 or 7."
        ),
    ] = 3,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Make a cluster of the node that is asked; its buckets stay. Others join it then."""
    if coordinators not in COORDINATORS:
        raise UsageError(f"--coordinators {coordinators}: 1, 3, 5 or 7 are possible")
    content = {"name": name, "coordinators": coordinators}
    made = node_http(**at.options).request(
        "POST", path_of("_millstream", "cluster", "init"), content, timeout_s=CHANGE_S
    )
    if json:
        print_object(made)
    else:
        print(f"{_own(made)}; others join it with `millstream cluster join`")


@app.command()
@at_node
def join(
    member: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="HTTP address of a node of the cluster.")
    ],
    rebalance: Annotated[
        bool, typer.Option("--rebalance", help="Move partitions to this node at once.")
    ] = False,
    zone: Annotated[
        str,
        typer.Option(
            "--zone", metavar="ZONE", help="Copies are spread over zones: racks, machines."
        ),
    ] = "",
    roles: Annotated[
        str, typer.Option("--roles", metavar="data,index,coord", help="Default: all it can do.")
    ] = "",
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Have the node that is asked join a cluster; it must be empty."""
    http = node_http(**at.options)
    content = {"address": member, "zone": zone, "roles": [one for one in roles.split(",") if one]}
    path = path_of("_millstream", "cluster", "join")
    found = http.request("POST", path, content, timeout_s=CHANGE_S)
    moved = None
    if rebalance:
        moved = found["rebalance"] = ask_cluster(http, "rebalance", {})
    if json:
        print_object(found)
        return
    print(_own(found))
    for warning in found.get("warnings", ()):
        print(f"! {warning}", file=sys.stderr)
    if moved is not None:
        print(moves_text(moved))
    elif found.get("has_nothing", True):
        print("it has nothing yet: `millstream cluster rebalance` moves partitions to it")


@app.command()
@at_node
def status(
    wait: WaitOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Show members, buckets, what is moved, and fail-overs.

    Exit code 1 if a partition is not served, or if that is not known.
    """
    http = node_http(**at.options)
    found = settled(http) if wait else status_of(http)
    if json:
        print_object(found)
    else:
        show_status(found)
    unserved = unserved_of(found)
    if unserved:
        raise UnavailableError(f"not served, or not known to be: {unserved}", code="not_served")


@app.command()
@at_node
def rebalance(
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="NODE", help="That is to stay, or failed and came back."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="NODE", help="That is to leave.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only tell what would be moved.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End the one that runs; nothing is moved back.")
    ] = False,
    wait: WaitOption = False,
    yes: YesOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Spread copies and indexes evenly over the members."""
    if cancel and (add or remove or plan or wait):
        raise UsageError("--cancel takes no other option")
    if plan and wait:
        raise UsageError("--plan moves nothing that could be waited for")
    http = node_http(**at.options)
    if cancel:
        found = ask_cluster(http, "cancel", {})
        _print(found, "the rebalance ends", is_json=json)
        return
    args: dict[str, Any] = {"add": add or [], "remove": remove or []}
    tried = ask_cluster(http, "rebalance", args | {"trial": True})
    if plan:
        _print(tried, moves_text(tried), is_json=json)
        return
    _check_fewer(tried, is_confirmed=yes)
    found = ask_cluster(http, "rebalance", args)
    if wait:
        found["status"] = settled(http)
    _print(found, moves_text(found), is_json=json)


@app.command()
@at_node
def remove(
    node: Annotated[list[str], typer.Argument(metavar="NODE...", help="Names or ids.")],
    now: Annotated[
        bool, typer.Option("--now", help="Fail them over first: they are dead, or as good as.")
    ] = False,
    yes: YesOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Move everything away from nodes; then they are no members any more.

    They may be stopped once `cluster status` shows them as `out`.
    """
    http = node_http(**at.options)
    args = {"nodes": node, "now": now}
    _check_fewer(ask_cluster(http, "remove", args | {"trial": True}), is_confirmed=yes)
    found = ask_cluster(http, "remove", args)
    text = f"{', '.join(node)} leave: wait until `cluster status` shows them as out"
    _print(found, f"{text}\n{moves_text(found)}", is_json=json)


@app.command()
@at_node
def failover(
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Name or id.", show_default=False)
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="It is dead: other copies are promoted.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="It never comes back: promote, even if acknowledged writes are lost."
        ),
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Count automatic fail-overs from 0.")
    ] = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Have other nodes serve what a node serves; alone it hands over, and nothing is lost.

    A failed node keeps its copies, and is a member again when it comes back.
    """
    if hard and force:
        raise UsageError("--force is --hard, and more: give one of them")
    if reset == (node is not None) or (reset and (hard or force)):
        raise UsageError("name a node, or give --reset alone")
    http = node_http(**at.options)
    if reset:
        _print(ask_cluster(http, "reset", {}), "automatic fail-overs count from 0", is_json=json)
        return
    mode = "force" if force else "hard" if hard else "graceful"
    args: dict[str, Any] = {"node": node, "mode": mode}
    if force:
        _warn(ask_cluster(http, "failover", args | {"trial": True}))
    found = ask_cluster(http, "failover", args)
    count = found.get("partitions")
    text = f"{found.get('name', node)}: {mode} fail-over"
    _print(found, f"{text} of {count} partitions" if count is not None else text, is_json=json)


@app.command()
@at_node
def recover(
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="NODE", help="That never comes back: name or id."),
    ] = None,
    from_nodes: Annotated[
        bool,
        typer.Option("--from-nodes", help="Nothing is left of the state, not even a backup."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this only tell what may be lost.")
    ] = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Rebuild the state of a cluster whose coordination is lost, from what its nodes hold.

    Run it at a node that is left. Nodes that coordinated and may come back must be brought back
    instead: what they acknowledge without this node is lost.
    """
    content = {"without": without or [], "from_nodes": from_nodes, "trial": not yes}
    found = node_http(**at.options).request(
        "POST", path_of("_millstream", "cluster", "recover"), content, timeout_s=CHANGE_S
    )
    if json:
        print_object(found)
    else:
        show_recovery(found)
    if not yes:
        raise UsageError("nothing was changed: to do this, give --yes", code="not_confirmed")


def _own(found: dict[str, Any]) -> str:
    """Return which node this is, of which cluster."""
    return f"this node is {found['node']} of cluster {found['name']} {found['cluster'][:8]}"


def _check_fewer(tried: dict[str, Any], *, is_confirmed: bool) -> None:
    fewer = (tried.get("moves") or {}).get("fewer", 0)
    if fewer and not is_confirmed:
        raise UsageError(
            f"{fewer} partitions would have fewer copies than now: add nodes, or, if that is "
            "meant, give --yes",
            code="not_confirmed",
        )


def _warn(tried: dict[str, Any]) -> None:
    """Tell what may be lost by force before it is done."""
    if at_risk := tried.get("at_risk"):
        print(
            f"! writes acknowledged at level {' and '.join(at_risk)} may be lost in "
            f"{tried['partitions']} partitions; the node must never serve again",
            file=sys.stderr,
        )


def _print(found: dict[str, Any], text: str, *, is_json: bool) -> None:
    if is_json:
        print_object(found)
    else:
        print(text)
