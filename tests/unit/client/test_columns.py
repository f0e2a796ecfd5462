from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.columns import ChangeMeta, Columns, cut_columns, decode_meta, encode_meta
from millstream.model.partitions import key_from_text
from millstream.wire.frames import (
    change_of,
    deletion,
    described,
    expiration,
    mutation,
    snapshot_marker,
    stream_end,
    with_profile,
)

U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
SEQNO = st.integers(1, 2**48 - 1)
KEY = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.text(min_size=1, max_size=20).map(str.encode),
    st.sampled_from([b"\\x", b"\\x00", b"a\nb", b"\n", b"\xff", b"plain"]),
)
DATATYPE = st.integers(0, 7)
CHANGE = st.one_of(
    st.builds(mutation, U16, KEY, st.binary(max_size=50), SEQNO, U64, U64, U32, U32, DATATYPE),
    st.builds(deletion, U16, KEY, SEQNO, U64, U64, U32),
    st.builds(expiration, U16, KEY, SEQNO, U64, U64, U32),
)
OPS = {0x57: "put", 0x58: "delete", 0x59: "expire"}


def signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@given(frames=st.lists(CHANGE, max_size=30))
def test_columns_are_what_the_frames_say(frames: list[bytes]) -> None:
    columns = Columns()
    cut_columns(b"".join(frames), columns)
    changes = [change_of(frame) for frame in frames]
    assert len(columns) == len(frames)
    assert columns.op == [OPS[change.opcode] for change in changes]
    assert [key_from_text(key) for key in columns.key] == [change.key for change in changes]
    for name in ("seqno", "flags", "expiry", "datatype"):
        assert getattr(columns, name) == [getattr(change, name) for change in changes]
    assert columns.partition == [change.partition_id for change in changes]
    assert columns.rev == [signed(change.rev) for change in changes]
    assert columns.cas == [signed(change.cas) for change in changes]
    assert columns.value == [None if c.is_deleted else c.value for c in changes]


def test_other_messages_add_no_row_and_chunks_add_up() -> None:
    columns = Columns()
    put = mutation(3, b"k", b"v", 5, 1, 9, 0xFFFFFFFF, 0, 1)
    cut_columns(snapshot_marker(3, 3, 1, 5, 1) + put, columns)
    cut_columns(put + stream_end(3, 3, 0), columns)
    cut_columns(b"", columns)
    assert columns.key == ["k", "k"]
    assert columns.flags == [0xFFFFFFFF] * 2


def test_deletion_without_time() -> None:
    profile: dict[str, Any] = {
        "opaque": 1, "keep_json": True, "delete_times": False, "expiry_opcode": False,
        "with_values": True, "keep_datatype": True,
    }  # fmt: skip
    columns = Columns()
    cut_columns(with_profile([deletion(1, b"k", 5, 1, 9, 1234)], **profile)[0], columns)
    assert (columns.op, columns.expiry, columns.key) == (["delete"], [0], ["k"])


@given(
    changes=st.lists(st.tuples(CHANGE, st.binary(max_size=300), st.binary(max_size=9)), max_size=9)
)
def test_described_changes_are_the_same_rows_with_what_was_beside_them(
    changes: list[tuple[bytes, bytes, bytes]],
) -> None:
    plain, columns = Columns(), Columns()
    cut_columns(b"".join(frame for frame, _, _ in changes), plain)
    cut_columns(b"".join(described(*change) for change in changes), columns)
    assert [decode_meta(meta) for meta in columns.meta] == [
        ChangeMeta(lineage, sidecar) for _, lineage, sidecar in changes
    ]
    columns.meta.clear()
    assert columns == plain


def test_meta_is_an_array_of_two_binaries_that_may_grow() -> None:
    assert encode_meta(b"ab") == b"\x92\xc4\x02ab\xc4\x00"
    assert decode_meta(b"\x93\xc4\x02ab\xc4\x00\xc4\x01z") == ChangeMeta(b"ab")
    for bad in (b"", b"\x91\xc4\x00", b"\xc4\x00", b"\x92\xa1a\xc4\x00", b"\x92\xc4\x02a"):
        with pytest.raises(ValueError):
            decode_meta(bad)
