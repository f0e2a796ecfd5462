"""Taking a partition over, as its source sees it: what is sent when, and what each answer does."""

import pytest

from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.upr.core import takeover as takeover_module
from millstream.upr.core.takeover import (
    PATIENCE_MS,
    TAKE_OVER_SEND_MS_MAX,
    TAKE_OVER_TICK_MS,
    TakeOverStream,
)
from millstream.wire.mcbp import (
    Opcode,
    Packet,
    SnapshotFlag,
    Status,
    StreamFlag,
    request,
    response,
)
from support.streams.fake_source import FakePartition
from support.streams.stream_talk import OPAQUE, Talk, filled, packets_of, words

TAKE_OVER = int(StreamFlag.TAKEOVER)
ACTIVE, PENDING, DEAD = PartitionState.ACTIVE, PartitionState.PENDING, PartitionState.DEAD
MARKER, SET_STATE = Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE


class TakingOver(Talk):
    """A peer that takes partition 0 over and answers when the test says so."""

    def __init__(self, *partitions: FakePartition, **options: bool) -> None:
        super().__init__(*partitions, **{"may_take_over": True, **options})

    def begin(self, **options: int) -> int:
        return self.stream(**{"flags": TAKE_OVER, **options}).status

    def answer(self, opcode: int, status: int = Status.SUCCESS, opaque: int = OPAQUE) -> None:
        self.producer.on_packet(packets_of(response(opcode, status, opaque))[0])

    def stop(self, *, has_stopped: bool = True) -> None:
        """What the shell does with the copies to be stopped; there must be one."""
        (stream,) = self.producer.take_stops()
        if has_stopped:
            assert stream.epoch == self.partition.epoch
            self.partition.state = DEAD
        self.producer.on_stopped(stream, has_stopped=has_stopped)

    def sent(self) -> str:
        return " ".join(map(said, self.packets()))

    @property
    def is_claimed(self) -> bool:
        return bool(self.bucket.take_overs)


def said(packet: Packet) -> str:
    if packet.opcode == SET_STATE:
        return f"be {PartitionState(packet.extras[0]).name.lower()}"
    return words(packet)


def announced(keys: str = "ab") -> TakingOver:
    """A take-over whose reader was told to be pending."""
    talk = TakingOver(filled(keys))
    assert talk.begin() == Status.SUCCESS
    talk.packets()
    talk.answer(MARKER)
    assert talk.sent() == "be pending"
    return talk


# -- the course of it


def test_everything_is_sent_confirmed_stopped_and_handed_over() -> None:
    talk = TakingOver(filled("ab"))
    assert talk.begin() == Status.SUCCESS
    assert talk.sent() == "[0,2] memory+ack a1 b2"
    assert talk.sent() == ""
    talk.answer(MARKER)
    assert talk.sent() == "be pending"
    talk.partition.fill("c")
    assert talk.sent() == ""
    talk.answer(SET_STATE)
    talk.partition.fill("d")
    assert talk.sent() == ""
    talk.stop()
    assert talk.sent() == "[3,4] memory+ack c3 d4"
    talk.answer(MARKER)
    assert talk.sent() == "be active"
    assert talk.is_claimed
    talk.answer(SET_STATE)
    assert talk.sent() == "end 0"
    assert not talk.is_claimed
    assert talk.partition.state is DEAD
    assert not talk.partition.holds
    assert not talk.partition.readers


def test_an_empty_partition_is_handed_over_without_a_snapshot() -> None:
    talk = TakingOver()
    talk.begin()
    assert talk.sent() == "be pending"
    talk.answer(SET_STATE)
    talk.stop()
    assert talk.sent() == "be active"
    talk.answer(SET_STATE)
    assert talk.sent() == "end 0"


