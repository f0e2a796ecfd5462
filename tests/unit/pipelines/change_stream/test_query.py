from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.errors import RollbackRequiredError, UnavailableError, UsageError
from millstream.pipelines.change_stream import control, query
from millstream.pipelines.change_stream.offsets import (
    Offset,
    OffsetEntry,
    offset_from_json,
    offset_to_json,
)
from millstream.pipelines.change_stream.options import Edge, SourceOptions
from millstream.pipelines.change_stream.query import Query
from support.pipelines.node_double import FalseClient, FalseNode


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FalseNode:
    node = FalseNode(2)
    for key in range(5):
        node.write(0, key, key)
    monkeypatch.setattr(control, "open_client", lambda _: FalseClient(node))
    return node


@pytest.fixture
def make_query(node: FalseNode) -> Iterator[type]:
    made: list[Query] = []

    def make(starting_offsets: Edge = "earliest", poll_ms: int = 0) -> Query:
        options = SourceOptions(
            hosts="h", bucket="b", starting_offsets=starting_offsets, poll_ms=poll_ms
        )
        made.append(Query(options))
        return made[-1]

    yield make  # type: ignore[misc]
    for each in made:
        each.stop()


def test_earliest_is_before_the_first_change(make_query: type) -> None:
    offset = offset_from_json(make_query().initial_offset())
    assert offset == Offset("b", "b0b0", {0: OffsetEntry(), 1: OffsetEntry()}, "")


def test_latest_is_the_present_end_and_is_logged_before_anything_is_read(
    make_query: type, node: FalseNode
) -> None:
    running = make_query("latest")
    start = running.initial_offset()
    entry = offset_from_json(start).entry(0)
    assert (entry.seqno, entry.is_closed) == (5, True)
    node.write(0, 9, 9)
    assert running.latest_offset(start, None) == start
    end = offset_from_json(running.latest_offset(start, None))
    assert end.entry(0).seqno == 6


