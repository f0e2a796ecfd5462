from __future__ import annotations

from millstream.upr.core.messages import encode_acknowledgement
from millstream.wire.mcbp import Opcode, Status, request, response
from support.streams.stream_talk import Talk, filled


def named(*, partitions: int = 1) -> Talk:
    """Streams that feed copies on node b, with a no-op each 100 ms."""
    talk = Talk(
        *(filled("ab", p) for p in range(partitions)), is_extended=True, may_take_over=True
    )
    for key, value in (
        ("consumer_name", "b"),
        ("enable_noop", "true"),
        ("set_noop_interval", "0.1"),
    ):
        assert talk.control(key, value) == Status.SUCCESS
    for p in range(partitions):
        assert talk.stream(p).status == Status.SUCCESS
    return talk


def tick(talk: Talk, now_ms: int) -> list[int]:
    """Return the opaques of no-ops."""
    talk.producer.on_tick(now_ms)
    packets = talk.ask(request(Opcode.DCP_NOOP, opaque=99))
    return [packet.opaque for packet in packets if packet.opaque != 99]


def answer(talk: Talk, opaque: int) -> None:
    assert talk.ask(response(Opcode.DCP_NOOP, Status.SUCCESS, opaque)) == []


def test_an_answer_counts_from_when_the_no_op_was_sent() -> None:
    talk = named()
    assert tick(talk, 1000) == [1]
    assert tick(talk, 1400) == [], "one is out"
    answer(talk, 1)
    assert tick(talk, 1500) == [2]
    answer(talk, 1)  # of no no-op that is out
    assert talk.bucket.heard == ["b answers 1000"]


def test_no_ops_come_ten_times_a_second_if_they_are_asked_for_so() -> None:
    talk = named()
    sent = []
    for now in range(0, 1000, 50):
        for opaque in tick(talk, now):
            sent.append(now)
            answer(talk, opaque)
    assert sent == list(range(0, 1000, 100))
    assert talk.producer.tick_ms == 100


def test_a_history_is_accepted_with_the_first_acknowledgement_of_each_stream() -> None:
    talk = named(partitions=2)
    assert talk.bucket.heard == []
    talk.ask(encode_acknowledgement(1, 0, 0))
    talk.ask(encode_acknowledgement(1, 0, 0))
    assert talk.bucket.heard == ["b accepts 1"], "also of a copy that has nothing yet"
    talk.ask(request(Opcode.DCP_CLOSE_STREAM, vbucket=1))
    talk.ask(encode_acknowledgement(1, 0, 0))
    assert talk.bucket.told[-1] == "b left 1"
    talk.stream(1)
    talk.ask(encode_acknowledgement(1, 0, 0))
    assert talk.bucket.heard == ["b accepts 1"] * 2


def test_a_connection_that_feeds_no_copies_is_no_contact() -> None:
    talk = Talk(filled("ab"), is_extended=True)
    talk.control("enable_noop", "true")
    talk.stream()
    (opaque,) = tick(talk, 1000)
    answer(talk, opaque)
    assert talk.bucket.heard == []


def test_an_impossible_acknowledgement_closes_the_connection() -> None:
    talk = named()
    talk.ask(encode_acknowledgement(0, 9, 9))
    assert talk.producer.wants_close
    assert talk.bucket.heard == []
