"""Health of a node and its cluster: reasons in sentences, and what to do.

Invariants:
1. What is not known is a reason, too; it is never taken for healthy.
2. A reason about a bucket names it, so that only those see it who may see the bucket.

Elsewhere: the page (`gateway.aio.node.observing_pages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from millstream.gateway.core.api.node import BucketStatus, NodeMetrics

__all__ = ["CERTIFICATE_SOON_MS", "DISK_FREE_BYTES_LOW", "Reason", "health_of", "state_of"]

DISK_FREE_BYTES_LOW: Final = 2 * 1024**3
_DAY_MS: Final = 86_400_000
CERTIFICATE_SOON_MS: Final = 30 * _DAY_MS
"""A certificate that ends within this time is a reason."""
Severity = Literal["warning", "failed"]


class Reason(NamedTuple):
    """Why a node is not healthy."""

    severity: Severity
    code: str
    what: str
    do: str
    bucket: str = ""
    """Empty: of the node or the cluster."""
    node: str = ""
    """The other node that it is about."""

    def shown(self) -> dict[str, str]:
        """Return it as an object; what is empty is left out."""
        return {name: value for name, value in self._asdict().items() if value}


class _Rule(NamedTuple):
    figure: str
    severity: Severity
    code: str
    what: str
    """With `{n}`, the figure."""
    do: str
    is_bad_at_zero: bool = False


_NODE_RULES: Final = (
    _Rule(
        "index_process_up", "failed", "index_process_down",
        "The index process does not run: views are not answered.",
        "It is started again by itself. If this lasts, look at the logs of the index process.",
        is_bad_at_zero=True,
    ),
    _Rule(
        "coord_process_up", "failed", "coordination_down",
        "The coordination process does not run on this node.",
        "It is started again by itself. If this lasts, look at the logs of the coord process.",
        is_bad_at_zero=True,
    ),
    _Rule(
        "coord_groups_diverged", "failed", "group_diverged",
        "The state of {n} coordination groups here differed from that of other members.",
        "This is a fault of Millstream: save a support archive and report it.",
    ),
    _Rule(
        "coord_groups_stuck", "failed", "group_stuck",
        "{n} coordination groups do not work on this node.",
        "Look at the page Coordination for the reason of each group.",
    ),
    _Rule(
        "coord_groups_impaired", "warning", "group_impaired",
        "{n} coordination groups have no quorum, or no primary that can be reached.",
        "Start the members that are away. The page Coordination names them.",
    ),
    _Rule(
        "coord_nodes_refused", "failed", "node_refused",
        "{n} nodes are refused: an older directory, or a second copy of one, was started.",
        "Stop the copy. A directory that was set back is put aside, and the node joins anew.",
    ),
    _Rule(
        "coord_disk_full", "failed", "coordination_disk_full",
        "Coordination waits for space on the disk.", "Make room on the disk.",
    ),
    _Rule(
        "replicator_jobs_crashing", "warning", "replication_crashing",
        "{n} replications failed and wait for another try.", "The page Sites has their errors.",
    ),
)  # fmt: skip
_BUCKET_RULES: Final = (
    _Rule(
        "memory_is_refusing", "failed", "memory_exhausted",
        "Bucket {bucket} refuses writes: its memory quota is used up.",
        "Raise its quota, or write more slowly.",
    ),
    _Rule(
        "copies_dead", "warning", "copies_dead",
        "{n} copies of bucket {bucket} on this node serve nothing.",
        "Rebalance the cluster, or remove these copies.",
    ),
    _Rule(
        "serving_isolated_partitions", "failed", "isolated",
        "{n} partitions of bucket {bucket} may not be served by this node: it has lost contact.",
        "Look at the network between the nodes. They are served again by themselves.",
    ),
    _Rule(
        "majority_impossible", "warning", "no_majority",
        "{n} partitions of bucket {bucket} have too few copies for writes with durability.",
        "Start the nodes that are away, or rebalance the cluster.",
    ),
    _Rule(
        "index_map_errors", "warning", "map_errors",
        "Map functions of bucket {bucket} failed on {n} documents.",
        "The page Query shows which: try the function on documents.",
    ),
    _Rule(
        "index_broken", "warning", "design_broken",
        "{n} design documents or indexes of bucket {bucket} are broken: their views fail.",
        "A view of one tells the error, and so do the logs of the index process. Mend the design.",
    ),
)  # fmt: skip


def health_of(
    buckets: Sequence[BucketStatus],
    metrics: NodeMetrics,
    cluster: Mapping[str, Any] | None,
    cluster_error: str = "",
    *,
    certificates: Mapping[str, int | None] | None = None,
    now_ms: int = 0,
) -> list[Reason]:
    """Return why a node is not healthy, the worst first; empty if it is.

    Args:
        buckets: of the node.
        metrics: of the node.
        cluster: status of its cluster; None: it is in none, or the status is not known.
        cluster_error: why the status is not known.
        certificates: listener -> when its certificate ends, in milliseconds of Unix time; None:
            not known.
        now_ms: Unix time.
    """
    found = [*_of_buckets(buckets), *_of_figures(metrics)]
    found += _of_certificates(certificates or {}, now_ms)
    if cluster_error:
        found.append(
            Reason(
                "failed", "cluster_unknown",
                f"The state of the cluster is not known: {cluster_error}.",
                "Start the nodes that keep its state, or recover the cluster.",
            )
        )  # fmt: skip
    if cluster is not None:
        found += _of_cluster(cluster)
    return sorted(found, key=lambda one: (one.severity != "failed", one.code, one.bucket))


def state_of(reasons: Sequence[Reason]) -> Literal["ok", "warning", "failed"]:
    """Return the worst severity."""
    if any(one.severity == "failed" for one in reasons):
        return "failed"
    return "warning" if reasons else "ok"


def _of_certificates(certificates: Mapping[str, int | None], now_ms: int) -> Iterator[Reason]:
    do = "Start the node with a new certificate: --tls-cert and --tls-key."
    for listener, ends_ms in certificates.items():
        if ends_ms is None:
            yield Reason(
                "warning", "certificate_unknown",
                f"The listener {listener} did not show its certificate.",
                "Look at its certificate by hand.",
            )  # fmt: skip
        elif ends_ms <= now_ms:
            what = f"The certificate of the listener {listener} has ended."
            yield Reason("failed", "certificate_ended", what, do)
        elif ends_ms - now_ms < CERTIFICATE_SOON_MS:
            days = (ends_ms - now_ms) // _DAY_MS
            what = f"The certificate of the listener {listener} ends in {days} days."
            yield Reason("warning", "certificate_ends", what, do)


def _of_buckets(buckets: Sequence[BucketStatus]) -> Iterator[Reason]:
    for one in buckets:
        if one.state == "failed":
            yield Reason(
                "failed", "bucket_failed", f"Bucket {one.name} is not served: {one.reason}",
                "`millstream check` says what is damaged, and which command repairs it.", one.name,
            )  # fmt: skip


def _of_figures(metrics: NodeMetrics) -> Iterator[Reason]:
    has_indexes = any(figures.get("index_indexes") for figures in metrics.buckets.values())
    for rule in _NODE_RULES:
        value = metrics.node.get(rule.figure)
        if rule.figure == "index_process_up" and not has_indexes:
            continue  # it is started with the first design document
        if value is not None and (value == 0) == rule.is_bad_at_zero:
            yield Reason(rule.severity, rule.code, rule.what.format(n=f"{value:.0f}"), rule.do)
    least_free: float | None = None
    for bucket, figures in metrics.buckets.items():
        free = figures.get("disk_free_bytes")
        if isinstance(free, float | int):
            least_free = free if least_free is None else min(free, least_free)
        for rule in _BUCKET_RULES:
            count = figures.get(rule.figure)
            if isinstance(count, float | int) and count > 0:
                what = rule.what.format(n=f"{count:.0f}", bucket=bucket)
                yield Reason(rule.severity, rule.code, what, rule.do, bucket)
    if least_free is not None and least_free < DISK_FREE_BYTES_LOW:
        yield Reason(
            "warning", "disk_nearly_full",
            f"The disk of the data directory has {least_free / 1024**2:.0f} MiB left.",
            "Make room: on a full disk writes wait, and indexes and compaction stop.",
        )  # fmt: skip


def _of_cluster(status: Mapping[str, Any]) -> Iterator[Reason]:
    if status.get("orchestrator") is None:
        yield Reason(
            "warning", "no_orchestrator", "No node leads the cluster now.",
            "One takes over by itself. If this lasts, look at the nodes that keep its state.",
        )  # fmt: skip
    for node in status.get("nodes", ()):
        name = str(node.get("name") or node.get("id"))
        if node.get("has_session") is False:
            yield Reason(
                "warning", "node_away", f"Node {name} does not answer; its state is "
                f"{node.get('state')}.", "Start it again, or remove it.", node=name,
            )  # fmt: skip
        elif node.get("has_space") is False:
            yield Reason(
                "warning", "node_without_space", f"The disk of node {name} is nearly full.",
                "Make room there: it takes no more copies.", node=name,
            )  # fmt: skip
    for bucket in status.get("buckets", ()):
        yield from _of_cluster_bucket(bucket)
    plan = status.get("plan")
    if plan and (stalled := plan.get("stalled")):
        first = stalled[0]
        yield Reason(
            "warning", "rebalance_stalled",
            f"The rebalance waits in {len(stalled)} partitions, for partition "
            f"{first['partition']} of bucket {first['bucket']}: {first['why']}.",
            "The page Cluster shows the plan; it can be cancelled there.",
        )  # fmt: skip
    for note in status.get("notes", ()):
        yield Reason("warning", "note", str(note), "The page Cluster shows what can be done.")


def _of_cluster_bucket(bucket: Mapping[str, Any]) -> Iterator[Reason]:
    name = str(bucket.get("name"))
    for member, what in (("unserved", "served by no node"), ("unknown", "of unknown state")):
        count = bucket.get(member)
        count = len(count) if isinstance(count, list) else count
        if count:
            yield Reason(
                "failed", f"partitions_{member}",
                f"{count} partitions of bucket {name} are {what}.",
                "Start the nodes that are away. The page Cluster shows the partitions.", name,
            )  # fmt: skip
