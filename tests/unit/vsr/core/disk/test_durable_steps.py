"""Superblock, slots and snapshots as bytes: one reading each, damage that is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.disk.durable_steps import (
    COPY_BYTES,
    SLOT_BYTES,
    DurableImage,
    Extent,
    Layout,
    Place,
    Root,
    Slot,
    decode_root,
    decode_slot,
    decode_snapshot,
    encode_root,
    encode_slot,
    encode_snapshot_head,
    newest_root,
)
from millstream.vsr.core.effects import Damaged
from millstream.vsr.core.entries import (
    GENESIS,
    Header,
    Kind,
    Link,
    chain,
    hash_of,
)
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.snapshots import SnapshotId, snapshot_of

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 2)
ids = st.binary(min_size=16, max_size=16)
links = st.builds(Link, u64, ids, u64)
members = st.lists(ids, max_size=7).map(tuple)
configurations = st.builds(Configuration, u32, members, u32, members, u64, ids)
hard_states = st.builds(
    HardState, ids, ids, u64, u32, st.tuples(u32, u32), configurations,
    st.none() | configurations, u64,
)  # fmt: skip
snapshot_ids = st.builds(SnapshotId, u64, links, st.binary(min_size=32, max_size=32))
layouts = st.builds(
    Layout, links, u64, st.lists(st.builds(Extent, u64, u64, u64), max_size=5).map(tuple)
)
roots = st.builds(Root, u64, hard_states, st.none() | snapshot_ids, layouts)
headers = st.builds(
    lambda link, view: (
        chain(link, group_id=bytes(16), epoch=0, view=view, kind=Kind.NOOP, ts_ms=0).header
    ),
    links,
    u32,
)
copies = st.integers(0, 1)


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@given(roots, copies, st.binary(max_size=50))
def test_a_superblock_is_read_as_it_was_written(root: Root, copy: int, rest: bytes) -> None:
    data = encode_root(root, copy)
    assert decode_root(data + rest, copy) == root
    assert encode_root(root, copy) == data
    assert decode_root(data, 1 - copy) is None


@given(roots, copies, st.data())
def test_a_damaged_superblock_is_none(root: Root, copy: int, data: st.DataObject) -> None:
    whole = encode_root(root, copy)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    assert decode_root(flipped(whole, bit), copy) is None
    assert decode_root(whole[: data.draw(st.integers(0, len(whole) - 1))], copy) is None


def root_of(sequence: int, view: int = 0) -> Root:
    hard_state = HardState(bytes(16), bytes(16), 0, view, (0, 0), Configuration(0, (bytes(16),)))
    return Root(sequence, hard_state, None, Layout(GENESIS, 1, ()))


@pytest.mark.parametrize(
    ("first", "second", "wanted", "stale"),
    [
        (5, 5, 5, ()),
        (5, 4, 5, (1,)),
        (4, 5, 5, (0,)),
        (5, None, 5, (1,)),
        (None, 5, 5, (0,)),
        (None, None, None, (0, 1)),
    ],
)
def test_the_newest_whole_copy_is_in_force(
    first: int | None, second: int | None, wanted: int | None, stale: tuple[int, ...]
) -> None:
    data = b"".join(
        (b"" if sequence is None else encode_root(root_of(sequence), copy)).ljust(
            COPY_BYTES, b"\0"
        )
        for copy, sequence in enumerate((first, second))
    )
    root, found = newest_root(data)
    assert (root and root.sequence) == wanted
    assert found == stale


def test_a_superblock_of_another_version_is_not_taken_for_damage() -> None:
    data = bytearray(encode_root(root_of(1), 0))
    data[9] = 2
    data[-16:] = hash_of(bytes(data[:-16]))
    with pytest.raises(CorruptionError, match="version 2; start the version of Millstream"):
        decode_root(bytes(data), 0)


def test_a_superblock_names_thousands_of_segments() -> None:
    extents = tuple(Extent(2**33 + i, 2**40 + i, 2**40 + i) for i in range(2000))
    root = root_of(1)._replace(layout=Layout(GENESIS, 1, extents))
    assert decode_root(encode_root(root, 1), 1) == root


@given(headers, u64, u64, st.data())
def test_slots(header: Header, segment: int, offset: int, data: st.DataObject) -> None:
    slot = Slot(header, Place(segment, offset))
    whole = encode_slot(header.encoded, slot.place)
    assert len(whole) == SLOT_BYTES
    assert decode_slot(whole) == slot
    assert decode_slot(flipped(whole, data.draw(st.integers(0, 8 * SLOT_BYTES - 1)))) is None
    assert decode_slot(whole[:-1]) is None
    assert decode_slot(bytes(SLOT_BYTES)) is None


@given(u64, links, st.binary(max_size=99), st.data())
def test_snapshots(number: int, link: Link, content: bytes, data: st.DataObject) -> None:
    snapshot = snapshot_of(number, link, content)
    whole = encode_snapshot_head(snapshot) + content
    assert decode_snapshot(whole) == snapshot
    assert snapshot.id.lsn == link.lsn
    assert decode_snapshot(flipped(whole, data.draw(st.integers(0, 8 * len(whole) - 1)))) is None
    assert decode_snapshot(whole + b"x") is None
    assert decode_snapshot(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


def test_which_segment_has_an_lsn() -> None:
    layout = Layout(Link(10, bytes(16), 0), 1, (Extent(3, 11, 14), Extent(5, 15, 15)))
    assert [layout.segment_of(lsn) for lsn in (10, 11, 14, 15, 16)] == [None, 3, 3, 5, None]
    opened = layout._replace(segments=(*layout.segments, Extent(6, 16, 0)))
    assert opened.segment_of(10**9) == 6


def test_an_image_tells_whole_from_faulty() -> None:
    first = chain(GENESIS, group_id=bytes(16), epoch=0, view=0, kind=Kind.NOOP, ts_ms=5)
    link = first.header.link
    second = chain(link, group_id=bytes(16), epoch=0, view=0, kind=Kind.NOOP, ts_ms=5)
    image = DurableImage(None, headers=(first.header, second.header), bodies=(None, second.body))
    assert (image.op_lsn, image.link) == (2, second.header.link)
    assert list(image.faulty()) == [1]
    assert image.log == (Damaged(first.header), second)
    assert (image.entry(1), image.entry(2)) == (None, second)
    assert DurableImage(None).link == GENESIS
