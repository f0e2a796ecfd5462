from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import StreamError, UnavailableError, UsageError
from millstream.pipelines.sinks import applying, bucket_target
from millstream.pipelines.sinks.applying import apply_changes
from millstream.pipelines.sinks.bucket_target import BucketTarget
from millstream.pipelines.sinks.change_rows import table_of
from millstream.pipelines.sinks.repairing import WHOLE, Applied, Row
from millstream.upr.core.repair import LoadState
from support.kv.bucket_double import FalseBucket
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import DictTarget, FalseOrigin


class Frame:
    """A DataFrame as far as it is used; counts how often it is read."""

    def __init__(self, rows: list[Row]) -> None:
        self.table = table_of(rows)
        self.reads = 0

    @property
    def sparkSession(self) -> Any:
        """Tells the query."""
        context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": "q"}.get)
        return SimpleNamespace(sparkContext=context)

    @property
    def columns(self) -> list[str]:
        return list(self.table.schema.names)

    def select(self, *names: str) -> Frame:
        self.table = self.table.select(names)
        return self

    def toArrow(self) -> Any:
        self.reads += 1
        return self.table


class Origin(FalseOrigin):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Origin:
    origin = Origin(FalseNode(1))
    monkeypatch.setattr(applying, "BucketOrigin", lambda _: origin)
    return origin


def test_a_batch_is_read_once_and_counted(source: Origin) -> None:
    frame: Any = Frame([Row("put", 0, 1, 1, "a", value=b"1"), Row("expire", 0, 1, 2, "b")])
    target = DictTarget()
    assert apply_changes(frame, 0, target, {"bucket": "b"}) == Applied(puts=1, deletions=1)
    assert frame.reads == 1
    assert target.live(0) == {"a": b"1"}
    assert target.committed == [0]
    assert target.entered == [(0, "q")]
    assert source.is_closed


def test_nothing_is_asked_for_a_frame_of_other_columns() -> None:
    frame: Any = Frame([])
    frame.select("op", "key")
    with pytest.raises(UsageError, match="is missing"):
        apply_changes(frame, 0, DictTarget(), {"bucket": "b"})
    with pytest.raises(UsageError, match="unknown option"):
        apply_changes(Frame([]), 0, DictTarget(), {"bucket": "b", "path": "x"})  # type: ignore[arg-type]


def test_an_unavailable_target_gets_the_batch_again(
    source: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = FalseBucket()
    monkeypatch.setattr(bucket_target, "open_again", lambda _: bucket)
    monkeypatch.setattr(bucket_target, "live_keys", bucket.live_keys)
    target = BucketTarget({"bucket": "copy"})
    frame: Any = Frame([Row("put", 0, 1, n, f"k{n}", value=b"1") for n in range(1, 4)])
    for number, fail_after in enumerate(range(8)):
        bucket.fail_after = fail_after
        bucket.deleted.clear()
        assert apply_changes(frame, number, target, {"bucket": "b"}) == Applied(puts=3)
        assert {"k1", "k2", "k3"} <= bucket.durable.keys()
        bucket.crash()
    assert bucket.refreshed >= 4
    bucket.fail_after = 2
    briefly = {"bucket": "b", "reconnectTimeout": "1ms"}
    with pytest.raises(UnavailableError, match=r"told to \(tried again for 0\.001 s: reconnect"):
        apply_changes(frame, 9, target, briefly)
    assert apply_changes(frame, 9, target, {"bucket": "b"}) == Applied(puts=3)


def test_a_partition_that_moves_while_a_repair_reads_it_is_read_again(
    source: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query ended instead, with "the lease is not held any more"."""
    errors = [StreamError("it moves", code=code) for code in ("lease_lost", "stream_ended")]
    whole = source.everything

    def moving(partition: int) -> Any:
        rows = whole(partition)
        if errors:
            raise errors.pop()
        return rows

    monkeypatch.setattr(source, "everything", moving)
    target = DictTarget()
    target.states = {0: LoadState(floor=2), WHOLE: LoadState()}
    frame: Any = Frame([Row("rollback", 0, 1, 1)])
    assert apply_changes(frame, 1, target, {"bucket": "b"}).rollbacks == 1
    assert not errors
    assert target.committed == [1]


def test_a_wait_is_not_repeated(source: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def away(_: Any) -> Any:
        asked.append(1)
        raise UnavailableError("the source is away", retry="never")

    monkeypatch.setattr(source, "positions", away)
    frame: Any = Frame([Row("put", 0, 1, 1, "a", value=b"1")])
    with pytest.raises(UnavailableError, match="the source is away"):
        apply_changes(frame, 0, DictTarget(), {"bucket": "b"})
    assert len(asked) == 1
