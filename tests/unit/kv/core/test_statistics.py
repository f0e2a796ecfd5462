from __future__ import annotations

from typing import NamedTuple

import pytest

from millstream.kv.core.statistics import Histogram, Published, as_text
from support.kv.log_double import NOW, new_bucket


class Figures(NamedTuple):
    keys: int
    share: float
    sizes: Histogram
    refused_total: dict[str, int]


@pytest.fixture
def sizes() -> Histogram:
    histogram = Histogram((1.0, 4.0, 16.0))
    for value in (0.5, 1, 2, 4, 5, 100):
        histogram.observe(value)
    return histogram


def test_a_histogram_counts_by_class(sizes: Histogram) -> None:
    assert sizes.count == 6
    assert sizes.sum == 112.5
    assert sizes.cumulated() == [("1", 2), ("4", 4), ("16", 5), ("+Inf", 6)]


def test_groups_are_read_when_somebody_asks(sizes: Histogram) -> None:
    published, keys = Published(), [1]
    published.add("cache", lambda: Figures(keys[0], 0.25, sizes, {"locked": 3}))
    keys[0] = 2
    assert "cache" in published
    assert "other" not in published
    figures = published.read("cache")
    assert figures == published.read()
    assert figures["cache_keys"] == 2
    assert dict(as_text(figures)) == {
        "cache_keys": "2", "cache_share": "0.25", "cache_refused_total_locked": "3",
        "cache_sizes_count": "6", "cache_sizes_sum": "112.5",
    }  # fmt: skip
    assert dict(as_text(figures, with_classes=True))["cache_sizes_le_4"] == "4"


def test_a_bucket_publishes_what_it_is() -> None:
    bucket = new_bucket()
    partition = bucket.partitions[1]
    partition.put(b"k", b"1", 0, 0, 0, 0, NOW)
    partition.put(b"k", b"2", 0, 0, 0, 0, NOW)
    partition.freeze()
    partition.persisted(2)
    partition.put(b"other", b"1", 0, 0, 0, 0, NOW)
    partition.lock(b"k", 15, NOW)
    assert bucket.leases.open([(1, None)], 60) is not None
    figures = bucket.published.read()
    wanted = {
        "changes_high": 3, "changes_persisted": 2, "changes_unflushed": 1,
        "documents_in_memory": 2, "queue_seqnos": 3, "leases_held": 1, "locks_held": 1,
        "locks_taken_total": 1, "readers_streams": 0, "readers_lag": 0,
    }  # fmt: skip
    assert {name: figures[name] for name in wanted} == wanted
    assert figures["queue_bytes"] == sum(p.queue.bytes_held for p in bucket.partitions)