def test_what_comes_from_the_log_needs_no_answer_what_follows_does() -> None:
    partition = filled("abc")
    partition.forget_memory(3)
    talk = TakingOver(partition)
    talk.begin()
    assert talk.sent() == "[0,3] disk a1 b2 c3 be pending"
    talk = TakingOver(partition)
    talk.begin()
    while not (data := talk.producer.produce()):
        talk.read_log()
    partition.fill("d")
    sent = " ".join(map(said, packets_of(data))) + " " + talk.sent()
    assert sent == "[0,3] disk a1 b2 c3 [4,4] memory+checkpoint+ack d4"
    talk.answer(MARKER)
    assert talk.sent() == "be pending"


def test_changes_while_it_catches_up_come_before_the_announcement() -> None:
    talk = TakingOver(filled("ab"))
    talk.begin()
    assert talk.sent() == "[0,2] memory+ack a1 b2"
    talk.partition.fill("c")
    talk.answer(MARKER)
    assert talk.sent() == "[3,3] memory+ack c3"
    talk.partition.fill("d")
    assert talk.sent() == "[4,4] memory+ack d4"
    talk.answer(MARKER)
    assert talk.sent() == ""
    talk.answer(MARKER)
    assert talk.sent() == "be pending"


def test_a_snapshot_that_goes_on_after_a_lost_hold_is_answered_once() -> None:
    talk = TakingOver(filled("abcd"))
    talk.control("connection_buffer_size", "60")
    talk.begin()
    assert talk.sent() == "[0,4] memory+ack a1"
    talk.partition.lose_holds()
    talk.partition.fill("e")
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == "[0,5] disk+ack b2 c3 d4 e5"
    talk.answer(MARKER)
    assert talk.sent() == "be pending"


def test_states_are_counted_in_flow_control_and_wait_for_it() -> None:
    talk = TakingOver()
    talk.control("connection_buffer_size", "25")
    talk.begin()
    assert talk.sent() == "be pending"
    assert talk.producer.unacked_bytes == 25
    talk.answer(SET_STATE)
    talk.stop()
    assert talk.sent() == ""
    talk.producer.on_packet(
        packets_of(request(Opcode.DCP_BUFFER_ACK, extras=(25).to_bytes(4, "big")))[0]
    )
    assert talk.sent() == "be active"


# -- what is refused


@pytest.mark.parametrize(
    "options",
    [
        {"end": 7},
        {"flags": TAKE_OVER | StreamFlag.DISK_ONLY},
        {"flags": TAKE_OVER | StreamFlag.TO_LATEST},
        {"flags": TAKE_OVER | StreamFlag.FROM_LATEST},
        {"as_of": 2},
        {"lease": 5},
    ],
)
def test_a_take_over_of_a_part_is_refused(options: dict[str, int]) -> None:
    talk = TakingOver(filled("ab"), is_extended=True)
    assert talk.begin(**options) == Status.EINVAL
    assert not talk.is_claimed


def test_durable_only_connections_take_nothing_over() -> None:
    talk = TakingOver(is_extended=True)
    assert talk.control("durable_only", "true") == Status.SUCCESS
    assert talk.begin() == Status.EINVAL


def test_only_active_copies_are_taken_over_and_by_administrators() -> None:
    talk = TakingOver()
    talk.partition.state = PartitionState.REPLICA
    assert talk.begin() == Status.NOT_MY_VBUCKET
    assert TakingOver(may_take_over=False).begin() == Status.EACCESS


def test_a_copy_that_was_promised_elsewhere_is_not_handed_over() -> None:
    talk = TakingOver()
    talk.partition.last_branch = 2
    assert talk.begin() == Status.ETMPFAIL
    talk.partition.last_branch = 1
    assert talk.begin() == Status.SUCCESS


def test_one_stream_takes_a_partition_over_at_a_time() -> None:
    talk, other = TakingOver(), TakingOver()
    other.bucket = talk.bucket
    other.producer._take_overs._bucket = other.producer._bucket = talk.bucket
    talk.begin()
    assert other.begin() == Status.EBUSY
    talk.producer.close()
    assert other.begin() == Status.SUCCESS


def test_opaques_of_take_overs_differ() -> None:
    talk = TakingOver(FakePartition(0), FakePartition(1))
    assert talk.begin() == Status.SUCCESS
    assert talk.begin(partition_id=1) == Status.EINVAL
    assert talk.begin(partition_id=1, opaque=7) == Status.SUCCESS


