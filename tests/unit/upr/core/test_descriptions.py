"""Lineages before their changes: what a producer sends, and what a consumer takes for one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import LocalProtocolError, RemoteProtocolError
from millstream.model.lineage import born, with_run
from millstream.model.position import FailoverEntry
from millstream.model.sides import side_of
from millstream.upr.core import descriptions
from millstream.upr.core.consumer import (
    ChangesReceived,
    ConsumerCore,
    Event,
    SnapshotCompleted,
    StreamEnded,
)
from millstream.upr.core.descriptions import cut_run, needed_bytes
from millstream.upr.core.messages import encode_branch_log, encode_failover_log
from millstream.upr.core.profile import DescribedProfile
from millstream.wire.frames import (
    deletion,
    described,
    iter_frames,
    mutation,
    seqno_of,
    snapshot_marker,
    stream_end,
)
from millstream.wire.mcbp import Opcode, OpenFlag, Packet, Status, cut_packets, request, response
from support.streams.fake_source import FakePartition, lineage_of
from support.streams.stream_talk import Talk, filled, packets_of, words

PARTITION = 5
LOG = (FailoverEntry(0xA, 0, 3),)
PAIR = bytes.fromhex(
    "806f000008000005 0000000e 00000005 0000000000000000"  # body 8 + 2 + 4, opaque 5
    "0000000000000009 0002 0309 a1b2"  # seqno 9; lineage of 2 bytes: branch 3, seqno 9; sidecar
    "8058000215000005 00000017 00000005 0000000000000077"
    "0000000000000009 0000000000000004 6553f100 00 6b31"
)


def asking(*partitions: FakePartition, flags: int = 0x21, **options: bool) -> Talk:
    talk = Talk(*partitions, flags=flags, **{"is_extended": True, **options})
    assert talk.control("enable_expiry_opcode", "true") == 0
    assert talk.control("document_meta", "true") == 0
    return talk


def pairs_of(packets: list[Packet]) -> list[tuple[Packet, Packet]]:
    """Description and change, side by side; each change has one."""
    found = []
    rest = list(packets)
    while rest:
        packet = rest.pop(0)
        assert not Opcode.DCP_MUTATION <= packet.opcode <= Opcode.DCP_EXPIRATION, "nothing before"
        if packet.opcode == Opcode.DOC_META:
            found.append((packet, rest.pop(0)))
    return found


def check_pairs(packets: list[Packet]) -> list[int]:
    """Check that every description is its change's; return the seqnos."""
    seqnos = []
    for meta, change in pairs_of(packets):
        seqno = int.from_bytes(change.extras[:8], "big")
        lineage = lineage_of(meta.vbucket, seqno)
        assert Opcode.DCP_MUTATION <= change.opcode <= Opcode.DCP_EXPIRATION
        assert (meta.vbucket, meta.opaque) == (change.vbucket, change.opaque)
        assert (meta.extras, meta.key) == (change.extras[:8], b"")
        assert meta.value == len(lineage).to_bytes(2, "big") + lineage
        seqnos.append(seqno)
    return seqnos


# -- what is sent


def test_a_described_change_byte_for_byte() -> None:
    frame = deletion(PARTITION, b"k1", 9, 4, 0x77, 0x6553F100)
    assert described(frame, born(3, 9), b"\xa1\xb2") == PAIR


def test_the_example_of_the_documents() -> None:
    text = (Path(__file__).parents[4] / "docs/reference/wire/extensions.md").read_text()
    shown = re.findall(r"^(80 6f .*?)   |^(00 .*?)   ", text, re.MULTILINE)
    data = bytes.fromhex(" ".join(filter(None, (part for row in shown for part in row))))
    frame = mutation(5, b"k1", b"v", 17, 9, 1, 0, 0, 0)
    profile = DescribedProfile(OpenFlag.PRODUCER | 0x20, has_json=True, has_expiry_opcode=True)
    item = described(frame, with_run(born(3, 9), 200, 4))
    sent = profile.join([item], 5, 0x1000)
    assert sent[: len(data)] == data
    assert sent[len(data) :][:5] == bytes.fromhex("80 57 00 02 1f")


@pytest.mark.parametrize("floor", [0, 3, 6])
def test_every_change_comes_behind_its_lineage(floor: int) -> None:
    talk = asking(filled("abcAba"))
    talk.partition.forget_memory(floor)
    talk.stream()
    packets = talk.packets()
    assert [words(p) for p in packets if p.opcode != Opcode.DOC_META][1:] == ["c3", "b5", "a6"]
    assert packets[0].opcode == Opcode.DCP_SNAPSHOT_MARKER
    assert check_pairs(packets) == [3, 5, 6]


