from __future__ import annotations

import pytest

from millstream.client.extensions import LeaseHold
from millstream.pipelines.change_stream import timestamps
from millstream.pipelines.change_stream.options import parse_options
from millstream.wire.frames import deletion, mutation

OPTIONS = parse_options({"bucket": "b"}, {})


def put(partition_id: int, seqno: int, cas: int) -> bytes:
    return mutation(partition_id, b"k%d" % seqno, b"", seqno, 1, cas, 0, 0, 0)


@pytest.mark.parametrize(
    ("time_ns", "purged", "expected"),
    [
        (0, 0, {0: 0, 1: 2}),
        (50, 0, {0: 1, 1: 2}),  # 3 is older than 2: its CAS came with it
        (71, 0, {0: 3, 1: 2}),
        (2**63 + 1, 0, {0: 4, 1: 2}),
        (2**80, 0, {0: 4, 1: 4}),
        (50, 1, {0: 1, 1: 2}),
        (50, 2, {0: 0, 1: 2}),
        (50, 3, {0: 0, 1: 0}),
    ],
)
def test_partitions_begin_at_the_first_change_since_a_time(
    monkeypatch: pytest.MonkeyPatch, time_ns: int, purged: int, expected: dict[int, int]
) -> None:
    chunks = [
        put(0, 1, 40) + put(0, 2, 70) + put(1, 3, 2**64 - 2),
        put(0, 3, 30) + deletion(0, b"d", 4, 1, 80, 0),
    ]
    monkeypatch.setattr(timestamps, "pinned_chunks", lambda *_, **__: chunks)
    leases = {p: LeaseHold(1, p, 4, 9, 1, purged) for p in (0, 1)}
    assert timestamps.seqnos_before(OPTIONS, leases, time_ns) == expected


def test_without_changes_nothing_is_read() -> None:
    assert timestamps.seqnos_before(OPTIONS, {}, 5) == {}
