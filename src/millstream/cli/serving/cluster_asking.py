"""Asks a cluster through one of its nodes, and waits until it has done what was asked.

Invariants:
1. A wait ends after its limit; what was asked for goes on.
2. While a node cannot tell the status it is asked again: it may be about to be replaced.

Elsewhere: the commands (`cli.serving.cluster`, `cli.serving.cluster_up`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from millstream.cli.node_http import path_of
from millstream.cli.serving.cluster_output import left_of, progress_text
from millstream.client.http import HttpClient
from millstream.errors import UnavailableError

__all__ = ["ANSWER_S", "WAIT_S_MAX", "ask_cluster", "settled", "status_of"]

ANSWER_S: Final = 45.0
"""Longest wait of the node for the orchestrator."""
WAIT_S_MAX: Final = 86_400.0
"""Longest wait for a rebalance."""
POLL_S: Final = 0.5
_SLACK_S: Final = 15.0


def status_of(http: HttpClient) -> dict[str, Any]:
    """Return the status of the cluster.

    Raises:
        ConditionError: `not_managed`.
        UnavailableError: `no_quorum`, `unreachable`.
    """
    return http.request("GET", path_of("_millstream", "cluster"), timeout_s=ANSWER_S)


def ask_cluster(http: HttpClient, op: str, args: dict[str, Any]) -> dict[str, Any]:
    """Have the orchestrator do something; return its answer.

    Raises:
        MillstreamError: what it, or the node, refused.
        UnavailableError: `timeout`: nobody answered; it may still be done.
    """
    content = {"op": op, "args": args, "timeout_s": ANSWER_S}
    path = path_of("_millstream", "cluster", "requests")
    return http.request("POST", path, content, timeout_s=ANSWER_S + _SLACK_S)


def settled(
    http: HttpClient,
    *,
    timeout_s: float = WAIT_S_MAX,
    watch: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Wait until nothing is under way, and return the status; progress goes to stderr.

    Args:
        http: of the node that is asked.
        timeout_s: longest wait.
        watch: called now and then; what it raises ends the wait.

    Raises:
        UnavailableError: `stalled`; `timeout`: it is still under way.
    """
    until, told = time.monotonic() + timeout_s, ""
    while True:
        watch()
        try:
            found = status_of(http)
        except UnavailableError as error:
            left = str(error)
        else:
            left = left_of(found)
            if not left:
                return found
            _check_stalled(found)
            left = progress_text(found) or left
        if time.monotonic() >= until:
            raise UnavailableError(f"it is still under way: {left}", code="timeout")
        if left != told:
            print(left, file=sys.stderr, flush=True)
            told = left
        time.sleep(POLL_S)


def _check_stalled(found: dict[str, Any]) -> None:
    plan = found["plan"]
    stalled = plan["stalled"] if plan is not None else None
    if stalled:
        first = stalled[0]
        raise UnavailableError(
            f"{len(stalled)} partitions do not get on, the others do; bucket {first['bucket']} "
            f"partition {first['partition']}: {first['why']}",
            code="stalled",
        )
