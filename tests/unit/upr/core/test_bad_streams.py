"""Stream requests out of every range, streams in great numbers, peers that do not do their part:
the status that is specified, and nothing that stays behind."""

import gc
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.model.limits import UINT64_MAX
from millstream.upr.core import producer as producer_module
from millstream.upr.core.control import Settings
from millstream.upr.core.stream import Stream
from millstream.wire.mcbp import Opcode, Packet, Status, StreamFlag, request
from support.budget import budget
from support.streams.stream_talk import OPAQUE, Talk, filled

FIELDS = Struct(">IIQQQQQ")
HIGH = 5
UUID = 0xA001
"""Of the only history of a filled partition."""


def talk_of_two(**options: bool) -> Talk:
    return Talk(filled("abcde"), filled("xyzab", 1), **options)


def asked(
    talk: Talk,
    partition_id: int = 0,
    *,
    flags: int = 0,
    reserved: int = 0,
    start: int = 0,
    end: int = UINT64_MAX,
    uuid: int = 0,
    snap_start: int = 0,
    snap_end: int = 0,
    value: bytes = b"",
) -> Packet:
    extras = FIELDS.pack(flags, reserved, start, end, uuid, snap_start, snap_end)
    data = request(
        Opcode.DCP_STREAM_REQ, vbucket=partition_id, opaque=OPAQUE, extras=extras, value=value
    )
    return talk.ask(data)[0]


def left_behind(talk: Talk) -> dict[str, int]:
    """What there is of streams, held states, readers and messages."""
    producer, partitions = talk.producer, talk.bucket.partitions
    counts = {
        "streams": len(producer._streams),
        "turns": len(producer._order),
        "backfills": len(producer._backfilling),
        "held back": len(producer._held_back),
        "replies": len(producer._replies),
        "barriers": len(producer._barriers),
        "take-overs": len(talk.bucket.take_overs),
        "reads": producer._reads_under_way,
        "readers": sum(len(partition.readers) for partition in partitions),
        "holds": sum(len(partition.holds) for partition in partitions),
        "logged holds": sum(len(partition.logged_holds) for partition in partitions),
    }
    return {name: count for name, count in counts.items() if count}


AT_HIGH = {"start": HIGH, "snap_start": HIGH, "snap_end": HIGH, "uuid": UUID}
REFUSED = [
    ({"partition_id": 2}, Status.NOT_MY_VBUCKET),
    ({"partition_id": 0xFFFF}, Status.NOT_MY_VBUCKET),
    *(({"flags": 1 << bit}, Status.EINVAL) for bit in (3, *range(9, 32))),
    ({"flags": 0xFFFFFFFF}, Status.EINVAL),
    ({"flags": StreamFlag.TAKEOVER}, Status.EACCESS),
    ({"flags": StreamFlag.CACHE_TRANSFER}, Status.NOT_SUPPORTED),
    ({"start": 1}, Status.ERANGE),
    ({"start": UINT64_MAX}, Status.ERANGE),
    ({"snap_start": 1}, Status.ERANGE),
    ({"snap_start": UINT64_MAX}, Status.ERANGE),
    ({**AT_HIGH, "snap_end": 4}, Status.ERANGE),
    ({**AT_HIGH, "snap_start": 6}, Status.ERANGE),
    ({**AT_HIGH, "end": 4}, Status.ERANGE),
    ({**AT_HIGH, "end": 0}, Status.ERANGE),
    ({**AT_HIGH, "flags": StreamFlag.DISK_ONLY}, Status.ERANGE),
    ({**AT_HIGH, "uuid": 0}, Status.ROLLBACK),
    ({**AT_HIGH, "uuid": UINT64_MAX}, Status.ROLLBACK),
    ({"uuid": 7, "flags": StreamFlag.STRICT_UUID}, Status.ROLLBACK),
    ({"uuid": 7, "flags": StreamFlag.FROM_LATEST}, Status.ROLLBACK),
    ({**dict.fromkeys(("start", "snap_start", "snap_end"), 6), "uuid": UUID}, Status.ROLLBACK),
    ({"uuid": UUID, "start": 3, "snap_start": 1, "snap_end": UINT64_MAX}, Status.ROLLBACK),
    ({"value": b"{"}, Status.EINVAL),
    ({"value": b'{"sid":1}'}, 0x8D),
    ({"value": b'{"collections":["8"]}'}, Status.UNKNOWN_COLLECTION),
    ({"value": b'{"as_of":4}'}, Status.LEASE_LOST),
    ({"value": b'{"as_of":5,"end_uuid":"1"}'}, Status.LEASE_LOST),
    ({"value": b'{"lease":99}'}, Status.LEASE_LOST),
    ({**AT_HIGH, "end": 5, "value": b'{"as_of":18446744073709551615}'}, Status.LEASE_LOST),
]


