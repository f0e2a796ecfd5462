"""Staged rows: what was put in comes out, under its own name only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.writes import Write
from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.pipelines.sinks import staging
from millstream.pipelines.sinks.staging import (
    STAGED_SECONDS,
    Segment,
    chunk_keys,
    rows_of_chunk,
    stage,
)
from support.pipelines.sink_bucket import SinkBucketDouble

ROWS = st.lists(
    st.builds(
        Write,
        key=st.binary(min_size=1, max_size=250),
        value=st.none() | st.binary(max_size=400),
        flags=st.integers(0, 2**32 - 1),
        datatype=st.integers(0, 1),
        expiry=st.integers(0, 2**32 - 1),
        cas=st.just(0),
        is_insert=st.just(False),
    ),
    max_size=20,
)


def read(bucket: SinkBucketDouble, segment: Segment) -> list[list[Write]]:
    keys = chunk_keys("s", segment)
    found = bucket.get_many(keys)
    return [rows_of_chunk(key, found[key]) for key in keys]


@given(ROWS, st.integers(1, 2_000), st.integers(1, 5))
def test_rows_come_back_in_their_order(rows: list[Write], chunk_bytes: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(staging, "CHUNK_ROWS_MAX", most)
        bucket = SinkBucketDouble()
        segment = stage(bucket, "s", "0.0.0.t", iter(rows))
        bucket.crash()
        chunks = read(bucket, segment)
    assert [row for chunk in chunks for row in chunk] == rows
    assert (segment.chunks, segment.rows) == (len(chunks), len(rows))
    assert all(0 < len(chunk) <= most for chunk in chunks)
    sizes = [[len(r.key) + len(r.value or b"") + 40 for r in chunk] for chunk in chunks]
    assert all(len(chunk) == 1 or sum(chunk) <= chunk_bytes for chunk in sizes)


def test_staged_rows_expire() -> None:
    bucket = SinkBucketDouble()
    segment = stage(bucket, "s", "0.0.0.t", [Write(b"k", b"1")])
    bucket.now = STAGED_SECONDS
    assert not bucket.get_many(chunk_keys("s", segment))


def test_only_a_chunk_of_this_name_has_rows() -> None:
    bucket = SinkBucketDouble()
    segment = stage(bucket, "s", "0.0.0.t", [Write(b"k", b"1")])
    (key,) = chunk_keys("s", segment)
    chunk = bucket.get_many([key])[key]
    for wrong in (chunk.data[:-1], b"", chunk.data[:-1] + b"\x01"):
        with pytest.raises(CorruptionError, match=r"0\.0\.0\.t/0"):
            rows_of_chunk(key, chunk._replace(data=wrong))
    with pytest.raises(CorruptionError) as failed:
        rows_of_chunk(b"other", chunk)
    assert failed.value.code == "bad_chunk"


def test_staging_waits_for_an_unavailable_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS_MAX", 1)
    monkeypatch.setattr(staging, "CHUNKS_AT_ONCE", 2)
    rows = [Write(b"k%d" % n, b"1") for n in range(5)]
    for effect in range(5):
        bucket = SinkBucketDouble()
        bucket.break_at(effect, loses=True, times=2)
        segment = stage(bucket, "s", "0.0.0.t", iter(rows))
        bucket.crash()
        assert [row for chunk in read(bucket, segment) for row in chunk] == rows


def test_rows_that_cannot_be_staged_are_refused() -> None:
    bucket = SinkBucketDouble()
    bucket.reconnect_s = 0.0
    with pytest.raises(UsageError, match="row 'long': a transactional sink takes"):
        stage(bucket, "s", "n", [Write(b"long", bytes(staging.ROW_BYTES_MAX))])
    bucket.refusals[chunk_keys("s", Segment("n", 1, 1))[0]] = UnavailableError("full")
    with pytest.raises(UnavailableError, match="full"):
        stage(bucket, "s", "n", [Write(b"k", b"1")])
