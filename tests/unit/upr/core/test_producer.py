"""Dialogues with a producer: packets in, bytes out, over a bucket of plain lists."""

from collections.abc import Callable
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.model.limits import STREAM_STEP_ITEMS_MAX, UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core import producer as producer_module
from millstream.upr.core.messages import encode_acknowledgement
from millstream.wire.frames import change_of
from millstream.wire.mcbp import (
    Datatype,
    Opcode,
    OpenFlag,
    SnapshotFlag,
    Status,
    StreamEndReason,
    StreamFlag,
    request,
    response,
)
from support.budget import budget
from support.streams.fake_source import FakePartition
from support.streams.stream_talk import BEGINNING, OPAQUE, Talk, filled, packets_of, words

# -- requests


def test_a_granted_request_is_answered_with_the_failover_log() -> None:
    talk = Talk(filled("ab"))
    talk.partition.fail_over(1)
    reply = talk.stream()
    assert reply.status == Status.SUCCESS
    assert reply.opaque == OPAQUE
    assert reply.value.hex() == "000000000000a0020000000000000001000000000000a0010000000000000000"


def test_a_rollback_is_answered_with_eight_bytes() -> None:
    talk = Talk(filled("abcde"))
    uuid = talk.partition.failover_log[0].uuid
    reply = talk.stream(at=Position(uuid, 9, 9, 9))
    assert (reply.status, reply.value) == (Status.ROLLBACK, (5).to_bytes(8, "big"))
    assert talk.producer.last_rollback == (0, 9, 5)


def test_how_old_the_oldest_unsent_change_is() -> None:
    talk = Talk(filled("abc"))
    talk.stream()
    (position,) = talk.producer.positions()
    (first, *_), _ = talk.partition.memory_slice(0, 3, 1 << 20, 3) or ([b""], 0)
    assert position[4:] == (3, change_of(first).cas)
    talk.packets()
    (position,) = talk.producer.positions()
    assert position[4:] == (0, None)


def test_on_which_branch_a_stream_is() -> None:
    talk = Talk(filled("abcde"))
    oldest = talk.partition.failover_log[0]
    talk.partition.failover_log = (FailoverEntry(7, 3, 3), oldest)
    talk.stream(end=3)
    (position,) = talk.producer.positions()
    assert position[2:4] == (0, oldest.uuid)
    talk = Talk(filled("abcde"))
    talk.partition.failover_log = (FailoverEntry(7, 3, 3), oldest)
    talk.stream()
    talk.packets()
    (position,) = talk.producer.positions()
    assert position[2:4] == (5, 7)


def test_a_request_and_its_rollback_byte_for_byte() -> None:
    talk = Talk(*(filled("abcde", number) for number in range(9)))
    uuid = talk.partition.failover_log[0].uuid
    asked = (
        "80530000300000080000003000001000000000000000000000000010000000000000000000000007"
        f"ffffffffffffffff{uuid:016x}00000000000000070000000000000007"
    )
    talk.producer.on_packet(packets_of(bytes.fromhex(asked))[0])
    wanted = "8153000000000023000000080000100000000000000000000000000000000005"
    assert talk.producer.take_replies().hex() == wanted


@pytest.mark.parametrize(
    ("at", "options", "status"),
    [
        (Position(0, 0, 0, 0), {"partition_id": 7}, Status.NOT_MY_VBUCKET),
        (Position(1, 5, 5, 5), {"end": 4}, Status.ERANGE),
        (Position(1, 5, 6, 7), {}, Status.ERANGE),
        (Position(1, 5, 3, 4), {}, Status.ERANGE),
        (Position(), {"flags": 0x8000}, Status.EINVAL),
        (Position(), {"flags": 0x08}, Status.EINVAL),
        (Position(), {"flags": StreamFlag.TAKEOVER}, Status.EACCESS),
        (Position(), {"flags": StreamFlag.CACHE_TRANSFER}, Status.NOT_SUPPORTED),
    ],
)
def test_refused_requests(at: Position, options: dict[str, int], status: int) -> None:
    assert Talk(filled("abc")).stream(at=at, **options).status == status


def test_a_partition_is_streamed_once_on_a_connection() -> None:
    talk = Talk(filled("abc"))
    assert talk.stream().status == Status.SUCCESS
    assert talk.stream().status == Status.KEY_EEXISTS
    assert talk.ask(request(Opcode.DCP_CLOSE_STREAM))[0].status == Status.SUCCESS
    assert talk.stream().status == Status.SUCCESS


def test_who_asks_the_wrong_copy_gets_the_map() -> None:
    talk = Talk(filled("abc"), config=lambda: b'{"rev":7}')
    talk.partition.state = PartitionState.ABSENT
    for reply in (talk.stream(), talk.ask(request(Opcode.DCP_GET_FAILOVER_LOG))[0]):
        assert reply.status == Status.NOT_MY_VBUCKET
        assert (reply.value, reply.datatype) == (b'{"rev":7}', Datatype.JSON)


def test_a_copy_that_is_about_to_change_asks_for_patience() -> None:
    talk = Talk(filled("abc"))
    talk.partition.is_suspended = True
    assert talk.stream().status == Status.ETMPFAIL
    talk.partition.is_suspended = False
    assert talk.stream().status == Status.SUCCESS


@pytest.mark.parametrize("state", [PartitionState.PENDING, PartitionState.DEAD])
def test_only_active_and_replica_copies_are_streamed(state: PartitionState) -> None:
    talk = Talk(filled("abc"))
    talk.partition.state = state
    assert talk.stream().status == Status.NOT_MY_VBUCKET
    talk.partition.state = PartitionState.REPLICA
    assert talk.stream(flags=StreamFlag.ACTIVE_ONLY).status == Status.NOT_MY_VBUCKET
    assert talk.stream().status == Status.SUCCESS