@pytest.mark.parametrize(("fields", "status"), REFUSED)
def test_each_field_out_of_range(fields: dict[str, int], status: int) -> None:
    talk = talk_of_two(is_extended=True)
    assert asked(talk, **fields).status == status
    assert left_behind(talk) == {}
    assert not talk.producer.wants_close
    assert asked(talk).status == Status.SUCCESS, "the next request is judged by itself"
    assert talk.sent() == "[0,5] memory a1 b2 c3 d4 e5"


ACCEPTED = [
    {"reserved": 0xFFFFFFFF},
    {"uuid": UINT64_MAX},
    {"end": 0},
    {"snap_end": UINT64_MAX},
    {"flags": StreamFlag.STRICT_UUID},
    {"flags": 0x02 | 0x04 | 0x10 | 0x20 | 0x40 | 0x80},
    {"start": 3, "snap_start": 3, "snap_end": UINT64_MAX, "uuid": UUID},
    {**AT_HIGH, "end": HIGH},
    {"value": b'{"purge_seqno":"18446744073709551615"}'},
    {"value": b'{"unheard_of":[{}]}'},
]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_the_edges_of_each_field(fields: dict[str, int]) -> None:
    talk = talk_of_two()
    for partition in talk.bucket.partitions:
        partition.persisted_seqno = HIGH
    assert asked(talk, **fields).status == Status.SUCCESS
    talk.packets()
    talk.ask(request(Opcode.DCP_CLOSE_STREAM))
    assert left_behind(talk) == {}


numbers = st.sampled_from([0, 1, 3, 4, 5, 6, 2**31, 2**48, 2**63, UINT64_MAX])
STATUSES = {
    Status.SUCCESS, Status.EINVAL, Status.NOT_MY_VBUCKET, Status.ERANGE, Status.ROLLBACK,
    Status.NOT_SUPPORTED, Status.EACCESS,
}  # fmt: skip


@settings(max_examples=budget(400), deadline=None)
@given(
    st.sampled_from([0, 1, 2, 0x7FFF, 0xFFFF]),
    st.lists(st.sampled_from([0, 1, 2, 4, 0x10, 0x20, 0x40, 0x80, 0x100, 0x8000]), max_size=3),
    st.tuples(numbers, numbers, st.sampled_from([0, UUID, 7, UINT64_MAX]), numbers, numbers),
)
def test_any_fields_are_judged_and_leave_nothing_behind(
    partition_id: int, flags: list[int], fields: tuple[int, int, int, int, int]
) -> None:
    talk = talk_of_two()
    flag_bits = 0
    for flag in flags:
        flag_bits |= flag
    start, end, uuid, snap_start, snap_end = fields
    reply = asked(
        talk, partition_id, flags=flag_bits, start=start, end=end, uuid=uuid,
        snap_start=snap_start, snap_end=snap_end,
    )  # fmt: skip
    assert reply.status in STATUSES
    if reply.status == Status.ROLLBACK:
        assert len(reply.value) == 8
        assert int.from_bytes(reply.value, "big") <= HIGH
    if reply.status == Status.SUCCESS:
        begin = HIGH if flag_bits & StreamFlag.FROM_LATEST else start
        seqnos = [
            int.from_bytes(packet.extras[:8], "big")
            for packet in talk.packets()
            if packet.opcode == Opcode.DCP_MUTATION
        ]
        assert seqnos in ([], list(range(begin + 1, HIGH + 1)))
        talk.ask(request(Opcode.DCP_CLOSE_STREAM, vbucket=partition_id))
    assert left_behind(talk) == {}