def test_streams_asked_for_before_are_left_alone() -> None:
    talk = Talk(filled("ab"), filled("cd", 1), is_extended=True)
    talk.stream(0)
    talk.control("document_meta", "true")
    talk.stream(1)
    packets = talk.packets()
    assert [p.opcode for p in packets if p.vbucket == 0] == [0x56, 0x57, 0x57]
    assert check_pairs([p for p in packets if p.vbucket == 1]) == [1, 2]
    talk.control("document_meta", "false")
    talk.partition.fill("x")
    assert talk.sent() == "[3,3] memory x3"


def test_others_are_never_sent_any() -> None:
    talk = Talk(filled("abA"), is_extended=False)
    assert talk.control("document_meta", "true") == Status.EINVAL
    talk.stream()
    assert talk.sent() == "[0,3] memory b2 A3"


@pytest.mark.parametrize("flags", [0x01, 0x21, 0x09, 0x41])
@pytest.mark.parametrize("has_json", [True, False])
def test_in_every_profile(flags: int, has_json: bool) -> None:
    plain = Talk(filled("abB"), flags=flags, has_json=has_json, is_extended=True)
    plain.stream(opaque=77)
    talk = asking(filled("abB"), flags=flags, has_json=has_json)
    talk.stream(opaque=77)
    packets = talk.packets()
    assert check_pairs(packets) == [1, 3]
    assert [p for p in packets if p.opcode != Opcode.DOC_META] == plain.packets()


def test_deletions_left_out_take_their_lineages_along() -> None:
    talk = asking(filled("aBcD"), flags=0x221)
    talk.partition.forget_memory(4)
    talk.stream()
    assert OpenFlag.SKIP_DELETES_IN_BACKFILL & 0x221
    assert check_pairs(talk.packets()) == [1, 3, 4]  # the last one says where the snapshot ends


@given(
    window=st.integers(1, 400),
    sizes=st.lists(st.sampled_from([0, 1, 30, 500]), min_size=1, max_size=6),
    acks=st.lists(st.integers(1, 400), max_size=30),
    is_on_disk=st.booleans(),
)
def test_a_window_never_parts_them(
    window: int, sizes: list[int], acks: list[int], is_on_disk: bool
) -> None:
    talk = asking(FakePartition(0))
    talk.control("connection_buffer_size", str(window))
    for number, size in enumerate(sizes):
        talk.partition.put(b"k%d" % number, b"v" * size)
    if is_on_disk:
        talk.partition.forget_memory(len(sizes))
    talk.stream()
    sent: list[Packet] = []
    unacked = 0
    for ack in [*acks, *[1 << 20] * 3 * len(sizes)]:
        data = b"x"
        while data:
            data = talk.producer.produce() or b""
            talk.read_log()
            data = data or talk.producer.produce() or b""
            packets = packets_of(data)
            check_pairs(packets)  # whole pairs in every write
            for frame in iter_frames(data):
                is_second = frame[1] == Opcode.DCP_MUTATION
                assert unacked < window or is_second
                unacked += len(frame)
            sent += packets
        assert talk.producer.unacked_bytes == unacked
        unacked -= min(ack, unacked)
        talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=ack.to_bytes(4, "big")))
    assert check_pairs(sent) == list(range(1, len(sizes) + 1))


def test_a_stream_closed_in_a_full_window_leaves_no_lineage_alone() -> None:
    talk = asking(filled("abc"))
    talk.control("connection_buffer_size", "50")  # the marker, and six bytes
    talk.stream()
    assert check_pairs(packets_of(talk.producer.produce() or b"")) == [1]
    assert talk.ask(request(Opcode.DCP_CLOSE_STREAM))[0].status == 0
    talk.ask(request(Opcode.DCP_BUFFER_ACK, extras=(1000).to_bytes(4, "big")))
    assert talk.producer.produce() is None


def test_a_peer_that_sends_one_is_cut_off() -> None:
    talk = asking()
    talk.producer.on_packet(packets_of(request(Opcode.DOC_META, extras=bytes(8)))[0])
    assert talk.producer.wants_close
    other = Talk()
    other.producer.on_packet(packets_of(request(Opcode.DOC_META, extras=bytes(8)))[0])
    assert not other.producer.wants_close


# -- what is taken


def put(seqno: int, value: bytes = b"v", partition: int = PARTITION) -> bytes:
    return mutation(partition, b"k%d" % seqno, value, seqno, 1, seqno, 0, 0, 0)


