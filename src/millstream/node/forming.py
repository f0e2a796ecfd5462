"""Makes one cluster of the engines of a machine, over their HTTP ports.

    form(engines, settings): the engines are members, their buckets are there and served

Each step looks at what is, so that a start which was interrupted is gone on with by the next one:

1. Engine 1 makes a cluster, or joins the one of `--join`; the others join that of engine 1. From
   then on a machine that dies counts as one node in the limit of automatic fail-overs.
2. Buckets that must exist are made once, with their partitions on all engines and no replicas.
3. An engine without any copy gets its share by a rebalance, which goes on after the start.

Invariants:
1. A wait ends after its limit. A member that is not served then is told of, and its engines run.

Elsewhere: the pages (`gateway.aio.node.cluster_pages`), the engines (`node.processes.engines`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from millstream.access.users import NODE_USER
from millstream.client.http import HttpClient
from millstream.errors import ConditionError, UnavailableError
from millstream.model.limits import PARTITIONS_DEFAULT
from millstream.node.listeners import peer_tls_context
from millstream.node.settings import BucketSpec, Settings, parse_address

__all__ = ["SERVED_S", "form", "http_of"]

_LOG = logging.getLogger(__name__)
DEFAULT_BUCKET: Final = "default"
CHANGE_S: Final = 300.0
"""Longest wait for an answer of `init` and `join`."""
SERVED_S: Final = 60.0
"""Longest wait until the engines are in step and every partition is served."""
POLL_S: Final = 0.2
_CLUSTER: Final = "/_millstream/cluster"
_BUCKETS: Final = "/_millstream/buckets"


def http_of(settings: Settings, address: str) -> HttpClient:
    """Return the HTTP port of an engine, asked as nodes ask each other.

    Raises:
        UsageError: `bad_certificate`.
    """
    return HttpClient(
        settings.advertised_host, parse_address("http", address).port,
        user=NODE_USER if settings.cluster_secret else None, password=settings.cluster_secret,
        tls=peer_tls_context(settings), timeout_s=CHANGE_S,
    )  # fmt: skip


def form(engines: Sequence[HttpClient], settings: Settings) -> None:
    """Return once the engines are one cluster, or part of one, that serves.

    Args:
        engines: their HTTP ports, that of engine 1 first.
        settings: of all engines.

    Raises:
        MillstreamError: an engine does not answer, or is refused by the cluster.
    """
    first = engines[0]
    new = [engine for engine in engines if not _is_member(engine)]
    if first in new:
        if settings.join is None:
            first.request("POST", f"{_CLUSTER}/init", {})
        else:
            first.request("POST", f"{_CLUSTER}/join", {"address": str(settings.join)})
    # A machine has one vote in coordination.
    roles = [role for role in settings.roles if role != "coord"]
    for engine in new:
        if engine is not first:
            content: dict[str, Any] = {"address": first.address, "roles": roles}
            engine.request("POST", f"{_CLUSTER}/join", content)
    if new:  # else the engines of a dead machine would be more than the one node that may fail
        _ask(first, "settings", {"auto_failover_zones": True})
    own = [str(engine.request("GET", "/_millstream/node")["uuid"]) for engine in engines]
    status = _until_served(first, own)
    if status is not None and _make_buckets(first, settings, status):
        status = _until_served(first, own)
    for node in [] if status is None else status["nodes"]:
        if node["id"] in own and node["state"] == "out":
            _LOG.warning(
                "%s at port %s was removed from the cluster, and serves nothing: stop, delete the "
                "directory of that engine, and start again: it joins anew then",
                node["name"], node["ports"]["http"],
            )  # fmt: skip
    if status is not None and _lacks_copies(status, own):
        _LOG.info("an engine has no copies yet: a rebalance begins")
        _ask(first, "rebalance", {})


def _ask(first: HttpClient, op: str, args: dict[str, Any]) -> None:
    """Ask the orchestrator."""
    first.request("POST", f"{_CLUSTER}/requests", {"op": op, "args": args})


def _is_member(engine: HttpClient) -> bool:
    try:
        engine.request("GET", _CLUSTER)
    except ConditionError as error:
        if error.code != "not_managed":
            raise
        return False
    except UnavailableError as error:
        if error.code == "unreachable":
            raise
    return True  # it may have no quorum yet


def _until_served(first: HttpClient, own: Sequence[str]) -> dict[str, Any] | None:
    """Return the status once all is served; None if it is not in time."""
    until, why = time.monotonic() + SERVED_S, ""
    while time.monotonic() < until:
        try:
            status = first.request("GET", _CLUSTER)
        except UnavailableError as error:
            if error.code == "unreachable":
                raise
            why = str(error)
        else:
            why = _missing(status, own)
            if not why:
                return status
        time.sleep(POLL_S)
    _LOG.warning("after %g s not everything is served: %s", SERVED_S, why)
    return None


def _missing(status: dict[str, Any], own: Sequence[str]) -> str:
    """Return what is waited for; empty: nothing."""
    for node in status["nodes"]:
        if node["id"] in own and node["state"] in ("joining", "in") and not node["is_admitted"]:
            return f"{node['name']} is not in step"
    for bucket in status["buckets"]:
        if bucket["served"] < bucket["partitions"]:
            return f"bucket {bucket['name']}: {bucket['served']} of {bucket['partitions']}"
    return ""


def _make_buckets(first: HttpClient, settings: Settings, status: dict[str, Any]) -> bool:
    """Make the buckets that must exist, and return whether any was missing."""
    known = {bucket["name"] for bucket in status["buckets"]}
    wanted = settings.buckets
    if not wanted and not known and settings.join is None:
        wanted = (BucketSpec(DEFAULT_BUCKET),)
    missing = [spec for spec in wanted if spec.name not in known]
    for name, partitions in missing:
        content = {"partitions": partitions or PARTITIONS_DEFAULT, "replicas": 0}
        first.request("PUT", f"{_BUCKETS}/{quote(name, safe='')}", content)
    return bool(missing)


def _lacks_copies(status: dict[str, Any], own: Sequence[str]) -> bool:
    return bool(status["buckets"]) and any(
        node["id"] in own and node["state"] == "in" and not node["active"] and not node["replica"]
        for node in status["nodes"]
    )