def test_failover_log_on_its_own() -> None:
    talk = Talk(filled("abc"))
    reply = talk.ask(request(Opcode.DCP_GET_FAILOVER_LOG, opaque=5))[0]
    assert (reply.status, reply.opaque, len(reply.value)) == (Status.SUCCESS, 5, 16)
    reply = talk.ask(request(Opcode.DCP_GET_FAILOVER_LOG, vbucket=9))[0]
    assert reply.status == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize(
    ("opcode", "extras", "statuses"),
    [
        (Opcode.DCP_CLOSE_STREAM, b"", [Status.KEY_ENOENT]),
        (Opcode.DCP_OPEN, bytes(8), [Status.EINVAL]),
        (Opcode.DCP_ADD_STREAM, bytes(4), [Status.EINVAL]),
        (Opcode.BARRIER, bytes(4), [Status.UNKNOWN_COMMAND]),
        (Opcode.DCP_STREAM_REQ, bytes(47), [Status.EINVAL]),
        (Opcode.DCP_BUFFER_ACK, bytes(3), [Status.EINVAL]),
        (Opcode.DCP_BUFFER_ACK, bytes(4), []),
        (Opcode.DCP_SEQNO_ACKNOWLEDGED, bytes(8), []),
        (Opcode.DCP_SEQNO_ACKNOWLEDGED, b"", [Status.EINVAL]),
        (Opcode.DCP_NOOP, b"", [Status.SUCCESS]),
    ],
)
def test_other_requests(opcode: int, extras: bytes, statuses: list[int]) -> None:
    talk = Talk()
    assert [packet.status for packet in talk.ask(request(opcode, extras=extras))] == statuses
    assert not talk.producer.wants_close


def test_a_peer_that_plays_the_producer_is_cut_off() -> None:
    talk = Talk()
    assert talk.ask(request(Opcode.DCP_MUTATION, extras=bytes(31), key=b"k")) == []
    assert talk.producer.wants_close


# -- acknowledgements


def acknowledge(talk: Talk, complete_end: int, persisted_end: int | None = None) -> None:
    assert talk.ask(encode_acknowledgement(0, complete_end, persisted_end)) == []


def named(keys: str = "abc", at: Position = BEGINNING, *, is_extended: bool = True) -> Talk:
    """A stream that feeds the copy on node b."""
    talk = Talk(filled(keys), is_extended=is_extended, may_take_over=True)
    assert talk.control("consumer_name", "b") == Status.SUCCESS
    assert talk.stream(at=at).status == Status.SUCCESS
    return talk


def test_who_names_itself_is_told_to_the_bucket_while_its_stream_lasts() -> None:
    talk = named()
    talk.sent()
    acknowledge(talk, 3, 0)
    acknowledge(talk, 3, 3)
    talk.ask(request(Opcode.DCP_CLOSE_STREAM))
    acknowledge(talk, 3, 3)  # was on its way
    talk.stream()
    talk.producer.close()
    talk.producer.close()
    assert talk.bucket.told == [
        "b joined 0", "b has 3 0 of 0", "b has 3 3 of 0", "b left 0", "b joined 0", "b left 0",
    ]  # fmt: skip
    assert not talk.producer.wants_close


def test_a_stream_that_ends_by_itself_leaves() -> None:
    talk = named()
    talk.sent()
    talk.partition.fail_over(2)
    assert talk.sent() == "end 6"
    assert talk.bucket.told == ["b joined 0", "b left 0"]


def test_who_does_not_name_itself_acknowledges_nothing() -> None:
    assert Talk().control("consumer_name", "b") == Status.EACCESS
    talk = Talk(filled("abc"), is_extended=True, may_take_over=True)
    talk.stream()
    talk.sent()
    acknowledge(talk, 9, 9)
    assert talk.control("consumer_name", "b") == Status.SUCCESS
    acknowledge(talk, 3, 3)  # its stream was asked for before
    assert talk.bucket.told == []
    assert not talk.producer.wants_close


def test_the_standard_form_counts_for_memory() -> None:
    talk = named(is_extended=False)
    talk.sent()
    acknowledge(talk, 3)
    assert talk.ask(encode_acknowledgement(0, 3, 3))[0].status == Status.EINVAL
    assert talk.bucket.told == ["b joined 0", "b has 3 0 of 0"]
    talk = named()
    talk.sent()
    acknowledge(talk, 3, 2)
    acknowledge(talk, 3)
    assert talk.bucket.told[-1] == "b has 3 2 of 0"


def test_a_copy_inside_a_snapshot_has_what_was_before_it() -> None:
    talk = named("abcde")
    talk.partition.fill("f")
    uuid = talk.partition.failover_log[0].uuid
    talk = named("abcdef", Position(uuid, 4, 2, 5))
    acknowledge(talk, 2, 0)
    assert not talk.producer.wants_close
    acknowledge(talk, 4, 0)
    assert talk.producer.wants_close


def test_a_copy_is_told_that_somebody_waits_for_its_disk() -> None:
    def flags(talk: Talk) -> list[int]:
        talk.partition.fill("a")
        markers = [p for p in talk.packets() if p.opcode == Opcode.DCP_SNAPSHOT_MARKER]
        return [
            int.from_bytes(marker.extras[16:], "big") & SnapshotFlag.AWAITED for marker in markers
        ]

    talk = named()
    talk.partition.awaited_seqno = 3
    assert flags(talk) == [SnapshotFlag.AWAITED]
    assert flags(talk) == [0], "that was sent"
    talk.partition.awaited_seqno = 6
    assert flags(talk) == [SnapshotFlag.AWAITED]
    for other in (named(is_extended=False), Talk(filled("a"), is_extended=True)):
        other.stream()
        other.partition.awaited_seqno = 9
        assert flags(other) == [0]