def pair(seqno: int, value: bytes = b"v", partition: int = PARTITION) -> bytes:
    return described(put(seqno, value, partition), born(3, seqno))


def opened(*partitions: int, window_bytes: int = 1 << 20) -> ConsumerCore:
    core = ConsumerCore(document_meta=True, window_bytes=window_bytes)
    data = b""
    for partition in partitions or (PARTITION,):
        core.follow(partition)
        data += response(Opcode.BRANCH_LOG, 0, partition, value=encode_branch_log(LOG))
        data += response(Opcode.DCP_STREAM_REQ, 0, partition, value=encode_failover_log(LOG))
        data += snapshot_marker(partition, partition, 0, 1000, 1)
    core.receive_data(data)
    core.take_bytes()
    return core


def test_it_is_asked_for_when_the_connection_opens() -> None:
    core = ConsumerCore(document_meta=True)
    core.start(b"me")
    asked = packets_of(core.take_bytes())
    assert (asked[-1].key, asked[-1].value) == (b"document_meta", b"true")
    with pytest.raises(RemoteProtocolError, match="refused document_meta"):
        core.receive_data(response(asked[-1].opcode, Status.EINVAL, asked[-1].opaque))


def test_only_nodes_of_our_own_send_lineages() -> None:
    core = ConsumerCore(document_meta=True, has_extensions=False)
    with pytest.raises(LocalProtocolError) as caught:
        core.start(b"me")
    assert caught.value.code == "not_supported"


def test_lineages_stand_beside_their_changes() -> None:
    core = opened(4, 5)
    data = pair(1) + pair(3) + pair(7, partition=4) + pair(4) + snapshot_marker(5, 5, 0, 1001, 1)
    first, second, third, _ = core.receive_data(data)
    assert isinstance(first, ChangesReceived)
    assert (first.partition_id, first.frames) == (5, [put(1), put(3)])
    assert first.sides == [born(3, 1), born(3, 3)]
    assert isinstance(second, ChangesReceived)
    assert (second.partition_id, second.sides) == (4, [born(3, 7)])
    assert isinstance(third, ChangesReceived)
    assert (third.position.seqno, third.sides) == (4, [born(3, 4)])


def test_who_did_not_ask_has_none() -> None:
    core = ConsumerCore()
    core.follow(PARTITION)
    granted = response(Opcode.DCP_STREAM_REQ, 0, PARTITION, value=encode_failover_log(LOG))
    events = core.receive_data(granted + snapshot_marker(PARTITION, PARTITION, 0, 9, 1) + put(9))
    assert isinstance(events[-2], ChangesReceived)
    assert list(events[-2].sides) == []
    with pytest.raises(RemoteProtocolError, match="0x6f"):
        core.receive_data(pair(10))


def test_all_of_a_snapshot_completes_it() -> None:
    core = opened()
    events = core.receive_data(pair(999) + pair(1000))
    assert [type(event) for event in events] == [ChangesReceived, SnapshotCompleted]
    assert events[0].position == events[1].position


def test_both_count_for_the_window() -> None:
    core = opened(window_bytes=10_000)
    core.take_bytes()
    before = core._unacked_bytes
    core.receive_data(pair(1) + pair(2))
    assert core._unacked_bytes - before == len(pair(1) + pair(2))
    core.close_stream(PARTITION)
    assert core.receive_data(pair(3)) == []
    assert core._unacked_bytes - before == len(pair(1) * 3)


def test_a_sidecar_stands_behind_the_lineage() -> None:
    core = opened()
    lineage = born(3, 2)
    data = pair(1) + described(put(2), lineage, b"sidecar") + pair(3)
    (event,) = core.receive_data(data)
    assert isinstance(event, ChangesReceived)
    assert event.sides == [born(3, 1), side_of(lineage, b"sidecar"), born(3, 3)]
    assert core._unacked_bytes >= len(data)


@given(st.lists(st.integers(1, 120), max_size=8), st.integers(0, 70))
def test_pairs_may_come_in_any_pieces(sizes: list[int], value_bytes: int) -> None:
    seqnos = [1, 2, 5, 9]
    data = b"".join(pair(seqno, bytes(value_bytes)) for seqno in seqnos)
    data += stream_end(PARTITION, PARTITION, 0)
    core = opened()
    events: list[Event] = []
    for size in sizes:
        piece, data = data[:size], data[size:]
        events += core.receive_data(piece) if piece else []
    events += core.receive_data(data) if data else []
    changes = [event for event in events if isinstance(event, ChangesReceived)]
    assert [seqno_of(frame) for event in changes for frame in event.frames] == seqnos
    assert [one for event in changes for one in event.sides] == [born(3, s) for s in seqnos]
    assert isinstance(events[-1], StreamEnded)