def test_latest_is_not_the_beginning_where_durability_is_not_known(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.partitions[0].durable_seqno = 0
    monkeypatch.setattr(FalseClient, "nodes", ("here", "there"))
    running = Query(
        SourceOptions(
            hosts="h", bucket="b", starting_offsets="latest", is_durable_only=True, reconnect_s=0
        )
    )
    with pytest.raises(UnavailableError, match="durable"):
        running.initial_offset()
    node.partitions[0].durable_seqno = 4
    assert offset_from_json(running.initial_offset()).entry(0).seqno == 4
    running.stop()


def test_an_offset_as_start_is_taken_if_it_is_of_this_bucket(make_query: type) -> None:
    entry = OffsetEntry(1, 3, 3, 3, 1)
    offset = make_query(Offset("b", "b0b0", {1: entry})).initial_offset()
    assert offset_from_json(offset).entries == {0: OffsetEntry(), 1: entry}
    with pytest.raises(UsageError, match="another bucket, or one that was created anew"):
        make_query(Offset("b", "cafe", {})).initial_offset()


def test_the_start_comes_back_when_nothing_is_new_in_time(make_query: type) -> None:
    running = make_query(poll_ms=30)
    start = running.initial_offset()
    end = running.latest_offset(start, None)
    closed = running.latest_offset(end, None)
    assert running.latest_offset(closed, None) is closed


def test_a_change_ends_the_wait(
    make_query: type, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = make_query("latest", poll_ms=60_000)
    closed = running.latest_offset(running.initial_offset(), None)
    monkeypatch.setattr(query.time, "sleep", lambda _: node.write(1, 1, 1))
    end = offset_from_json(running.latest_offset(closed, None))
    assert end.entry(1).seqno == 1


def test_a_change_is_not_behind_a_batch_that_only_closes(
    make_query: type, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = make_query("latest", poll_ms=60_000)
    closed = running.latest_offset(running.initial_offset(), None)
    node.write(0, 9, 9)
    read = running.latest_offset(closed, None)
    assert not offset_from_json(read).entry(0).is_closed
    waits = iter([lambda: None, lambda: node.write(1, 1, 1)])
    monkeypatch.setattr(query.time, "sleep", lambda _: next(waits)())
    end = offset_from_json(running.latest_offset(read, None))
    assert (end.entry(0).is_closed, end.entry(1).seqno) == (True, 1)
    assert not list(waits)


def test_an_open_snapshot_is_closed_after_the_wait(make_query: type, node: FalseNode) -> None:
    running = make_query("latest", poll_ms=30)
    node.write(0, 9, 9)
    start = running.latest_offset(running.initial_offset(), None)
    node.write(0, 8, 8)
    read = running.latest_offset(start, None)
    closed = running.latest_offset(read, None)
    assert offset_from_json(closed).entry(0).is_closed
    assert running.latest_offset(closed, None) is closed
    assert not node.partitions[0].leases


def test_an_available_now_run_does_not_wait(
    make_query: type, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = make_query(poll_ms=60_000)
    running.prepare_available_now()
    monkeypatch.setattr(query.time, "sleep", lambda _: pytest.fail("it waits"))
    start = running.initial_offset()
    while (end := running.latest_offset(start, 2)) != start:
        node.write(0, 1, 1)
        start = end
    assert offset_from_json(end).entry(0).seqno == 5


def test_a_checkpoint_of_another_bucket_is_refused(make_query: type) -> None:
    other = offset_to_json(Offset("b", "cafe", {}))
    with pytest.raises(UsageError, match="the offset is one of bucket 'b'") as caught:
        make_query().latest_offset(other, None)
    assert caught.value.code == "other_bucket"
    with pytest.raises(UsageError, match="not an offset of the millstream source"):
        make_query().latest_offset({}, None)


def test_a_lost_tail_is_raised(make_query: type, node: FalseNode) -> None:
    running = make_query()
    offset = running.latest_offset(running.initial_offset(), None)
    node.partitions[0].fail_over(2)
    with pytest.raises(RollbackRequiredError) as caught:
        running.latest_offset(offset, None)
    assert (caught.value.partition_id, caught.value.seqno) == (0, 0)


def test_the_high_offset_is_the_present(make_query: type, node: FalseNode) -> None:
    offset = offset_from_json(make_query().high_offset())
    position = node.positions()[0]
    assert offset.entry(0) == OffsetEntry(position.uuid, 5, 5, 5, position.branch)


def test_a_node_that_is_away_ends_no_query_and_the_progress_says_what_is_waited_for(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FalseClient(node)
    monkeypatch.setattr(control, "open_client", lambda _: client)
    running = Query(SourceOptions(hosts="h", bucket="b", poll_ms=0))
    start = running.initial_offset()
    known = running.high_offset()
    client.failures = [UnavailableError("h:1 refuses connections")]
    end = running.latest_offset(start, None)  # before its first answer it waits in the call
    assert offset_from_json(end).entry(0).seqno == 5
    monkeypatch.setattr(query, "WAIT_STEP_S", 0.001)
    client.failures = [UnavailableError("h:1 refuses connections")] * 9
    first = running.latest_offset(end, None)
    assert first == end | {"waits": 1}, "to Spark not the end of what is there"
    assert running.high_offset() == known | {"waiting": "h:1 refuses connections"}
    second = running.latest_offset(first, None)
    assert second == end | {"waits": 2}
    client.failures = []
    monkeypatch.undo()
    node.write(0, 8, 8)
    assert "waits" not in running.latest_offset(second, None)
    known = running.high_offset()
    assert "waiting" not in known
    client.failures = [UnavailableError("cut")]
    assert running.high_offset() == known | {"waiting": "cut"}
    running.stop()


def test_a_run_that_ends_with_what_is_there_waits_in_the_call(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FalseClient(node)
    monkeypatch.setattr(control, "open_client", lambda _: client)
    running = Query(SourceOptions(hosts="h", bucket="b", poll_ms=0))
    start = running.initial_offset()
    client.failures = [UnavailableError("away")] * 3
    running.prepare_available_now()
    client.failures = [UnavailableError("away")] * 3
    assert offset_from_json(running.latest_offset(start, None)).entry(0).seqno == 5
    running.stop()


def test_a_wait_that_is_over_ends_the_query(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FalseClient(node)
    monkeypatch.setattr(control, "open_client", lambda _: client)
    running = Query(SourceOptions(hosts="h", bucket="b", poll_ms=0, reconnect_s=0))
    start = running.initial_offset()
    client.failures = [UnavailableError("away")]
    with pytest.raises(UnavailableError, match="away"):
        running.latest_offset(start, None)
    running.stop()


def test_a_checkpoint_goes_on_only_with_the_options_that_choose_what_is_read(
    make_query: type, node: FalseNode
) -> None:
    running = make_query()
    start = running.initial_offset()
    end = running.latest_offset(start, None)
    for options, message in {
        SourceOptions(hosts="h", bucket="b", key_prefix="a"): "keyPrefix '', not 'a'",
        SourceOptions(hosts="h", bucket="b", partition_ids=(1,)): "partitions 0-1, not 1:",
    }.items():
        other = Query(options)
        with pytest.raises(UsageError, match=message) as refused:
            other.latest_offset(end, None)
        assert refused.value.code == "other_options"
        other.stop()
    old = {name: value for name, value in end.items() if name != "keyPrefix"}
    prefixed = Query(SourceOptions(hosts="h", bucket="b", key_prefix="a"))
    node.write(0, 7, 7)  # a release before did not log the prefix: it is logged from now on
    assert prefixed.latest_offset(old, None)["keyPrefix"] == "a"
    prefixed.stop()