@pytest.mark.parametrize("ends", [(4, 3), (3, 4), (2, 2), (3, 1)])
def test_an_acknowledgement_that_cannot_be_true_closes_the_connection(
    ends: tuple[int, int],
) -> None:
    talk = named()
    talk.sent()
    acknowledge(talk, 3, 2)
    talk.partition.fill("a")
    told = list(talk.bucket.told)
    acknowledge(talk, *ends)
    assert talk.producer.wants_close
    assert talk.bucket.told == told


# -- snapshots


def test_a_snapshot_from_memory_has_each_key_once() -> None:
    talk = Talk(filled("abac"))
    talk.stream()
    assert talk.sent() == "[0,4] memory b2 a3 c4"
    talk.partition.fill("aB")
    assert talk.sent() == "[5,6] memory a5 B6"
    assert talk.sent() == ""
    assert talk.partition.holds == {}


def test_a_later_memory_marker_starts_at_its_first_change() -> None:
    talk = Talk(filled("a"))
    talk.stream()
    talk.sent()
    talk.partition.fill("bbb")
    assert talk.sent() == "[4,4] memory b4"


def test_a_stream_goes_on_from_a_complete_position() -> None:
    talk = Talk(filled("abcd"))
    uuid = talk.partition.failover_log[0].uuid
    talk.stream(at=Position(uuid, 2, 2, 2))
    assert talk.sent() == "[2,4] memory c3 d4"


def test_a_stream_resumed_inside_a_snapshot_reaches_its_end() -> None:
    talk = Talk(filled("abcdab"))
    uuid = talk.partition.failover_log[0].uuid
    talk.stream(at=Position(uuid, 3, 0, 5))
    assert talk.sent() == "[0,6] memory d4 a5 b6"


def test_from_the_log_then_from_memory_in_one_snapshot() -> None:
    talk = Talk(filled("abcdef"))
    talk.partition.forget_memory(4)
    talk.stream()
    assert talk.sent() == "[0,6] disk a1 b2 c3 d4 e5 f6"
    talk.partition.fill("g")
    assert talk.sent() == "[7,7] memory+checkpoint g7"
    talk.partition.fill("h")
    assert talk.sent() == "[8,8] memory h8"


def test_a_later_disk_marker_starts_right_after_what_was_sent() -> None:
    talk = Talk(filled("ab"))
    talk.stream()
    talk.sent()
    talk.partition.fill("ccde")
    talk.partition.forget_memory(5)
    assert talk.sent() == "[3,6] disk c4 d5 e6"


def test_the_floor_may_pass_a_stream_in_mid_snapshot() -> None:
    talk = Talk(filled("abcdef"))
    talk.control("connection_buffer_size", "45")
    talk.stream()
    assert " ".join(words(p) for p in packets_of(talk.producer.produce() or b"")) == (
        "[0,6] memory a1"
    )
    talk.partition.forget_memory(5)
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == "b2 c3 d4 e5 f6"


def test_what_is_superseded_after_the_end_was_frozen_is_still_sent() -> None:
    talk = Talk(filled("abc"))
    talk.control("connection_buffer_size", "45")
    talk.stream()
    assert "a1" in words(packets_of(talk.producer.produce() or b"")[1])
    talk.partition.fill("bb")
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == "b2 c3 [5,5] memory b5"


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_after_a_lost_hold_the_next_marker_continues_the_snapshot(is_on_disk: bool) -> None:
    talk = Talk(filled("abc"))
    talk.control("connection_buffer_size", "45")
    talk.stream()
    assert "a1" in words(packets_of(talk.producer.produce() or b"")[1])
    talk.partition.fill("ab")
    if is_on_disk:
        talk.partition.forget_memory(5)
    talk.partition.lose_holds()
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == "[0,5] disk c3 a4 b5"
    talk.partition.fill("d")
    assert talk.sent() == "[6,6] memory+checkpoint d6"


def test_a_lost_hold_while_the_log_is_read() -> None:
    talk = Talk(filled("abcdef"))
    talk.partition.forget_memory(6)
    talk.stream()
    assert not talk.producer.produce()
    stale = talk.producer.take_reads()[0]
    talk.partition.fill("a")
    talk.partition.lose_holds()
    talk.producer.on_news()
    assert not talk.producer.produce()
    fresh = talk.producer.take_reads()[0]
    talk.producer.on_chunk(stale, next(stale.chunks))
    talk.producer.on_chunk(fresh, next(fresh.chunks))
    assert talk.sent() == "[0,7] disk b2 c3 d4 e5 f6 a7"


def test_a_log_that_cannot_be_read_ends_the_stream() -> None:
    talk = Talk(filled("ab"))
    talk.partition.forget_memory(2)
    talk.stream()
    talk.producer.produce()
    talk.producer.on_read_failed(talk.producer.take_reads()[0])
    assert talk.sent() == f"end {StreamEndReason.BACKFILL_FAILED}"
    assert talk.stream().status == Status.SUCCESS


def test_few_streams_read_the_log_at_a_time() -> None:
    partitions = [filled("abc", number) for number in range(10)]
    for partition in partitions:
        partition.forget_memory(3)
    talk = Talk(*partitions)
    for number in range(10):
        talk.stream(number)
    talk.producer.produce()
    assert len(talk.producer.take_reads()) == producer_module.BACKFILLS_MAX
    assert len(partitions[9].holds) == 0