def test_a_large_pair_is_joined_once() -> None:
    one = pair(1, bytes(5_000_000))
    assert needed_bytes(b"") == needed_bytes(one[:23]) == 24
    assert (
        needed_bytes(one[:24])
        == needed_bytes(one[:59])
        == len(one) - len(put(1, b"")) - 5_000_000 + 24
    )
    assert needed_bytes(one[:80]) == len(one)
    assert needed_bytes(put(1)[:24]) == len(put(1))


def broken(at: int, byte: int) -> bytes:
    data = bytearray(pair(9))
    data[at] = byte
    return bytes(data)


META_BYTES = len(pair(9)) - len(put(9))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (put(9), "no lineage is before"),
        (pair(9)[:META_BYTES] * 2 + put(9), "before opcode 0x6f"),
        (pair(9)[:META_BYTES] + snapshot_marker(5, 5, 1000, 2000, 1), "before opcode 0x56"),
        (pair(9)[:META_BYTES] + stream_end(5, 5, 0), "before opcode 0x55"),
        (pair(9)[:META_BYTES] + put(10), "the lineage of 9 before change 10"),
        (pair(9)[:META_BYTES] + put(9, partition=4), "before change 9 of 4"),
        (broken(15, 6), "before change 9"),  # opaque
        (broken(4, 7), "or it is cut"),
        (broken(3, 1), "or it is cut"),
        (broken(33, 3), "or it is cut"),  # a lineage longer than there are bytes
        (broken(33, 1), "its lineage is cut"),
        (broken(34, 0), "its lineage is cut"),  # of no branch: a side with a sidecar begins so
        (broken(35, 0x89), "its lineage is cut"),
        (broken(META_BYTES + 11, 18), "its lineage is cut"),  # a body too short for the key
        (broken(8, 0xFF), "too long"),
        (broken(META_BYTES + 8, 0xFF), "too long"),
        (pair(9) + pair(9), "change 9 after 9"),
        (pair(1001), "expected 0 < seqno <= 1000"),
        (pair(9, partition=6), "no stream"),
    ],
)
def test_what_no_server_may_send(data: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        opened(4, 5).receive_data(data + bytes(64))


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.binary())
def test_spoiled_bytes_are_understood_or_refused(
    spoils: list[tuple[int, int]], rest: bytes
) -> None:
    data = bytearray(pair(1) + pair(2) + pair(4))
    for at, byte in spoils:
        data[at % len(data)] = byte
    core = opened()
    try:
        events = core.receive_data(bytes(data) + rest)
    except RemoteProtocolError:
        return
    for event in events:
        if isinstance(event, ChangesReceived):
            assert len(event.frames) == len(event.sides)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),
            st.sampled_from([5, 5, 5, 6]),
            st.sampled_from([b"", b"a", b"abc"]),
            st.sampled_from([born(3, 9), born(2**40, 2**33), with_run(born(3, 9), 200, 4)]),
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=1),
    st.integers(0, 100),
)
def test_plain_pairs_are_cut_as_all_others(
    changes: list[tuple[int, int, bytes, bytes]], spoils: list[tuple[int, int]], missing: int
) -> None:
    """What is cut in one go is what comes of cutting each pair with all checks."""
    seqno, data = 0, bytearray()
    for step, partition, value, lineage in changes:
        seqno += step if step < 40 else -1
        data += described(put(max(seqno, 1), value, partition), lineage)
    for at, byte in spoils:
        data[at % (len(data) or 1) : at % (len(data) or 1) + 1] = bytes([byte])[: len(data)]
    whole = bytes(data[: max(0, len(data) - missing)] if missing < 90 else data)

    def cut() -> object:
        try:
            return cut_run(whole, 0)
        except RemoteProtocolError as error:
            return error.code, str(error)

    found = cut()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptions, "_cut_plain", lambda data, at, stream, last, *_: (last, at))
        assert found == cut()


def test_runs_end_where_another_stream_begins() -> None:
    data = pair(1) + pair(2) + pair(3, partition=6) + pair(4)
    run, stop = cut_run(data, 0)
    assert (run.partition_id, run.opaque, run.first, run.last) == (5, 5, 1, 2)
    assert stop == len(pair(1)) * 2
    assert cut_run(data, stop)[0].partition_id == 6
    assert cut_packets(data, 1 << 20)[1] == b""
    assert cut_run(data[:40], 0) == ((0, 0, 0, 0, [], []), 0)