def test_streams_opened_twice_are_one() -> None:
    talk = talk_of_two()
    for _ in range(10):
        assert asked(talk).status in {Status.SUCCESS, Status.KEY_EEXISTS}
    assert talk.sent() == "[0,5] memory a1 b2 c3 d4 e5"
    assert left_behind(talk) == {"streams": 1, "turns": 1, "readers": 1}


@pytest.mark.slow
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_thousand_streams_opened_and_dropped_leave_nothing(is_on_disk: bool) -> None:
    talk = talk_of_two(is_extended=True)
    talk.control("enable_barriers", "true")
    talk.control("send_stream_end_on_client_close_stream", "true")
    talk.control("connection_buffer_size", "100")
    if is_on_disk:
        for partition in talk.bucket.partitions:
            partition.forget_memory(4)
    for turn in range(1000):
        partition_id = turn % 2
        assert asked(talk, partition_id).status == Status.SUCCESS
        if turn % 3:
            talk.ask(request(Opcode.BARRIER, key=b"c", extras=bytes(4)))
            talk.producer.produce()
            talk.read_log(turn % 4)
            talk.producer.produce()
        replies = talk.ask(request(Opcode.DCP_CLOSE_STREAM, vbucket=partition_id))
        assert [packet.opcode for packet in replies] == [0x52, Opcode.DCP_STREAM_END]
        talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=b"\xff\xff\xff\xff"))
    talk.packets()
    talk.read_log()
    assert left_behind(talk) == {}
    gc.collect()
    streams = [one for one in gc.get_objects() if isinstance(one, Stream)]
    assert [one for one in streams if one.source in talk.bucket.partitions] == []


def test_what_a_stuck_peer_held_is_free_once_it_is_cut_off() -> None:
    talk = talk_of_two(is_extended=True)
    talk.control("enable_barriers", "true")
    talk.control("connection_buffer_size", "1")
    asked(talk, 0)
    asked(talk, 1, value=b'{"as_of":5}')
    talk.ask(request(Opcode.BARRIER, key=b"c", extras=bytes(4)))
    talk.producer.produce()
    for now_ms in (0, producer_module.STUCK_MS_MAX):
        assert left_behind(talk)["holds"] == 2
        talk.producer.on_tick(now_ms)
    assert talk.producer.wants_close
    talk.producer.close()
    assert left_behind(talk) == {}


def test_a_thousand_unknown_control_keys_change_nothing() -> None:
    talk = talk_of_two()
    before = {name: getattr(talk.producer.settings, name) for name in Settings.__slots__}
    for number in range(1000):
        refused = talk.control(f"unknown_{number}" * (1 + number % 20), "true")
        assert refused in {Status.EINVAL, Status.E2BIG}
    assert before == {name: getattr(talk.producer.settings, name) for name in Settings.__slots__}
    assert not talk.producer.wants_close
    asked(talk)
    assert talk.sent() == "[0,5] memory a1 b2 c3 d4 e5"


def test_acknowledging_what_was_never_sent_gives_no_credit() -> None:
    talk = talk_of_two()
    talk.control("connection_buffer_size", "50")
    for _ in range(1000):
        talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=b"\xff\xff\xff\xff"))
    assert (talk.producer.unacked_bytes, talk.producer.acked_bytes_total) == (0, 0)
    asked(talk)
    assert len(talk.producer.produce() or b"") == 44 + 57, "the marker, and one more"
    assert talk.producer.produce() is None
