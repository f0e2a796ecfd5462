"""A sorted map is a dict whose keys come in order, and whose views stay as they were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core import sorted_map

pytestmark = pytest.mark.usefixtures("variant")
puts = st.lists(st.tuples(st.binary(max_size=2), st.integers()), max_size=60)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_map, "CHUNK_KEYS_MAX", 3)


@given(puts)
def test_it_has_what_was_put(changes: list[tuple[bytes, int]]) -> None:
    found, expected = sorted_map.SortedMap[int](), dict(changes)
    for key, value in changes:
        found.put(key, value)
    assert list(found.items()) == sorted(expected.items())
    assert len(found) == len(expected)
    assert all(found.get(key) == value for key, value in expected.items())
    assert found.get(b"none") is None


@given(puts, st.lists(st.binary(max_size=2), min_size=2, max_size=2))
def test_keys_between_two_are_counted(changes: list[tuple[bytes, int]], ends: list[bytes]) -> None:
    found, (begin, end) = sorted_map.SortedMap[int](), sorted(ends)
    for key, value in changes:
        found.put(key, value)
    assert found.number(begin, end) == sum(begin <= key < end for key, _ in found.items())


@given(puts, st.lists(st.integers(0, 60), max_size=4))
def test_a_view_stays_as_it_was(changes: list[tuple[bytes, int]], when: list[int]) -> None:
    found, expected, views = sorted_map.SortedMap[int](), dict[bytes, int](), []
    for at, (key, value) in enumerate(changes):
        if at in when:
            views.append((found.items(), sorted(expected.items())))
        found.put(key, value)
        expected[key] = value
    for view, there in views:
        assert list(view) == there


@given(puts, st.lists(st.binary(max_size=2), max_size=60), st.binary(max_size=2))
def test_deleted_keys_are_gone_and_ranges_begin_where_asked(
    changes: list[tuple[bytes, int]], gone: list[bytes], start: bytes
) -> None:
    found, expected = sorted_map.SortedMap[int](), dict(changes)
    for key, value in changes:
        found.put(key, value)
    view, before = found.items(), sorted(expected.items())
    for key in gone:
        assert found.delete(key) == expected.pop(key, None)
    assert len(found) == len(expected)
    assert list(found.after(b"")) == sorted(expected.items())
    assert list(found.after(start)) == sorted(
        (key, value) for key, value in expected.items() if key >= start
    )
    for prefix in (b"", start, start[:1]):
        assert list(found.under(prefix, start)) == sorted(
            (key, value)
            for key, value in expected.items()
            if key.startswith(prefix) and key >= prefix + start
        )
    for key in gone:
        found.put(key, 1)
        expected[key] = 1
    assert list(found.items()) == sorted(expected.items())
    assert list(view) == before


@given(puts, st.binary(max_size=2), st.binary(max_size=2), st.booleans())
def test_a_removed_range_can_be_put_back(
    changes: list[tuple[bytes, int]], begin: bytes, end: bytes, is_put_back: bool
) -> None:
    found, everything = sorted_map.SortedMap[int](), dict(changes)
    for key, value in changes:
        found.put(key, value)
    view = found.items()
    cut = found.cut(begin, end)
    kept = {key: value for key, value in everything.items() if not begin <= key < end}
    assert list(found.items()) == sorted(kept.items())
    assert len(found) == len(kept)
    assert all(found.get(key) == kept.get(key) for key in everything)
    if is_put_back:
        found.paste(cut)
        kept = everything
    for key, value in changes[:10]:
        found.put(key, value + 1)
        kept = kept | {key: value + 1}
    assert list(found.items()) == sorted(kept.items())
    assert len(found) == len(kept)
    assert list(view) == sorted(everything.items())
