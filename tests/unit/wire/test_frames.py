"""Stream frames: cut back into what went in, and patched for consumers of other profiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.wire.frames import (
    Change,
    change_of,
    deletion,
    described,
    described_all,
    description_bytes,
    expiration,
    is_put,
    item_end,
    iter_frames,
    iter_items,
    mutation,
    seqno_of,
    snapshot_marker,
    stream_end,
    with_profile,
)
from millstream.wire.mcbp import Opcode, cut_packets

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
PARTITIONS = st.integers(0, 1023)
KEYS = st.binary(min_size=1, max_size=250)

mutations = st.builds(
    lambda *fields: (mutation(*fields), fields),
    *(PARTITIONS, KEYS, st.binary(max_size=300), U64, U64, U64, U32, U32, st.integers(0, 7)),
)

PUT = mutation(5, b"key", b'{"a":1}', 42, 3, 0x1122, 0xFFFFFFFF, 60, 1)
DELETE = deletion(5, b"key", 43, 4, 0x1123, 1_700_000_000)
EXPIRE = expiration(5, b"key", 44, 5, 0x1124, 1_700_000_001)
PROFILE = {
    "opaque": 9,
    "keep_json": True,
    "delete_times": True,
    "expiry_opcode": True,
    "with_values": True,
    "keep_datatype": False,
}


@given(mutations)
def test_a_mutation_is_cut_back_into_its_fields(made: tuple[bytes, tuple[object, ...]]) -> None:
    frame, (partition_id, key, value, seqno, rev, cas, flags, expiry, datatype) = made
    assert change_of(frame) == Change(
        Opcode.DCP_MUTATION, partition_id, seqno, rev, cas, flags, expiry, datatype, key, value
    )  # type: ignore[arg-type]
    assert seqno_of(frame) == seqno


@given(PARTITIONS, KEYS, U64, U64, U64, U32)
def test_deletions_and_expirations_too(
    partition_id: int, key: bytes, seqno: int, rev: int, cas: int, time: int
) -> None:
    for make, opcode in (
        (deletion, Opcode.DCP_DELETION),
        (expiration, Opcode.DCP_EXPIRATION),
    ):
        change = change_of(make(partition_id, key, seqno, rev, cas, time))
        assert change == Change(opcode, partition_id, seqno, rev, cas, 0, time, 0, key, b"")
        assert change.is_deleted


def test_a_mutation_is_laid_out_as_documented() -> None:
    assert PUT.hex(" ", -4) == (
        "80570003 1f010005 00000029 00000005 00000000 00001122 00000000 0000002a 00000000 "
        "00000003 ffffffff 0000003c 00000000 0000006b 65797b22 61223a31 7d"
    )


def test_frames_are_packets_and_stand_back_to_back() -> None:
    stream = [
        snapshot_marker(5, 9, 1, 44, 1),
        PUT,
        DELETE,
        EXPIRE,
        stream_end(5, 9, 0),
    ]
    assert list(iter_frames(b"".join(stream))) == stream
    found, rest = cut_packets(b"".join(stream), 1 << 20)
    assert rest == b""
    assert [one.opcode for one in found] == [0x56, 0x57, 0x58, 0x59, 0x55]
    assert found[0].extras == bytes.fromhex("0000000000000001 000000000000002c 00000001")
    assert found[4].extras == bytes(4)


def test_the_canonical_profile_only_changes_the_opaque() -> None:
    for frame, patched in zip(
        (PUT, DELETE, EXPIRE), with_profile([PUT, DELETE, EXPIRE], **PROFILE), strict=True
    ):
        assert patched[:12] + patched[16:] == frame[:12] + frame[16:]
        assert patched[12:16] == bytes([0, 0, 0, 9])


def test_without_values_the_body_is_the_key() -> None:
    (frame,) = with_profile([PUT], **PROFILE | {"with_values": False})
    assert change_of(frame) == change_of(PUT)._replace(value=b"", datatype=0)
    (frame,) = with_profile([PUT], **PROFILE | {"with_values": False, "keep_datatype": True})
    assert change_of(frame) == change_of(PUT)._replace(value=b"")


def test_without_json_the_bit_is_cleared() -> None:
    (frame,) = with_profile([PUT], **PROFILE | {"keep_json": False})
    assert change_of(frame) == change_of(PUT)._replace(datatype=0)


def test_expirations_become_deletions_where_not_asked_for() -> None:
    (frame,) = with_profile([EXPIRE], **PROFILE | {"expiry_opcode": False})
    assert change_of(frame) == change_of(EXPIRE)._replace(opcode=Opcode.DCP_DELETION)


@pytest.mark.parametrize("original", [DELETE, EXPIRE])
def test_deletions_without_times_are_of_the_first_version(original: bytes) -> None:
    (frame,) = with_profile(
        [original], **PROFILE | {"delete_times": False, "expiry_opcode": False}
    )
    assert frame[4] == 18
    assert change_of(frame) == change_of(original)._replace(opcode=Opcode.DCP_DELETION, expiry=0)


def test_frames_as_other_implementations_write_them() -> None:
    """Whole frames with an opaque that is not the partition's, deletions without times."""
    put = mutation(8, b"k1", b"{}", 9, 2, 0x1122334455667788, 0x02000000, 0, 1)
    gone = deletion(8, b"k1", 10, 3, 0x1122334455667789, 1_700_000_000)
    profile = PROFILE | {"opaque": 0x1000, "delete_times": False, "expiry_opcode": False}
    frames = [snapshot_marker(8, 0x1000, 7, 9, 5), *with_profile([put, gone], **profile)]
    assert [frame.hex() for frame in frames] == [
        "8056000014000008000000140000100000000000000000000000000000000007000000000000000900000005",
        "805700021f01000800000023000010001122334455667788"
        "00000000000000090000000000000002020000000000000000000000000000"
        "6b317b7d",
        "805800021200000800000014000010001122334455667789000000000000000a000000000000000300006b31",
    ]


# -- described


@pytest.mark.parametrize("frame", [PUT, DELETE, EXPIRE])
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_description_stands_before_its_frame(
    frame: bytes, lineage: bytes, sidecar: bytes
) -> None:
    item = described(frame, lineage, sidecar)
    meta, change = cut_packets(item, 1 << 20)[0]
    assert (meta.opcode, meta.vbucket, meta.opaque, meta.cas) == (0x6F, 5, 5, 0)
    assert meta.extras == change.extras[:8]
    assert meta.value == len(lineage).to_bytes(2, "big") + lineage + sidecar
    assert item[description_bytes(item) :] == frame
    assert seqno_of(item) == seqno_of(frame)
    assert is_put(item) == is_put(frame) == (frame is PUT)
    assert description_bytes(frame) == 0


@given(st.lists(st.tuples(st.sampled_from([PUT, DELETE, EXPIRE]), st.binary(max_size=300))))
def test_many_are_described_as_each_is(changes: list[tuple[bytes, bytes]]) -> None:
    frames, lineages = [frame for frame, _ in changes], [lineage for _, lineage in changes]
    assert described_all(frames, lineages) == [described(*change) for change in changes]


def test_a_change_and_its_description_are_one_item() -> None:
    marker = snapshot_marker(5, 5, 0, 100, 1)
    items = [described(PUT, b"one"), marker, DELETE, described(EXPIRE, b"")]
    data = b"".join(items)
    assert list(iter_items(data)) == items
    assert len(list(iter_frames(data))) == 6
    assert item_end(data, 0) == len(items[0])
    assert item_end(data, len(items[0])) == len(items[0]) + len(marker)
