"""Tables take back what was changed, and are the same again after a snapshot."""

from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.tables import Tables, as_bytes
from millstream.errors import CorruptionError
from millstream.vsr.core.snapshots import Pieces

pytestmark = pytest.mark.usefixtures("variant")
KEYS = st.binary(max_size=2)
CHANGES = st.lists(st.tuples(st.booleans(), KEYS, st.none() | st.binary(max_size=3)), max_size=30)


def made() -> Tables:
    tables = Tables()
    tables.first = tables.add(as_bytes, as_bytes)  # type: ignore[attr-defined]
    tables.second = tables.add(as_bytes, as_bytes)  # type: ignore[attr-defined]
    return tables


def change(tables: Tables, changes: list[tuple[bool, bytes, bytes | None]]) -> None:
    for is_first, key, value in changes:
        table = tables.first if is_first else tables.second  # type: ignore[attr-defined]
        if value is None:
            table.delete(key)
        else:
            table.put(key, value)


def whole(tables: Tables) -> bytes:
    return b"".join(tables.freeze())


def test_a_table_of_a_later_format_is_no_part_of_the_state_before() -> None:
    earlier, later = made(), made()
    table = later.add(as_bytes, as_bytes, since=2)
    for tables in (earlier, later):
        change(tables, [(True, b"k", b"v")])
    assert whole(later) == whole(earlier)
    later.state_format = 2
    table.put(b"new", b"1")
    assert whole(later) != whole(earlier)
    again = made()
    restored = again.add(as_bytes, as_bytes, since=2)
    again.state_format = 2
    for _ in again.restore(Pieces([whole(later)])):
        pass
    assert restored.get(b"new") == b"1"
    assert whole(again) == whole(later)


@given(CHANGES, CHANGES)
def test_changes_are_taken_back(
    kept: list[tuple[bool, bytes, bytes | None]], undone: list[tuple[bool, bytes, bytes | None]]
) -> None:
    tables = made()
    change(tables, kept)
    before, mark = whole(tables), tables.mark()
    change(tables, undone)
    tables.roll_back(mark)
    assert whole(tables) == before


@given(CHANGES)
def test_settled_names_stay(kept: list[tuple[bool, bytes, bytes | None]]) -> None:
    tables = made()
    change(tables, kept)
    before = whole(tables)
    tables.settle()
    tables.roll_back(0)
    assert whole(tables) == before


@given(CHANGES, CHANGES)
def test_a_snapshot_is_of_its_moment_and_gives_the_state_again(
    kept: list[tuple[bool, bytes, bytes | None]], later: list[tuple[bool, bytes, bytes | None]]
) -> None:
    tables = made()
    change(tables, kept)
    frozen, before = tables.freeze(), whole(tables)
    change(tables, later)
    assert b"".join(frozen) == before
    other = made()
    change(other, later)
    for _ in other.restore(Pieces([before[:5], before[5:]])):
        pass
    assert whole(other) == before


def test_keys_with_one_beginning_are_found_together() -> None:
    tables = made()
    change(tables, [(True, key, b"v") for key in (b"a", b"b1", b"b2", b"b3", b"c")])
    table = tables.first  # type: ignore[attr-defined]
    assert [key for key, _ in table.under(b"b")] == [b"b1", b"b2", b"b3"]
    assert [key for key, _ in table.under(b"b", b"2")] == [b"b2", b"b3"]
    assert [key for key, _ in table.after(b"b3")] == [b"b3", b"c"]


def test_names_lead_from_one_number_to_the_next() -> None:
    tables = made()
    table = tables.first  # type: ignore[attr-defined]
    table.put(bytes(8) + b"ns", (7).to_bytes(8, "big"))
    table.put((7).to_bytes(8, "big") + b"a", (300).to_bytes(8, "big"))
    assert [table.descend(names) for names in ((), (b"ns",), (b"ns", b"a"))] == [0, 7, 300]
    assert table.descend((b"a",)) is None
    assert table.descend((b"ns", b"b")) is None
    assert table.descend((b"ns", b"a", b"a")) is None


def test_invalid_records_are_no_state() -> None:
    def decode(text: bytes) -> int:
        return int(text)

    tables = Tables()
    tables.add(str.encode, bytes.decode).put(b"k", "x")
    other = Tables()
    other.add(lambda number: b"%d" % number, decode)
    with pytest.raises(CorruptionError, match="cannot be read"):
        list(other.restore(Pieces([whole(tables)])))


def test_a_record_that_is_too_short_is_no_state() -> None:
    number = Struct(">Q")
    tables = Tables()
    tables.add(as_bytes, as_bytes).put(b"k", b"short")
    other = Tables()
    other.add(number.pack, lambda text: number.unpack(text)[0])
    with pytest.raises(CorruptionError, match="cannot be read"):
        list(other.restore(Pieces([whole(tables)])))