# -- what goes wrong


@pytest.mark.parametrize("opcode", [MARKER, SET_STATE])
def test_a_reader_that_refuses_ends_it_and_nothing_has_changed(opcode: Opcode) -> None:
    talk = announced() if opcode == SET_STATE else TakingOver(filled("ab"))
    if opcode == MARKER:
        talk.begin()
        talk.packets()
    talk.answer(opcode, Status.ETMPFAIL)
    assert talk.sent() == "end 2"
    assert talk.producer.take_stops() == []
    assert talk.partition.state is ACTIVE
    assert not talk.is_claimed


def test_a_reader_that_refuses_to_be_active_leaves_the_source_dead() -> None:
    talk = announced()
    talk.answer(SET_STATE)
    talk.stop()
    assert talk.sent() == "be active"
    talk.answer(SET_STATE, Status.ETMPFAIL)
    assert talk.sent() == "end 2"
    assert talk.partition.state is DEAD


def test_a_copy_that_cannot_be_stopped_stays_as_it_was() -> None:
    talk = announced()
    talk.answer(SET_STATE)
    talk.stop(has_stopped=False)
    assert talk.sent() == "end 2"
    assert talk.partition.state is ACTIVE
    assert not talk.is_claimed


def test_a_copy_that_became_something_else_is_not_handed_over() -> None:
    talk = announced()
    talk.answer(SET_STATE)
    (stream,) = talk.producer.take_stops()
    talk.partition.state = PartitionState.REPLICA
    talk.producer.on_stopped(stream, has_stopped=True)
    assert talk.sent() == "end 2"


def test_a_promise_made_while_it_was_stopped_ends_it() -> None:
    talk = announced()
    talk.answer(SET_STATE)
    talk.stop()
    talk.partition.last_branch = 9
    assert talk.sent() == "end 2"


@pytest.mark.parametrize("has_announced", [True, False])
def test_another_history_ends_it(has_announced: bool) -> None:
    talk = announced() if has_announced else TakingOver(filled("ab"))
    if not has_announced:
        talk.begin()
    talk.partition.failover_log = (FailoverEntry(77, 1, 5), *talk.partition.failover_log)
    talk.partition.last_branch = 5
    assert talk.sent() == "end 2"
    assert not talk.is_claimed


def test_a_dead_copy_that_changes_again_ends_it() -> None:
    talk = announced()
    talk.answer(SET_STATE)
    talk.stop()
    talk.partition.state = PartitionState.REPLICA
    assert talk.sent() == "end 2"


def test_answers_to_nothing_do_nothing() -> None:
    talk = TakingOver(filled("ab"))
    talk.begin()
    talk.answer(SET_STATE)
    talk.answer(MARKER, opaque=99)
    assert talk.sent() == "[0,2] memory+ack a1 b2"
    talk.answer(SET_STATE)
    talk.answer(MARKER)
    talk.answer(MARKER)
    talk.answer(MARKER, Status.EINVAL)
    assert talk.sent() == "be pending"
    talk.answer(SET_STATE)
    talk.answer(SET_STATE)
    talk.answer(SET_STATE, Status.EINVAL)
    talk.stop()
    assert talk.sent() == "be active"


def test_a_connection_lost_while_the_copy_is_stopped_says_nothing_more() -> None:
    talk = announced()
    talk.answer(SET_STATE)
    (stream,) = talk.producer.take_stops()
    talk.producer.close()
    assert not talk.is_claimed
    talk.partition.state = DEAD
    talk.producer.on_stopped(stream, has_stopped=True)
    assert talk.sent() == ""


def test_a_stream_closed_before_the_copy_was_stopped_is_not_stopped() -> None:
    talk = announced()
    talk.answer(SET_STATE)
    replies = talk.ask(request(Opcode.DCP_CLOSE_STREAM))
    assert replies[0].status == Status.SUCCESS
    assert talk.producer.take_stops() == []
    assert not talk.is_claimed


# -- writers that are quicker than the reader