def test_reads_that_were_given_up_count_until_they_are_done() -> None:
    partitions = [filled("abc", number) for number in range(10)]
    for partition in partitions:
        partition.forget_memory(3)
    talk = Talk(*partitions)
    stale = []
    for number in range(10):
        talk.stream(number)
        talk.producer.produce()
        stale += talk.producer.take_reads()
        talk.ask(request(Opcode.DCP_CLOSE_STREAM, vbucket=number))
    assert len(stale) == producer_module.BACKFILLS_MAX
    talk.stream(9)
    talk.producer.produce()
    assert talk.producer.take_reads() == []
    talk.producer.on_chunk(stale[0], next(stale[0].chunks))
    talk.producer.on_read_failed(stale[1])
    fresh = talk.producer.take_reads()
    assert [read.stream.partition_id for read in fresh] == [9]
    talk.producer.on_chunk(fresh[0], next(fresh[0].chunks))
    assert talk.sent() == "[0,3] disk a1 b2 c3"


def test_every_stream_gets_its_turn_at_the_log() -> None:
    partitions = [filled("abc", number) for number in range(10)]
    for partition in partitions:
        partition.forget_memory(2)
    talk = Talk(*partitions)
    for number in range(10):
        talk.stream(number)
    by_partition: dict[int, list[str]] = {}
    for packet in talk.packets():
        by_partition.setdefault(packet.vbucket, []).append(words(packet))
    assert by_partition == {n: ["[0,3] disk", "a1", "b2", "c3"] for n in range(10)}


def test_a_purged_end_is_announced_to_those_who_know_how() -> None:
    partition = filled("abB")
    partition.purge(3)
    talk = Talk(partition, is_extended=True)
    talk.stream()
    assert talk.sent() == "[0,3] memory a1 at 3"
    talk = Talk(partition)
    talk.stream()
    assert talk.sent() == "[0,3] memory a1"


def test_an_emptied_partition_is_a_snapshot_of_nothing() -> None:
    partition = filled("aA")
    partition.purge(2)
    talk = Talk(partition, is_extended=True)
    talk.stream()
    assert talk.sent() == "[0,2] memory at 2"


# -- ends


def test_a_stream_ends_after_the_snapshot_that_contains_its_end() -> None:
    talk = Talk(filled("abcd"))
    talk.stream(end=2)
    assert talk.sent() == "[0,4] memory a1 b2 c3 d4 end 0"
    assert talk.stream().status == Status.SUCCESS


def test_a_stream_to_latest_ends_there() -> None:
    talk = Talk(filled("abcd"))
    talk.stream(flags=StreamFlag.TO_LATEST)
    assert talk.sent() == "[0,4] memory a1 b2 c3 d4 end 0"
    uuid = talk.partition.failover_log[0].uuid
    talk.stream(at=Position(uuid, 4, 4, 4), flags=StreamFlag.TO_LATEST)
    assert talk.sent() == "end 0"


def test_a_stream_from_latest_begins_there() -> None:
    talk = Talk(filled("abcd"))
    talk.stream(flags=StreamFlag.FROM_LATEST)
    assert talk.sent() == ""
    talk.partition.fill("e")
    assert talk.sent() == "[4,5] memory e5"


def test_a_disk_only_stream_ends_at_what_is_durable() -> None:
    talk = Talk(filled("abcd"))
    talk.partition.persisted_seqno = 4
    assert talk.stream(flags=StreamFlag.DISK_ONLY).status == Status.SUCCESS
    assert talk.sent() == "[0,4] memory a1 b2 c3 d4 end 0"


@pytest.mark.parametrize("is_told", [False, True])
def test_closing_a_stream(is_told: bool) -> None:
    talk = Talk(filled("abcd"))
    if is_told:
        talk.control("send_stream_end_on_client_close_stream", "true")
    talk.stream()
    replies = talk.ask(request(Opcode.DCP_CLOSE_STREAM, opaque=77))
    assert (replies[0].status, replies[0].opaque) == (Status.SUCCESS, 77)
    assert [(words(p), p.opaque) for p in replies[1:]] == ([("end 1", OPAQUE)] if is_told else [])
    assert talk.sent() == ""


def dead(partition: FakePartition) -> None:
    partition.state = PartitionState.DEAD


def restarted(partition: FakePartition) -> None:
    partition.failover_log = (FailoverEntry(1, 3, 3), *partition.failover_log)


def undone(partition: FakePartition) -> None:
    partition.fail_over(1)


@pytest.mark.parametrize(
    ("upset", "reason"),
    [
        (dead, StreamEndReason.STATE_CHANGED),
        (restarted, StreamEndReason.STATE_CHANGED),
        (undone, StreamEndReason.ROLLED_BACK),
    ],
)
def test_a_stream_ends_when_its_partition_is_another(
    upset: Callable[[FakePartition], None], reason: int
) -> None:
    talk = Talk(filled("abc"))
    talk.stream()
    talk.sent()
    upset(talk.partition)
    assert talk.sent() == f"end {reason}"


# -- leases and past states


def leased(talk: Talk, lease_id: int = 5) -> int:
    hold = talk.partition.open_hold()
    assert hold is not None
    talk.bucket.leases[lease_id, 0] = hold
    return hold.at


def test_a_lease_is_read_as_of_its_end_in_parts() -> None:
    talk = Talk(filled("abcdab"), is_extended=True)
    at = leased(talk)
    talk.partition.fill("cccd")
    uuid = talk.partition.failover_log[0].uuid
    assert talk.stream(end=4, lease=5).status == Status.SUCCESS
    assert talk.sent() == "[0,6] memory c3 d4 end 0"
    assert talk.stream(at=Position(uuid, 4, 0, at), end=at, lease=5).status == Status.SUCCESS
    assert talk.sent() == "[0,6] memory a5 b6 end 0"
    assert list(talk.partition.holds.values()) == [6]


