import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.model.position import FailoverEntry, Position
from millstream.trees.core.shapes import Root
from millstream.views.core.index.header import (
    MAP_ERROR_CHARACTERS_MAX,
    MAP_ERRORS_KEPT_MAX,
    Header,
    Judged,
    MapErrors,
    MapFailure,
    bitmap_of,
    decode_header,
    encode_header,
    members_of,
    with_checksum,
)

PARTITIONS = st.integers(0, 1023)
UINT64 = st.integers(0, 2**64 - 1)
POSITIONS = st.builds(Position, UINT64, UINT64, UINT64, UINT64, st.none() | UINT64)
ROOTS = st.none() | st.builds(
    Root, UINT64, st.integers(0, 9), UINT64, st.sets(PARTITIONS, min_size=1).map(bitmap_of),
    st.binary(max_size=9),
)  # fmt: skip
HEADERS = st.builds(
    Header,
    signature=st.text(max_size=9),
    collation=st.text(max_size=9),
    reduces=st.lists(st.lists(st.text(max_size=5), max_size=2).map(tuple), max_size=3).map(tuple),
    commit=UINT64,
    next_node=UINT64,
    nodes=UINT64,
    fence=UINT64,
    writer=st.text(max_size=9),
    states=st.dictionaries(PARTITIONS, st.sampled_from(("active", "passive", "cleanup"))),
    positions=st.dictionaries(PARTITIONS, POSITIONS),
    failover_logs=st.dictionaries(
        PARTITIONS, st.lists(st.builds(FailoverEntry, UINT64, UINT64, UINT64)).map(tuple)
    ),
    purge_seqnos=st.dictionaries(PARTITIONS, UINT64),
    void=st.sets(PARTITIONS).map(bitmap_of),
    back=ROOTS,
    trees=st.lists(ROOTS, max_size=3).map(tuple),
    map_errors=st.dictionaries(
        st.integers(0, 9), st.builds(MapErrors, UINT64, st.just((("id", "message"),)))
    ),
    created_ms=UINT64,
    committed_ms=UINT64,
)


@given(HEADERS)
def test_a_header_comes_back_from_its_bytes(header):
    assert decode_header(encode_header(header)) == header


@given(st.sets(PARTITIONS))
def test_bitmaps_have_their_partitions(partitions):
    assert list(members_of(bitmap_of(partitions))) == sorted(partitions)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", b"rubbish", b"\x81\xa6commit\xff"])
def test_random_bytes_are_not_a_header(data):
    for given_data, match in ((data, "checksum"), (with_checksum(data), "header")):
        with pytest.raises(CorruptionError, match=match) as raised:
            decode_header(given_data)
        assert raised.value.code == "index_damaged"


@given(HEADERS, st.integers(0), st.integers(0, 255))
def test_a_changed_byte_is_damage(header, at, byte):
    data = bytearray(encode_header(header))
    data[at % len(data)] ^= byte
    with pytest.raises(CorruptionError) if byte else contextlib.nullcontext():
        decode_header(bytes(data))


def test_queries_use_the_values_of_the_header():
    positions = {p: Position(7, p, p, p) for p in range(3)}
    header = Header(
        signature="", collation="", reduces=(), positions=positions,
        states={0: "active", 1: "active", 2: "passive"},
    )  # fmt: skip
    moved = msgspec.structs.replace(header, positions={**positions, 2: Position(7, 9, 9, 9)})
    assert header.active == moved.active == 0b11
    assert header.vector(0b10) == moved.vector(0b10) == header.vector(0b10)
    assert header.vector(0b110) != moved.vector(0b110)
    assert header.vector(0b100) not in (header.vector(0b10), header.vector(0b110))
    states = dict.fromkeys(header.states, "passive")
    assert msgspec.structs.replace(header, states=states).active == 0


def test_active_and_dirty_partitions():
    header = Header(
        signature="", collation="", reduces=(),
        states={0: "active", 1: "passive", 2: "cleanup", 3: "active"},
        positions={0: Position(), 1: Position(), 3: Position()}, void=0b1000,
    )  # fmt: skip
    assert header.countable == 0b0011
    assert header.dirty == 0b1100
    assert header.bitmap("active") == 0b1001
    assert header.bitmap("active", "passive") == 0b1011
    assert header.roots == (None,)


def test_only_the_last_documents_that_failed_are_listed():
    errors = MapErrors()
    for number in range(MAP_ERRORS_KEPT_MAX + 5):
        errors = errors.with_failures([MapFailure(0, f"d{number}", "x" * 1000)])
    assert errors.total == MAP_ERRORS_KEPT_MAX + 5
    assert [doc_id for doc_id, _ in errors.last] == [f"d{n}" for n in range(5, 25)]
    assert {len(message) for _, message in errors.last} == {MAP_ERROR_CHARACTERS_MAX}


def test_positions_are_judged_by_the_rule_of_streams():
    judged = Judged(
        (FailoverEntry(2, 10, 2), FailoverEntry(1, 0, 1)), high_seqno=20, purge_seqno=5
    )
    assert judged.accepts(Position())
    assert judged.accepts(Position(1, 10, 10, 10))
    assert judged.accepts(Position(2, 20, 20, 20))
    assert not judged.accepts(Position(1, 11, 11, 11))
    assert not judged.accepts(Position(1, 4, 4, 4))  # purged
    assert not judged.accepts(Position(3, 6, 6, 6))