def test_writers_are_held_back_until_the_reader_has_caught_up() -> None:
    talk = TakingOver(filled("ab"))
    talk.begin()
    assert talk.producer.tick_ms == TAKE_OVER_TICK_MS
    talk.packets()
    talk.producer.on_tick(1_000)
    talk.producer.on_tick(1_000 + TAKE_OVER_SEND_MS_MAX - 1)
    assert talk.bucket.held_back == set()
    talk.producer.on_tick(1_000 + TAKE_OVER_SEND_MS_MAX)
    assert talk.bucket.held_back == {0}
    talk.answer(MARKER)
    assert talk.sent() == "be pending"
    assert talk.bucket.held_back == set()
    talk.producer.on_tick(10 * TAKE_OVER_SEND_MS_MAX)
    assert talk.bucket.held_back == set()


def test_steady_writers_cannot_put_it_off() -> None:
    talk = TakingOver(filled("ab"))
    talk.begin()
    talk.packets()
    talk.producer.on_tick(0)
    talk.partition.fill("c")
    talk.answer(MARKER)
    assert talk.sent() == "[3,3] memory+ack c3"
    talk.producer.on_tick(PATIENCE_MS)
    talk.partition.fill("d")
    assert talk.sent() == "[4,4] memory+ack d4 be pending"
    for _ in range(2):
        talk.answer(MARKER)
    talk.partition.fill("e")
    talk.answer(SET_STATE)
    talk.stop()
    assert talk.sent() == "[5,5] memory+ack e5"
    talk.producer.on_tick(2 * PATIENCE_MS)
    assert talk.sent() == ""
    talk.answer(MARKER)
    assert talk.sent() == "be active"


def test_a_reader_that_is_far_behind_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_module, "UNANSWERED_SEQNOS_MAX", 2)
    talk = TakingOver(filled("ab"))
    talk.begin()
    talk.packets()
    talk.producer.on_tick(0)
    talk.producer.on_tick(PATIENCE_MS)
    talk.partition.fill("c")
    assert talk.sent() == "[3,3] memory+ack c3"
    talk.answer(MARKER)
    assert talk.sent() == "be pending"


def test_snapshots_that_may_be_unanswered_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_module, "UNANSWERED_MAX", 2)
    talk = TakingOver(filled("a"))
    talk.begin()
    assert talk.sent() == "[0,1] memory+ack a1"
    talk.partition.fill("b")
    assert talk.sent() == "[2,2] memory+ack b2"
    talk.partition.fill("c")
    assert talk.sent() == ""
    talk.answer(MARKER)
    assert talk.sent() == "[3,3] memory+ack c3"
    talk.partition.state = DEAD
    assert talk.sent() == "end 2"


def test_reading_the_log_holds_nobody_back() -> None:
    partition = filled("abc")
    partition.forget_memory(3)
    talk = TakingOver(partition)
    talk.begin()
    talk.producer.produce()
    talk.producer.on_tick(0)
    talk.producer.on_tick(TAKE_OVER_SEND_MS_MAX)
    assert talk.bucket.held_back == set()


def test_writers_are_not_held_back_by_a_stream_that_is_gone() -> None:
    talk = TakingOver(filled("ab"))
    talk.begin()
    talk.packets()
    talk.producer.on_tick(0)
    talk.producer.on_tick(TAKE_OVER_SEND_MS_MAX)
    assert talk.bucket.held_back == {0}
    talk.producer.close()
    assert talk.bucket.held_back == set()
    assert talk.producer.progress(0) is None


def test_its_progress_is_told() -> None:
    talk = announced()
    assert talk.producer.progress(0) == ("takeover-announced", 2)
    assert talk.producer.progress(1) is None


def test_a_stream_of_another_kind_asks_for_no_answers() -> None:
    talk = TakingOver(filled("ab"))
    assert talk.stream().status == Status.SUCCESS
    marker = talk.packets()[0]
    assert not int.from_bytes(marker.extras[16:], "big") & SnapshotFlag.ACK
    assert not isinstance(talk.producer._streams[0], TakeOverStream)