def test_a_lease_that_is_not_held_is_refused() -> None:
    talk = Talk(filled("abc"), is_extended=True)
    assert talk.stream(lease=5).status == Status.LEASE_LOST
    leased(talk)
    assert talk.stream(lease=5, as_of=2).status == Status.LEASE_LOST
    assert talk.stream(lease=5, end_uuid=1).status == Status.LEASE_LOST
    uuid = talk.partition.failover_log[0].uuid
    assert talk.stream(lease=5, as_of=3, end_uuid=uuid).status == Status.SUCCESS


def test_a_lease_lost_on_the_way_ends_the_stream() -> None:
    talk = Talk(filled("abc"), is_extended=True)
    leased(talk)
    talk.control("connection_buffer_size", "45")
    talk.stream(lease=5)
    assert "a1" in words(packets_of(talk.producer.produce() or b"")[1])
    talk.partition.lose_holds()
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == f"end {StreamEndReason.TOO_SLOW}"


def test_a_past_state_can_be_named_without_a_lease() -> None:
    talk = Talk(filled("abca"), is_extended=True)
    assert talk.stream(as_of=2).status == Status.LEASE_LOST
    assert talk.stream(as_of=4).status == Status.SUCCESS
    talk.partition.fill("b")
    assert talk.sent() == "[0,4] memory b2 c3 a4 end 0"
    assert talk.partition.holds == {}


def test_a_start_beyond_the_lease_is_refused_and_nothing_stays_held() -> None:
    talk = Talk(filled("abc"), is_extended=True)
    leased(talk)
    talk.partition.fill("de")
    uuid = talk.partition.failover_log[0].uuid
    assert talk.stream(at=Position(uuid, 4, 4, 4), lease=5).status == Status.ERANGE
    assert talk.stream(at=Position(uuid, 4, 4, 4), as_of=3).status == Status.ERANGE
    assert len(talk.partition.holds) == 1


def test_leases_mean_nothing_to_a_peer_without_our_feature() -> None:
    talk = Talk(filled("abc"))
    assert talk.stream(lease=5).status == Status.SUCCESS
    assert talk.sent() == "[0,3] memory a1 b2 c3"


def flushed(partition: FakePartition) -> None:
    """Everything is durable, so that it can be read as of now for ever."""
    partition.persisted_seqno = partition.high_seqno
    partition.marks.append(partition.high_seqno)


def test_a_mark_of_the_log_is_read_although_later_changes_are_in_memory() -> None:
    talk = Talk(filled("abcA"), is_extended=True)
    flushed(talk.partition)
    talk.partition.fill("bcd")
    assert talk.stream(as_of=3).status == Status.LEASE_LOST
    assert talk.stream(as_of=4).status == Status.SUCCESS
    assert talk.sent() == "[0,4] disk b2 c3 A4 end 0"
    assert talk.partition.logged_holds == {}


def test_what_is_persisted_is_read_as_of_its_mark() -> None:
    talk = Talk(filled("abc"))
    flushed(talk.partition)
    talk.partition.fill("ab")
    talk.stream(flags=StreamFlag.DISK_ONLY)
    assert talk.sent() == "[0,3] disk a1 b2 c3 end 0"


def test_a_durable_only_stream_sends_nothing_that_can_be_taken_away() -> None:
    talk = Talk(filled("abca"), is_extended=True)
    assert talk.control("durable_only", "true") == Status.SUCCESS
    talk.stream()
    assert talk.sent() == ""
    flushed(talk.partition)
    talk.partition.fill("bA")
    assert talk.sent() == "[0,4] disk b2 c3 a4"
    talk.partition.persisted_seqno = 5  # no mark: as if a batch were on its way
    assert talk.sent() == ""
    flushed(talk.partition)
    assert talk.sent() == "[5,6] memory+checkpoint b5 A6"
    talk.partition.fill("cd")
    assert talk.partition.holds == talk.partition.logged_holds == {}


def test_a_snapshot_that_was_begun_elsewhere_is_not_ended_before_what_was_promised() -> None:
    talk = Talk(filled("abcd"), is_extended=True)
    talk.control("durable_only", "true")
    talk.partition.marks, talk.partition.persisted_seqno = [3], 3
    uuid = talk.partition.failover_log[0].uuid
    assert talk.stream(at=Position(uuid, 2, 0, 4)).status == Status.SUCCESS
    assert talk.sent() == "", "3 is durable, 4 was promised"
    flushed(talk.partition)
    assert talk.sent() == "[0,4] memory c3 d4"


def test_a_durable_only_stream_to_the_latest_ends_at_the_newest_mark() -> None:
    talk = Talk(filled("abc"), is_extended=True)
    flushed(talk.partition)
    talk.partition.fill("ab")
    talk.control("durable_only", "true")
    talk.stream(flags=StreamFlag.TO_LATEST)
    assert talk.sent() == "[0,3] disk a1 b2 c3 end 0"


def test_a_durable_only_stream_to_the_latest_waits_until_that_is_known() -> None:
    """A copy that was just promoted has not heard yet what the others have on disk."""
    talk = Talk(filled("abc"), is_extended=True)
    uuid = talk.partition.failover_log[0].uuid
    talk.control("durable_only", "true")
    asked = {"at": Position(uuid, 3, 3, 3), "flags": StreamFlag.TO_LATEST}
    assert talk.stream(**asked).status == Status.ETMPFAIL  # type: ignore[arg-type]
    flushed(talk.partition)
    assert talk.stream(**asked).status == Status.SUCCESS  # type: ignore[arg-type]
    talk = Talk(filled("abc"), is_extended=True)
    talk.control("durable_only", "true")
    assert talk.stream(at=Position(uuid, 3, 3, 3)).status == Status.SUCCESS, "it can wait itself"


