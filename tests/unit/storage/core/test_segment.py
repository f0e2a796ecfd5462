from hypothesis import given
from hypothesis import strategies as st

from millstream.storage.core.records import ENVELOPE_BYTES, Kind, walk
from millstream.storage.core.segment import (
    FOOTER_BYTES,
    TOMBSTONE,
    Columns,
    OpenIndex,
    Rewriting,
    decode_columns,
    decode_controls,
    decode_footer,
    decode_header,
    directory_entries,
    encode_header,
    find_entry,
)

LOG_ID = bytes(range(16))


def test_header_is_read_back_and_damage_is_seen():
    data = encode_header(7, LOG_ID)
    header = decode_header(data)
    assert (header.version, header.number, header.log_id) == (1, 7, LOG_ID)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert decode_header(bytes(damaged)) is None
    assert decode_header(data[:-1]) is None


def test_the_header_of_a_compacted_segment():
    header = decode_header(encode_header(7, LOG_ID))
    assert (header.rewriting, header.first) == (Rewriting(), 7)
    rewriting = Rewriting(3, 9, 1234, 2)
    header = decode_header(encode_header(7, LOG_ID, rewriting))
    assert (header.rewriting, header.first) == (rewriting, 3)


def test_flags_tell_tombstones_from_sealing_on():
    index = OpenIndex()
    index.add_batch(3, [2, 5, 9], [0, 2, 0], 64, [100, 100, 100], tombstones=[5, 9])
    index.add_batch(4, [1], [0], 364, [100])
    below, above = index.of(3).split(5)
    assert (list(below.tombstones), list(above.tombstones)) == ([5], [9])
    data = index.encode(464, 0)
    footer = decode_footer(data[-FOOTER_BYTES:])
    flags = footer.flags_offset - 464
    assert data[flags : flags + 4] == bytes([0, TOMBSTONE, TOMBSTONE, 0])


@st.composite
def indexes(draw):
    index, offset = OpenIndex(), 64
    for partition_id in draw(st.lists(st.integers(0, 1023), max_size=8, unique=True)):
        seqno = 0
        for _ in range(draw(st.integers(1, 3))):
            steps = draw(st.lists(st.integers(1, 2**40), min_size=1, max_size=5))
            seqnos = []
            for step in steps:
                seqno += step
                seqnos.append(seqno)
            lengths = [draw(st.integers(80, 400)) for _ in seqnos]
            previous = [draw(st.integers(0, 2**48)) for _ in seqnos]
            index.add_batch(partition_id, seqnos, previous, offset, lengths)
            offset += sum(lengths)
    index.controls.extend(draw(st.lists(st.integers(64, 2**32 - 1), max_size=3)))
    return index, offset


def equal(one, other):
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("seqnos", "previous", "offsets", "lengths", "marks")
    )


@given(indexes())
def test_a_sealed_index_gives_the_same_columns(made):
    index, end = made
    data = bytes(end) + index.encode(end, 1234)
    footer = decode_footer(data[-FOOTER_BYTES:])
    assert footer.end == len(data)
    assert (footer.index_offset, footer.data_checksum) == (end, 1234)
    directory = data[footer.directory_offset : footer.controls_offset]
    assert [entry.partition_id for entry in directory_entries(directory)] == sorted(
        index.partitions
    )
    for partition_id, columns in index.partitions.items():
        entry = find_entry(directory, partition_id)
        begin = footer.flags_offset + entry.flag_index
        block = data[entry.offset : entry.offset + entry.size]
        read = decode_columns(block, entry, data[begin : begin + entry.records])
        assert equal(read, columns)
        assert (entry.first_seqno, entry.last_seqno) == (columns.seqnos[0], columns.seqnos[-1])
        assert decode_columns(block[:-1] + b"\xff", entry, bytes(entry.records)) is None or (
            block[-1] == 0xFF
        )
    assert find_entry(directory, 1024) is None
    controls = data[footer.controls_offset :][: footer.controls * 4]
    assert decode_controls(controls, footer) == list(index.controls)
    assert decode_controls(controls + b"1234", footer) is None
    (found,) = walk(lambda at, size: data[at : at + size], end, len(data))
    assert found.kind == Kind.INDEX
    assert found.length >= ENVELOPE_BYTES


def test_marks_without_records_are_in_the_index():
    index = OpenIndex()
    index.of(3).marks.append(9)
    index.of(4)  # nothing of it
    data = index.encode(64, 0)
    footer = decode_footer(data[-FOOTER_BYTES:])
    directory = data[footer.directory_offset - 64 : footer.controls_offset - 64]
    (entry,) = directory_entries(directory)
    assert (entry.partition_id, entry.records, entry.marks, entry.last_seqno) == (3, 0, 1, 9)
    columns = decode_columns(data[entry.offset - 64 :][: entry.size], entry, b"")
    assert list(columns.marks) == [9]
    assert columns.find(9) == -1


def test_a_damaged_footer_is_none():
    data = OpenIndex().encode(64, 0)[-FOOTER_BYTES:]
    assert decode_footer(data) is not None
    for at in range(FOOTER_BYTES):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert decode_footer(bytes(damaged)) is None
    assert decode_footer(b"") is None


def test_cut_gives_back_what_it_takes_and_disturbs_no_reader():
    index = OpenIndex()
    before = index.of(7)
    before.add([1, 3, 5], [0, 0, 1], [64, 164, 264], [100, 100, 100])
    before.marks.extend([3, 5])
    killed = index.cut(7, 3)
    columns = index.of(7)
    assert list(before.seqnos) == [1, 3, 5]
    assert index.cut(8, 3) is None
    assert (list(columns.seqnos), list(columns.marks)) == ([1, 3], [3])
    assert (list(killed.seqnos), list(killed.previous), list(killed.offsets)) == ([5], [1], [264])
    assert (columns.find(3), columns.find(5), columns.find(0)) == (1, -1, -1)


def test_flags_say_superseded():
    columns = Columns()
    columns.add([1, 2], [0, 1], [64, 164], [100, 100])
    assert not columns.is_superseded(0)
    columns.flags = b"\1\0"
    assert columns.is_superseded(0)
    assert not columns.is_superseded(1)


@given(
    st.lists(st.integers(1, 200), unique=True, min_size=1).map(sorted),
    st.lists(st.integers(1, 200), unique=True).map(sorted),
)
def test_places_are_those_of_what_is_wanted_and_never_wrong(here, wanted):
    columns = Columns()
    columns.add(here, [0] * len(here), [seqno * 10 for seqno in here], [5] * len(here))
    found = dict(columns.places(7, wanted))
    assert {seqno for seqno in wanted if seqno in here} <= set(found) <= set(here)
    assert all(place == (7, seqno * 10) for seqno, place in found.items())


def test_of_few_that_are_wanted_only_these_are_returned():
    columns, here = Columns(), range(1, 1001)
    columns.add(here, [0] * 1000, here, [5] * 1000)
    assert dict(columns.places(7, [3, 900])) == {3: (7, 3), 900: (7, 900)}
