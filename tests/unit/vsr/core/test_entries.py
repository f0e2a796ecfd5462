"""Entries: one encoding each, hashes that cover everything, damage that is told."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.vsr.core.entries import (
    BODY_BYTES_MAX,
    GENESIS,
    HEADER_BYTES,
    Body,
    Entry,
    Kind,
    Link,
    chain,
    check_chain,
    decode_body,
    decode_entry,
    decode_header,
    encode_body,
    encode_entry,
    hash_of,
)

GROUP = bytes(range(16))
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 2)
ids = st.binary(min_size=16, max_size=16)
short = st.binary(max_size=20)
bodies = st.builds(
    Body, short, st.lists(short, max_size=3).map(tuple), st.lists(short, max_size=4).map(tuple)
)
links = st.builds(Link, u64, ids, u64)
entries = st.builds(
    chain,
    links,
    group_id=ids,
    epoch=u32,
    view=u32,
    kind=st.sampled_from(Kind),
    ts_ms=u64,
    body=bodies,
    instance=ids,
    session=u64,
    csn=u64,
    claim=st.booleans(),
)


def log(count: int, link: Link = GENESIS) -> list[Entry]:
    found = []
    for number in range(count):
        body = Body(b"ann", (b"staff",), (b"PUT", b"/a/%d" % number))
        found.append(
            chain(
                link, group_id=GROUP, epoch=0, view=3, kind=Kind.REQUEST, ts_ms=number, body=body
            )
        )
        link = found[-1].header.link
    return found


@given(entries, st.binary(max_size=40), st.binary(max_size=40))
def test_an_entry_is_read_as_it_was_written(entry: Entry, before: bytes, behind: bytes) -> None:
    data = encode_entry(entry)
    assert decode_entry(before + data + behind, len(before)) == entry
    assert encode_entry(decode_entry(data)) == data
    assert decode_header(data) == entry.header
    assert data[HEADER_BYTES - 16 : HEADER_BYTES] == entry.header.hash
    assert encode_body(entry.content) == entry.body


@given(entries, st.data())
def test_no_flipped_bit_and_no_cut_is_taken_for_an_entry(
    entry: Entry, data: st.DataObject
) -> None:
    whole = encode_entry(entry)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="fetch it from another member"):
        decode_entry(bytes(damaged))
    with pytest.raises(CorruptionError):
        decode_entry(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(entries, st.sampled_from(["epoch", "view", "session", "csn", "claim", "kind", "ts_ms"]))
def test_every_field_counts_in_the_hash(entry: Entry, name: str) -> None:
    old = getattr(entry.header, name)
    new = Kind(old % 9 + 1) if name == "kind" else not old if name == "claim" else old ^ 1
    header = entry.header._asdict()
    header["body"] = entry.content
    before = Link(header["lsn"] - 1, header["prev_hash"], 0)
    for known in ("lsn", "prev_hash", "body_length", "body_hash", "encoded"):
        del header[known]
    assert chain(before, **header) == entry
    assert chain(before, **header | {name: new}).header.hash != entry.header.hash


@given(bodies, st.binary(max_size=60))
def test_bodies_have_one_encoding_and_rubbish_has_none(body: Body, rubbish: bytes) -> None:
    assert decode_body(encode_body(body)) == body
    with suppress(CorruptionError):
        assert encode_body(decode_body(rubbish)) == rubbish


def test_a_chain_holds_together() -> None:
    entries = log(5)
    end = check_chain(GENESIS, GROUP, entries)
    assert end == entries[-1].header.link
    assert end.lsn == 5
    middle = entries[1].header.link
    assert check_chain(middle, GROUP, entries[2:]) == end


@pytest.mark.parametrize("wrong", [[0, 2], [1], [0, 0], [1, 0]])
def test_a_gap_a_repetition_or_another_order_is_no_chain(wrong: list[int]) -> None:
    entries = log(3)
    with pytest.raises(CorruptionError) as caught:
        check_chain(GENESIS, GROUP, [entries[i] for i in wrong])
    assert caught.value.code == "broken_chain"


def test_an_entry_of_another_group_or_another_past_is_no_part_of_a_chain() -> None:
    entries, others = log(3), log(2, Link(1, hash_of(b"another"), 0))
    with pytest.raises(CorruptionError, match="does not follow LSN 0"):
        check_chain(GENESIS, bytes(16), entries)
    with pytest.raises(CorruptionError, match="LSN 2 does not follow LSN 1"):
        check_chain(GENESIS, GROUP, [entries[0], others[0]])


def test_time_never_falls_along_the_log() -> None:
    entry = chain(
        Link(7, bytes(16), 500), group_id=GROUP, epoch=0, view=0, kind=Kind.NOOP, ts_ms=9
    )
    assert entry.header.ts_ms == 500
    early = entry.header._replace(ts_ms=499)
    assert not early.follows(Link(7, bytes(16), 500))


@pytest.mark.parametrize(("at", "value"), [(0, 2), (1, 99), (1, 0), (3, 2)])
def test_files_of_newer_versions_are_named_as_such(at: int, value: int) -> None:
    packed = bytearray(log(1)[0].header.encoded[:-16])
    packed[at] = value
    with pytest.raises(CorruptionError, match="newer one wrote it") as caught:
        decode_header(bytes(packed) + hash_of(bytes(packed)))
    assert caught.value.code == "unknown_entry"


def test_a_body_over_the_bound_is_refused_before_it_is_read() -> None:
    packed = bytearray(log(1)[0].header.encoded[:-16])
    packed[4:8] = (BODY_BYTES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(CorruptionError, match="longer than"):
        decode_header(bytes(packed) + hash_of(bytes(packed)))