def test_a_durable_only_stream_reads_no_lease_of_what_is_in_memory_only() -> None:
    talk = Talk(filled("abc"), is_extended=True)
    leased(talk)
    talk.control("durable_only", "true")
    assert talk.stream(lease=5).status == Status.LEASE_LOST
    assert talk.stream(as_of=3).status == Status.LEASE_LOST
    flushed(talk.partition)
    talk.partition.fill("a")
    assert talk.stream(lease=5).status == Status.SUCCESS, "meanwhile it is a mark"
    assert talk.sent() == "[0,3] memory a1 b2 c3 end 0"
    talk.partition.lose_holds()
    leased(talk, 6)
    hold = talk.partition.open_hold(3)
    assert hold is not None
    talk.bucket.leases[7, 0] = hold
    assert talk.stream(lease=6).status == Status.LEASE_LOST
    assert talk.stream(lease=7).status == Status.SUCCESS
    assert talk.sent() == "[0,3] disk a1 b2 c3 end 0"


# -- profiles


def test_canonical_frames_are_sent_as_they_are() -> None:
    talk = Talk(filled("abC"))
    talk.control("enable_expiry_opcode", "true")
    talk.stream(opaque=0)
    data = talk.producer.produce() or b""
    assert data[44:] == b"".join(talk.partition.frame(write) for write in talk.partition.writes)


def test_every_message_carries_the_opaque_of_its_request() -> None:
    talk = Talk(filled("abC"))
    talk.stream(opaque=0xDEADBEEF, flags=StreamFlag.TO_LATEST)
    found = talk.packets()
    assert [packet.opaque for packet in found] == [0xDEADBEEF] * 5
    assert all(packet.vbucket == 0 for packet in found)


def test_deletions_without_times() -> None:
    talk = Talk(filled("aA"), flags=0)
    talk.stream()
    assert talk.packets()[1].extras == (2).to_bytes(8, "big") * 2 + bytes(2)


@pytest.mark.parametrize(
    ("flags", "datatype"), [(OpenFlag.NO_VALUE, 0), (OpenFlag.NO_VALUE_KEEP_DATATYPE, 1)]
)
def test_without_values(flags: int, datatype: int) -> None:
    talk = Talk(filled("a"), flags=flags)
    talk.stream()
    change = talk.packets()[1]
    assert (change.key, change.value, change.datatype) == (b"a", b"", datatype)


def test_initial_deletes_may_be_left_out() -> None:
    partition = filled("abcABdD")
    partition.forget_memory(7)
    talk = Talk(partition, flags=OpenFlag.SKIP_DELETES_IN_BACKFILL)
    talk.stream()
    assert talk.sent() == "[0,7] disk c3 D7"
    partition.fill("eC")
    assert talk.sent() == "[8,9] memory+checkpoint e8 C9"


# -- flow control, turns and steps


def test_nothing_is_sent_into_a_full_window() -> None:
    talk = Talk(filled("abc"))
    talk.control("connection_buffer_size", "50")
    talk.stream()
    first = talk.producer.produce() or b""
    assert [words(p) for p in packets_of(first)] == ["[0,3] memory", "a1"]
    assert talk.producer.unacked_bytes == len(first)
    assert talk.producer.produce() is None
    assert talk.ask(request(Opcode.DCP_NOOP))[0].status == Status.SUCCESS
    talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=len(first).to_bytes(4, "big")))
    assert talk.producer.unacked_bytes == 0
    assert [words(p) for p in packets_of(talk.producer.produce() or b"")] == ["b2"]


def test_each_message_waits_for_room_of_its_own() -> None:
    partition = filled("aB")
    partition.purge(2)
    partition.fill("cD")
    partition.purge(4)
    talk = Talk(partition, is_extended=True)
    talk.control("connection_buffer_size", "1")
    talk.stream(flags=StreamFlag.TO_LATEST)
    seen = []
    for _ in range(4):
        data = talk.producer.produce() or b""
        seen.append(" ".join(words(packet) for packet in packets_of(data)))
        assert talk.producer.unacked_bytes == len(data)
        assert not talk.producer.produce(), "the window is full"
        talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=len(data).to_bytes(4, "big")))
    assert " ".join(seen) == "[0,4] memory a1 c3 at 4"
    assert talk.sent() == "end 0"


@settings(max_examples=budget(100), deadline=None)
@given(
    st.integers(1, 400),
    st.lists(st.integers(0, 300), min_size=1, max_size=20),
    st.lists(st.integers(0, 200), min_size=1, max_size=40),
    st.booleans(),
)
def test_no_message_begins_outside_the_window(
    window: int, sizes: list[int], acks: list[int], is_on_disk: bool
) -> None:
    talk = Talk(FakePartition(0), FakePartition(1))
    talk.control("connection_buffer_size", str(window))
    for number, size in enumerate(sizes):
        talk.bucket.partitions[number % 2].put(b"%d" % number, bytes(size))
    if is_on_disk:
        talk.partition.forget_memory(talk.partition.high_seqno)
    for number in (0, 1):
        talk.stream(number, flags=StreamFlag.TO_LATEST)
    unacked, received = 0, 0
    for acked in acks + [1000] * 4 * (len(sizes) + 4):
        for packet in packets_of(talk.producer.produce() or b""):
            assert unacked < window
            unacked += 24 + len(packet.extras + packet.key + packet.value)
            received += packet.opcode == Opcode.DCP_MUTATION
        assert talk.producer.unacked_bytes == unacked
        talk.read_log()
        talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=acked.to_bytes(4, "big")))
        unacked = max(0, unacked - acked)
    assert received == len(sizes)
    assert talk.producer.figures().streams == 0


