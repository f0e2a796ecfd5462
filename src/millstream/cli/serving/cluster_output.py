"""What `millstream cluster` prints of a status and of moves.

Invariants:
1. What is not known is shown as `?`, never as 0 or as nothing.

Elsewhere: the commands (`cli.serving.cluster`), the status (`cluster.core.status`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from millstream.cli.serving.health import shown_bytes

__all__ = [
    "left_of",
    "moves_text",
    "progress_text",
    "show_recovery",
    "show_status",
    "unserved_of",
]

_UUID_SHOWN = 8


def moves_text(answer: Mapping[str, Any]) -> str:
    """Return what is moved, as one line."""
    moves = answer.get("moves")
    if moves is None:
        return "asked for; `millstream cluster status` shows what is moved"
    count, fewer, one_zone = moves["partitions"], moves["fewer"], moves["one_zone"]
    if not any(moves[name] for name in ("copies", "active", "index")):
        text = f"{_many(count, 'partition')}: nothing to move"
    else:
        text = (
            f"{_many(count, 'partition')}: {_many(moves['copies'], 'copy', 'copies')} to build"
            f"{_size(moves)}, "
            f"{_many(moves['active'], 'active copy moves', 'active copies move')}, "
            f"{_many(moves['index'], 'index part moves', 'index parts move')}"
        )
    if one_zone:
        text += f"; {_many(one_zone, 'partition')} with all copies in one zone"
    if fewer:
        text += f"; {_many(fewer, 'partition')} with fewer copies than now"
    return text


def _size(moves: Mapping[str, Any]) -> str:
    """Return how much is to be copied, if anything is."""
    if not moves["copies"]:
        return ""
    size = moves.get("bytes")
    return " (of unknown size)" if size is None else f" ({shown_bytes(size)})"


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count} {one}" if count == 1 else f"{count} {more or one + 's'}"


def show_status(found: Mapping[str, Any]) -> None:
    """Print a status as tables."""
    console = Console(highlight=False, soft_wrap=False)
    for line in _heading(found):
        console.print(line, style="bold", soft_wrap=True)
    console.print(_nodes(found))
    for line in _lines(found):
        style = "yellow" if line.startswith("!") else None
        console.print(line, style=style, soft_wrap=True)


def _heading(found: Mapping[str, Any]) -> Iterator[str]:
    cluster, leader = found["cluster"], found["orchestrator"]
    yield (
        f"cluster {cluster['name']} {cluster['uuid'][:_UUID_SHOWN]}  "
        f"generation {cluster['generation']}"
    )
    leads = "none" if leader is None else f"{leader['name']} (token {leader['token']})"
    coordination = found["coordination"]
    if coordination is None:
        yield f"orchestrator {leads}  coordination ?"
        return
    may_fail = coordination["may_fail"]
    failing = "no node may fail" if not may_fail else f"{may_fail} may fail"
    yield f"orchestrator {leads}  coordination {' '.join(coordination['members'])}, {failing}"


def _nodes(found: Mapping[str, Any]) -> Table:
    right = {"justify": "right"}
    table = Table(
        "node", "zone", "roles", "state",
        Column("active", **right), Column("replica", **right), Column("index", **right),  # type: ignore[arg-type]
        "lease", Column("note", overflow="fold"), box=None,
    )  # fmt: skip
    for node in found["nodes"]:
        roles = ",".join(role for role in node["roles"] if role != "coord")
        counts = (_count(node[name]) for name in ("active", "replica", "index"))
        table.add_row(
            node["name"], node["zone"], roles or "coord", node["state"], *counts,
            _lease(node), node["note"],
        )  # fmt: skip
    return table


def _count(count: int | None) -> str:
    return "?" if count is None else str(count)


def _lease(node: Mapping[str, Any]) -> str:
    if not node["has_session"]:
        return "-"
    if not node["answers"]:
        return "?"
    return "ok" if node["is_admitted"] else "waits"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for bucket in found["buckets"]:
        yield _bucket(bucket)
    if text := progress_text(found):
        yield text
    plan = found["plan"]
    for one in (plan["stalled"] or ()) if plan is not None else ():
        yield f"! bucket {one['bucket']} partition {one['partition']}: {one['why']}"
    failovers = found["failovers"]
    line = f"fail-overs {failovers['count']} of {failovers['max']}"
    if failovers["count"] >= failovers["max"]:
        line += ": no more until a rebalance or `cluster failover --reset`"
    yield line
    for note in found["notes"]:
        yield f"! {note}"


def _bucket(bucket: Mapping[str, Any]) -> str:
    if bucket["state"] != "open":
        return f"bucket {bucket['name']}  {bucket['state']}"
    count = bucket["partitions"]
    parts = [f"{bucket['whole']} with all copies"]
    if bucket["moving"]:
        parts.append(f"{bucket['moving']} moving")
    if bucket["unserved"]:
        parts.append(f"{len(bucket['unserved'])} not served")
    if bucket["unknown"]:
        parts.append(f"{len(bucket['unknown'])} not known")
    return (
        f"bucket {bucket['name']}  map {bucket['generation']}/{bucket['revision']}  "
        f"{_many(bucket['replicas'], 'replica')}  {_many(count, 'partition')}, " + ", ".join(parts)
    )


def progress_text(found: Mapping[str, Any]) -> str:
    """Return how far the plan is; empty if there is none."""
    plan = found["plan"]
    if plan is None:
        return ""
    text = f"{plan['kind']} {plan['id']}: {plan['done']} of {plan['partitions']} partitions"
    if plan["index_done"] < plan["index_parts"]:
        text += f", {plan['index_done']} of {plan['index_parts']} index parts"
    if plan["total"]:
        text += f", {100 * plan['copied'] // plan['total']} % copied"
    if plan["unknown"]:
        text += f", {plan['unknown']} not known"
    if plan["left_s"] is not None:
        text += f", {plan['left_s']} s left"
    return text + (", is cancelled" if plan["is_cancelled"] else "")


def show_recovery(found: Mapping[str, Any]) -> None:
    """Print what a recovery has done, or would do."""
    verb = "is rebuilt" if found["is_done"] else "would be rebuilt"
    name, uuid = found["name"], found["cluster"][:_UUID_SHOWN]
    print(f"cluster {name} {uuid} {verb}: generation {found['generation']}")
    for node in found["nodes"]:
        state = "given up" if node["is_given_up"] else "kept"
        print(f" {node['name']}  {node['address']}  {state}")
    for bucket in found["buckets"]:
        print(f" bucket {bucket['name']}: {_many(bucket['partitions'], 'partition')}")
    if found["may_be_lost"]:
        print("may be lost:")
    for text in found["may_be_lost"]:
        print(f" ! {text}")
    if found["is_done"]:
        print("next: `millstream cluster status`; join new nodes, then `cluster rebalance`")


def unserved_of(found: Mapping[str, Any]) -> str:
    """Name the partitions that are not served, or of which that is not known; empty: none."""
    named = [
        f"{len(bad)} partitions of {bucket['name']}"
        for bucket in found["buckets"]
        if bucket["state"] == "open" and (bad := [*bucket["unserved"], *bucket["unknown"]])
    ]
    return ", ".join(named)


def left_of(found: Mapping[str, Any]) -> str:
    """Say what the cluster still does, or has to do; empty: nothing.

    Missing copies count only if there are data nodes enough for all copies, failed ones included.
    """
    hosts = sum("data" in one["roles"] and one["state"] != "out" for one in found["nodes"])
    if found["plan"] is not None:
        return "a rebalance"
    for node in found["nodes"]:
        if node["state"] in ("joining", "leaving"):
            return f"{node['name']} is {node['state']}"
    for bucket in found["buckets"]:
        if bucket["state"] != "open":
            return f"bucket {bucket['name']} is {bucket['state']}"
        count = bucket["partitions"]
        if bucket["served"] < count:
            return f"bucket {bucket['name']}: {bucket['served']} of {count} partitions are served"
        if bucket["whole"] < count and hosts > bucket["replicas"]:
            return f"bucket {bucket['name']}: {bucket['whole']} of {count} have all copies"
    return ""
