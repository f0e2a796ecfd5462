"""The life of one partition's stream; its dialogues are in the tests of the producer."""

import pytest

from millstream.upr.core import stream as stream_module
from millstream.upr.core.decision import Grant
from millstream.upr.core.profile import Profile
from millstream.upr.core.stream import Stream, StreamState
from millstream.wire.mcbp import StreamEndReason
from support.streams.fake_source import FakePartition


def test_a_mark_waits_for_its_turn_to_read_the_log() -> None:
    partition = filled("abc")
    partition.persisted_seqno, partition.marks = 3, [3]
    partition.fill("a")
    stream = stream_of(partition, is_durable_only=True)
    assert stream.step(1, 1, may_backfill=False) == (b"", 0)
    assert partition.logged_holds == {}
    stream.step(1, 1, may_backfill=True)
    assert stream.state is StreamState.BACKFILLING
    assert (stream.sent, stream.memory_after) == (0, 3)
    assert partition.readers == [stream]
    stream.end(StreamEndReason.CLOSED)
    assert partition.readers == []


def stream_of(partition: FakePartition, end: int = 99, **grant: bool) -> Stream:
    profile = Profile(0x20, has_json=True, has_expiry_opcode=True)
    return Stream(
        partition,
        Grant(0, end, 0, 0, **grant),
        0,
        profile,
        has_advances=True,
        skips_deletes=False,
    )


def filled(keys: str, floor: int = 0) -> FakePartition:
    partition = FakePartition(0)
    partition.fill(keys)
    partition.forget_memory(floor)
    return partition


def step(stream: Stream) -> StreamState:
    stream.step(1, 1, may_backfill=True)
    return stream.state


def test_every_move_of_the_table_happens() -> None:
    seen: set[tuple[StreamState, StreamState]] = set()

    def walk(stream: Stream, *events: str) -> None:
        for event in events:
            before = stream.state
            if event == "read":
                while read := stream.take_read():
                    stream.on_chunk(read, next(read.chunks, None))
            elif event == "lose":
                stream.source.lose_holds()
                stream.source.put(b"z", b"")
            elif event == "forget":
                stream.source.forget_memory(stream.source.high_seqno)
            elif event == "end":
                stream.end(StreamEndReason.CLOSED)
            elif event == "deny":
                stream.step(1, 1, may_backfill=False)
            else:
                step(stream)
            if stream.state is not before:
                seen.add((before, stream.state))

    walk(stream_of(filled("ab")), "step", "end")
    walk(stream_of(filled("ab")), "step", "step", "end")
    walk(stream_of(filled("abcd")), "step", "forget", "step", "end")
    walk(stream_of(filled("abcd", 2)), *["step", "read"] * 5)
    walk(stream_of(filled("abcd", 4)), *["step", "read"] * 5)
    walk(stream_of(filled("abcd", 4)), "step", "forget", "lose", "forget", "deny")
    walk(stream_of(filled("")), "end")
    table = {(a, b) for a, moves in stream_module._MOVES.items() for b in moves}
    assert seen == table


def test_an_idle_stream_is_not_ready() -> None:
    partition = filled("a")
    stream = stream_of(partition)
    assert stream.is_ready()
    step(stream)
    assert not stream.is_ready()
    partition.fill("b")
    assert stream.is_ready()


def test_one_chunk_is_read_ahead_and_no_more() -> None:
    stream = stream_of(filled("abcdefgh", 8))
    step(stream)
    read = stream.take_read()
    assert read is not None
    assert stream.take_read() is None
    stream.on_chunk(read, next(read.chunks))
    assert stream.take_read() is None
    step(stream)
    assert stream.take_read() is not None


def test_a_read_that_fails_after_the_end_says_nothing() -> None:
    stream = stream_of(filled("abcd", 4))
    step(stream)
    read = stream.take_read()
    assert read is not None
    stream.end(StreamEndReason.CLOSED)
    stream.on_chunk(read, None)
    assert stream.on_read_failed(read) == b""
    assert stream.is_over


def test_a_stream_ends_once() -> None:
    stream = stream_of(filled("a"))
    stream.end(StreamEndReason.CLOSED)
    with pytest.raises(AssertionError):
        stream.end(StreamEndReason.CLOSED)
