"""`millstream cluster promote`: active copies where these are lost, of maps made by hand.

Invariants:
1. Exit code 0: every partition asked for is served; 1: some are not, or nobody answers.
2. Where acknowledged writes may be lost nothing is done without `--force`, and it is said.

Elsewhere: the promotion itself (`cluster.promoting`), its rules (`cluster.core`); clusters that
do this by themselves (`cli.serving.cluster`).
"""

from __future__ import annotations

import json as json_module
import random
import secrets
import ssl
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    Who,
    at_node,
    connection_of,
)
from millstream.cli.node_http import path_of
from millstream.client.http import HttpClient
from millstream.cluster.core.survey import Outcome
from millstream.cluster.pages import Pages, http_port_of
from millstream.cluster.promoting import Promoter, Report
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.model.bucket_map import BucketMap, NodeAddress, bucket_map_from_json
from millstream.model.position import BRANCH_NOISE_BITS, branch_by_clock

__all__ = ["promote"]

REQUEST_S: Final = 10.0
"""Longest wait for one answer of one node."""
PAUSE_S: Final = 0.2
"""Before a further round, times its number, and a part of it by chance: others wait, too."""

ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="NODE", help="Which node is to have the active copies."),
]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", help="Only this one. May be repeated.", min=0),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Also where acknowledged writes may be lost: says which."),
]
DropOption = Annotated[
    str | None,
    typer.Option(
        "--drop",
        metavar="NODE",
        help="Take this lost node out of the map, so that the copies left are a majority.",
    ),
]


@at_node
def promote(
    bucket: BucketArgument,
    to: ToOption = None,
    partition: PartitionOption = None,
    force: ForceOption = False,
    drop: DropOption = None,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Make copies active by hand, in a bucket whose map was made by hand, and tell all nodes.

    Any node of the bucket can be asked. Partitions that are served are left alone, unless --to
    names another node. It can be run again at any time, and goes on where it was interrupted.
    With --drop the bucket goes on without a lost node: what is acknowledged from then on that
    node does not have, so its copies must not be promoted by themselves later.
    """
    who, tls = at.who, at.tls
    open_pages = partial(_pages, bucket=bucket, who=who, tls=tls)
    content = _map_of(bucket, at.address, who, tls)
    bucket_map = bucket_map_from_json(content)
    promoter = Promoter(str(content.get("uuid")), open_pages, new_branch=_new_branch, pause=_pause)
    wanted = _wanted(bucket_map, partition, to)
    report = promoter.run(bucket_map, wanted, to, is_forced=force, drop=drop)
    if json:
        print(json_module.dumps(_as_json(bucket, report)))
    else:
        _show(bucket, report)
    left = [one for one in report.outcomes if one.what in ("refused", "failed")]
    if left:
        raise UnavailableError(
            f"{len(left)} of {len(report.outcomes)} partitions were not promoted: {left[0].reason}"
        )


def _pages(node: NodeAddress, *, bucket: str, who: Who, tls: ssl.SSLContext | None) -> Pages:
    return Pages(
        node.host, node.http, bucket,
        user=who.user, password=who.password, tls=tls, timeout_s=REQUEST_S,
    )  # fmt: skip


def _map_of(bucket: str, address: str, who: Who, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """Return the map as the node that was named has it.

    Raises:
        ConditionError: `managed`.
    """
    with connection_of(address, who, tls, timeout_s=REQUEST_S) as connection:
        node = NodeAddress("", connection.host, connection.port, http_port_of(connection))
    http = HttpClient(
        node.host, node.http, user=who.user, password=who.password, tls=tls, timeout_s=REQUEST_S
    )
    _refuse_managed(http)
    return _pages(node, bucket=bucket, who=who, tls=tls).ask("GET", "map")


def _refuse_managed(http: HttpClient) -> None:
    try:
        found = http.request("GET", path_of("_millstream", "cluster"))
    except ConditionError:  # `not_managed`; an older node does not know the page
        return
    name = found["cluster"]["name"]
    raise ConditionError(
        f"this node is in the cluster {name!r}, which promotes copies by itself: use `millstream "
        "cluster failover NODE`, or `rebalance` to move partitions",
        code="managed",
    )


def _new_branch() -> int:
    return branch_by_clock(time.time_ns(), secrets.randbits(BRANCH_NOISE_BITS))


def _pause(number: int) -> None:
    time.sleep(PAUSE_S * number * (1 + random.random()))


def _wanted(bucket_map: BucketMap, partitions: list[int] | None, to: str | None) -> list[int]:
    """Return the partitions to look at: with `to`, those it has a place for.

    Raises:
        UsageError: `no_partition`, `unknown_node`, `no_copy_there`.
    """
    rows = bucket_map.rows
    if to is not None and not bucket_map.has_node(to):
        known = ", ".join(node.name for node in bucket_map.nodes)
        raise UsageError(f"the map has no node {to!r}, only {known}", code="unknown_node")
    for p in partitions or ():
        if p >= len(rows):
            raise UsageError(f"there is no partition {p}, only 0 to {len(rows) - 1}")
        if to is not None and to not in rows[p]:
            raise UsageError(f"{to} has no copy of partition {p}", code="no_copy_there")
    every = sorted(set(partitions)) if partitions else range(len(rows))
    return [p for p in every if to is None or to in rows[p]]


# -- printing


def _as_json(bucket: str, report: Report) -> dict[str, Any]:
    return {
        "bucket": bucket,
        "revision": report.revision,
        "partitions": [one._asdict() for one in report.outcomes],
        "silent": dict(report.silent),
    }


def _alike(one: Outcome) -> tuple[str, ...]:
    risk = "acknowledged at " + ", ".join(one.at_risk) if one.at_risk else ""
    is_lost = one.what in ("promoted", "refused")
    what = one.what.replace("_", " ")
    return one.was or "-", one.now or "-", what, risk if is_lost else "", one.reason


def _show(bucket: str, report: Report) -> None:
    console = Console(highlight=False)
    table = Table("partitions", "was", "now", "", "may be lost", "why", box=None)
    outcomes = sorted(report.outcomes, key=lambda one: (_alike(one), one.partition))
    for alike, group in groupby(outcomes, _alike):
        table.add_row(", ".join(_ranges(one.partition for one in group)), *alike)
    console.print(f"bucket {bucket}, map {report.revision}", style="bold")
    console.print(table)
    for name, reason in report.silent.items():
        console.print(f"! {name} took no part: {reason}", style="yellow", soft_wrap=True)


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Yield ascending numbers, runs of them as `first-last`."""
    pairs = enumerate(numbers)
    for _, run in groupby(pairs, lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"