def test_what_was_held_back_is_not_sent_after_a_close() -> None:
    talk = Talk(filled("ab"), filled("c", 1))
    talk.control("connection_buffer_size", "1")
    talk.stream()
    talk.stream(1)
    assert [words(p) for p in packets_of(talk.producer.produce() or b"")] == ["[0,2] memory"]
    assert talk.ask(request(Opcode.DCP_CLOSE_STREAM))[0].status == Status.SUCCESS
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == "[0,1] memory c1"


@pytest.mark.parametrize("is_told", [False, True])
def test_a_stream_whose_end_is_held_back_can_be_closed(is_told: bool) -> None:
    talk = Talk(filled("a"))
    if is_told:
        talk.control("send_stream_end_on_client_close_stream", "true")
    talk.control("connection_buffer_size", "50")
    talk.stream(flags=StreamFlag.TO_LATEST)
    sent = [words(p) for p in packets_of(talk.producer.produce() or b"")]
    assert sent == ["[0,1] memory", "a1"]
    replies = talk.ask(request(Opcode.DCP_CLOSE_STREAM))
    assert replies[0].status == Status.SUCCESS, "its end has not been sent"
    assert [(words(p), p.opaque) for p in replies[1:]] == ([("end 1", OPAQUE)] if is_told else [])
    assert talk.ask(request(Opcode.DCP_CLOSE_STREAM))[0].status == Status.KEY_ENOENT
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == ""


def test_a_window_that_is_turned_off_forgets_what_was_not_acknowledged() -> None:
    talk = Talk(filled("abc"))
    talk.control("connection_buffer_size", "45")
    talk.stream()
    talk.producer.produce()
    talk.control("connection_buffer_size", "0")
    assert talk.sent() == "b2 c3"
    talk.control("connection_buffer_size", "45")
    assert talk.producer.unacked_bytes == 0


def test_an_end_waits_for_room_as_every_message() -> None:
    talk = Talk(filled("ab"))
    talk.partition.forget_memory(2)
    talk.stream()
    talk.producer.produce()
    read = talk.producer.take_reads()[0]
    talk.control("connection_buffer_size", "1")
    talk.producer.unacked_bytes = 1
    talk.producer.on_read_failed(read)
    assert talk.producer.take_replies() == b""
    assert talk.producer.produce() is None
    talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=b"\0\0\0\1"))
    assert talk.sent() == "end 5"


def test_too_much_acknowledged_is_no_credit() -> None:
    talk = Talk(filled("abc"))
    talk.control("connection_buffer_size", "50")
    talk.stream()
    talk.producer.produce()
    talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=b"\xff\xff\xff\xff"))
    assert talk.producer.room_bytes == 50


def test_a_large_document_passes_a_small_window() -> None:
    talk = Talk()
    talk.partition.put(b"k", bytes(100_000))
    talk.control("connection_buffer_size", "1024")
    talk.stream()
    assert len(talk.producer.produce() or b"") > 100_000


def test_streams_take_turns_in_partition_order() -> None:
    talk = Talk(*(filled("ab", number) for number in range(3)))
    for number in (2, 0, 1):
        talk.stream(number)
    assert [packet.vbucket for packet in talk.packets()] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_long_stream_does_not_keep_the_others_waiting() -> None:
    partitions = [FakePartition(0), filled("ab", 1)]
    for number in range(2 * STREAM_STEP_ITEMS_MAX):
        partitions[0].put(b"%d" % number, b"")
    talk = Talk(*partitions)
    talk.stream(0)
    talk.stream(1)
    first = packets_of(talk.producer.produce() or b"")
    assert len(first) == STREAM_STEP_ITEMS_MAX + 1
    assert packets_of(talk.producer.produce() or b"")[0].vbucket == 1


def test_a_write_that_is_nearly_full_begins_no_other_stream() -> None:
    partitions = [FakePartition(0), filled("ab", 1)]
    for number in range(STREAM_STEP_ITEMS_MAX - 1):
        partitions[0].put(b"%d" % number, b"")
    talk = Talk(*partitions)
    talk.stream(0)
    talk.stream(1)
    first = packets_of(talk.producer.produce() or b"")
    assert {packet.vbucket for packet in first} == {0}
    assert [words(packet) for packet in talk.packets()] == ["[0,2] memory", "a1", "b2"]


def test_an_ended_stream_leaves_the_turns_of_the_others_alone() -> None:
    talk = Talk(*(filled("ab", number) for number in range(4)))
    for number in range(4):
        talk.stream(number, flags=StreamFlag.TO_LATEST if number % 2 else 0)
    ends = [p.vbucket for p in talk.packets() if p.opcode == Opcode.DCP_STREAM_END]
    assert ends == [1, 3]
    for partition in talk.bucket.partitions:
        partition.fill("c")
    assert [p.vbucket for p in talk.packets()] == [0, 0, 2, 2]


# -- time


def noops(talk: Talk, now_ms: int) -> int:
    talk.producer.on_tick(now_ms)
    return len([p for p in packets_of(talk.producer.take_replies()) if p.opcode == 0x5C])


