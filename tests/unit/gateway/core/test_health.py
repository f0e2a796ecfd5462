"""Reasons why a node is not healthy."""

import pytest

from millstream.gateway.core.api.node import BucketStatus, NodeMetrics
from millstream.gateway.core.health import (
    CERTIFICATE_SOON_MS,
    DISK_FREE_BYTES_LOW,
    health_of,
    state_of,
)

READY = BucketStatus("orders", "0" * 32, 4, "", "ready")
FAILED = BucketStatus("lost", "1" * 32, 4, "", "failed", "segment 3 is damaged")
STATUS = {"orchestrator": {"name": "n1"}, "nodes": [], "buckets": [], "plan": None, "notes": []}


def codes(node=None, bucket=None, cluster=None, error="", buckets=(READY,)):
    metrics = NodeMetrics(node or {}, {"orders": bucket or {}})
    return [(one.severity, one.code) for one in health_of(buckets, metrics, cluster, error)]


def test_a_node_without_reasons_is_healthy():
    assert codes(cluster=STATUS) == []
    assert state_of([]) == "ok"


def test_a_failed_bucket_is_named_with_its_reason():
    (found,) = health_of([READY, FAILED], NodeMetrics({}, {}), None)
    assert (found.severity, found.code, found.bucket) == ("failed", "bucket_failed", "lost")
    assert "segment 3 is damaged" in found.what
    assert state_of([found]) == "failed"


@pytest.mark.parametrize(
    ("node", "bucket", "wanted"),
    [
        ({"coord_process_up": 0.0}, {}, ("failed", "coordination_down")),
        ({"coord_process_up": 1.0}, {}, None),
        ({"index_process_up": 0.0}, {"index_indexes": 2}, ("failed", "index_process_down")),
        ({"index_process_up": 0.0}, {"index_indexes": 0}, None),
        ({"coord_groups_impaired": 1.0}, {}, ("warning", "group_impaired")),
        ({}, {"memory_is_refusing": 1}, ("failed", "memory_exhausted")),
        ({}, {"memory_is_refusing": 0}, None),
        ({}, {"serving_isolated_partitions": 3}, ("failed", "isolated")),
        ({}, {"disk_free_bytes": DISK_FREE_BYTES_LOW - 1}, ("warning", "disk_nearly_full")),
        ({}, {"disk_free_bytes": DISK_FREE_BYTES_LOW}, None),
    ],
)
def test_figures(node, bucket, wanted):
    assert codes(node, bucket) == ([wanted] if wanted else [])


def test_a_cluster_that_is_not_known_is_a_failure():
    assert codes(error="no quorum") == [("failed", "cluster_unknown")]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"orchestrator": None}, ("warning", "no_orchestrator")),
        (
            {"nodes": [{"name": "n2", "state": "in", "has_session": False}]},
            ("warning", "node_away"),
        ),
        (
            {"nodes": [{"name": "n2", "has_session": True, "has_space": False}]},
            ("warning", "node_without_space"),
        ),
        (
            {"buckets": [{"name": "b", "unserved": [1, 2], "unknown": []}]},
            ("failed", "partitions_unserved"),
        ),
        (
            {"buckets": [{"name": "b", "unserved": [], "unknown": [7]}]},
            ("failed", "partitions_unknown"),
        ),
        (
            {"plan": {"stalled": [{"bucket": "b", "partition": 5, "why": "n2 is full"}]}},
            ("warning", "rebalance_stalled"),
        ),
        ({"plan": {"stalled": []}}, None),
        ({"plan": {"stalled": None}}, None),
        ({"notes": ["zone a has no nodes"]}, ("warning", "note")),
    ],
)
def test_the_cluster(change, wanted):
    assert codes(cluster=STATUS | change) == ([wanted] if wanted else [])


@pytest.mark.parametrize(
    ("left_ms", "wanted"),
    [
        (CERTIFICATE_SOON_MS, None),
        (CERTIFICATE_SOON_MS - 1, ("warning", "certificate_ends")),
        (0, ("failed", "certificate_ended")),
        (None, ("warning", "certificate_unknown")),
    ],
)
def test_certificates(left_ms, wanted):
    ends = {"http": None if left_ms is None else 1000 + left_ms}
    found = health_of([], NodeMetrics({}, {}), None, certificates=ends, now_ms=1000)
    assert [(one.severity, one.code) for one in found] == ([wanted] if wanted else [])


def test_the_worst_comes_first():
    found = codes({"coord_groups_impaired": 1.0}, {"memory_is_refusing": 1})
    assert [severity for severity, _ in found] == ["failed", "warning"]


def test_every_reason_says_what_to_do_and_leaves_out_what_is_empty():
    metrics = NodeMetrics({"coord_disk_full": 1.0}, {"orders": {"memory_is_refusing": 1}})
    for one in health_of([FAILED], metrics, STATUS | {"orchestrator": None}):
        shown = one.shown()
        assert shown.keys() >= {"severity", "code", "what", "do"}
        assert shown["what"].endswith((".", one.bucket and "damaged"))
        assert "" not in shown.values()