def test_signs_of_life_are_asked_for_once_an_interval() -> None:
    talk = Talk(filled("a"))
    assert noops(talk, 0) == 0
    assert talk.control("enable_noop", "true") == Status.SUCCESS
    assert talk.control("set_noop_interval", "1.5") == Status.SUCCESS
    assert talk.producer.tick_ms == 1500
    assert noops(talk, 1000) == 0  # no stream was asked for yet
    talk.stream()
    assert noops(talk, 2000) == 1
    assert noops(talk, 4000) == 0  # one outstanding
    talk.ask(response(Opcode.DCP_NOOP, Status.SUCCESS, 1))
    assert noops(talk, 5000) == 1
    assert not talk.producer.wants_close


def test_a_silent_peer_is_dead_in_the_end() -> None:
    talk = Talk(filled("a"))
    talk.control("enable_noop", "true")
    talk.stream()
    talk.producer.on_tick(0)
    talk.producer.on_tick(producer_module.IDLE_MS_MAX - 1)
    assert not talk.producer.wants_close
    talk.producer.on_tick(producer_module.IDLE_MS_MAX)
    assert talk.producer.wants_close
    figures = talk.producer.figures()
    assert (figures.is_stuck, figures.is_dead) == (False, True)


def test_who_is_not_asked_for_long_is_not_dead() -> None:
    talk = Talk(filled("a"))
    talk.control("enable_noop", "true")
    talk.control("set_noop_interval", "3600")
    talk.stream()
    assert noops(talk, 0) == 1
    talk.ask(response(Opcode.DCP_NOOP, Status.SUCCESS, 1))
    for minute in range(1, 54):
        assert noops(talk, minute * 60_000) == 0
    assert noops(talk, 3_600_000) == 1
    assert not talk.producer.wants_close


def ack(talk: Talk, count: int) -> None:
    assert talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=count.to_bytes(4, "big"))) == []


def test_a_peer_that_acknowledges_nothing_is_stuck_in_the_end() -> None:
    talk = Talk(filled("abc"))
    talk.control("connection_buffer_size", "45")
    talk.stream()
    talk.producer.produce()
    talk.producer.on_tick(0)
    ack(talk, 1)
    assert talk.producer.room_bytes < 0
    limit = producer_module.STUCK_MS_MAX
    talk.producer.on_tick(limit)
    assert not talk.producer.wants_close, "it acknowledged something"
    ack(talk, 0)
    talk.producer.on_tick(2 * limit - 1)
    assert not talk.producer.wants_close
    talk.producer.on_tick(2 * limit)
    assert talk.producer.wants_close, "to acknowledge nothing is no sign of life"
    figures = talk.producer.figures()
    assert (figures.is_stuck, figures.is_dead) == (True, False)


def test_a_full_window_is_no_fault_while_the_peer_empties_it() -> None:
    talk = Talk(filled("abcdefgh"))
    talk.control("connection_buffer_size", "45")
    talk.stream()
    for turn in range(5):
        talk.producer.produce()
        talk.producer.on_tick(turn * producer_module.STUCK_MS_MAX)
        ack(talk, 56)
    assert not talk.producer.wants_close


def test_closing_releases_everything() -> None:
    talk = Talk(filled("abc"), is_extended=True)
    talk.control("connection_buffer_size", "45")
    talk.stream(as_of=3)
    talk.producer.produce()
    assert talk.partition.holds
    talk.producer.close()
    assert talk.partition.holds == {}
    assert talk.producer.produce() is None


def test_statistics_tell_the_flow() -> None:
    talk = Talk(filled("abc"))
    talk.control("connection_buffer_size", "100")
    talk.stream()
    data = talk.producer.produce() or b""
    found = dict(talk.producer.statistics())
    assert found["unacked_bytes"] == found["total_bytes_sent"] == str(len(data))
    assert found["flow_control"] == "enabled"
    assert found["num_streams"] == "1"
    assert change_of(data[44:]).key == b"a"
    assert talk.producer.room_bytes < UINT64_MAX


def test_steady_writers_do_not_keep_a_snapshot_open() -> None:
    """A copy has more to acknowledge after each round: a write waits for two snapshots at most."""
    talk = named("")
    high_at_begin, ends, waits = 0, [], dict[int, int]()
    for turn in range(200):
        talk.partition.fill("abcdefgh"[turn % 8] * 3)  # somebody always writes
        waits[talk.partition.high_seqno] = turn
        talk.producer.on_news()
        data = talk.producer.produce()
        for packet in packets_of(data or b""):
            if packet.opcode == Opcode.DCP_SNAPSHOT_MARKER:
                ends.append(int.from_bytes(packet.extras[8:16], "big"))
                assert ends[-1] == talk.partition.high_seqno > high_at_begin, "as of now"
                high_at_begin = ends[-1]
        acknowledge(talk, ends[-1], 0)
        assert talk.bucket.told[-1] == f"b has {ends[-1]} 0 of 0"
        waits = {seqno: since for seqno, since in waits.items() if seqno > ends[-1]}
        assert all(turn - since < 2 for since in waits.values())
    assert len(ends) == 200
    assert not talk.producer.wants_close


@pytest.mark.parametrize(
    ("version", "extras", "value_bytes"), [("2.0", b"\0", 36), ("2.2", b"\2", 52)]
)
def test_markers_of_version_2_for_who_asks(version: str, extras: bytes, value_bytes: int) -> None:
    partition = filled("aAb")
    partition.purge_seqno = 1
    talk = Talk(partition)
    assert talk.control("max_marker_version", version) == Status.SUCCESS
    talk.stream()
    marker = talk.packets()[0]
    assert (marker.opcode, marker.extras) == (Opcode.DCP_SNAPSHOT_MARKER, extras)
    fields = Struct(">QQIQQQQ").unpack(marker.value + bytes(52 - value_bytes))
    assert len(marker.value) == value_bytes
    assert fields == (0, 3, 1, 3, 0, 1 if version == "2.2" else 0, 0)
