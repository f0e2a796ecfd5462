"""Replies of the wire, in types."""

from millstream.coordination.core.client.replies import (
    Count,
    count_of,
    is_pending,
    members_of,
    places_of,
    root_of,
)


def test_numbers() -> None:
    assert count_of(5) == Count(5, False)
    assert count_of(b"99999999999999999999") == Count(99999999999999999999, False)
    assert count_of([255, b"NOWRAP"]) == Count(255, True)


def test_what_waits() -> None:
    assert is_pending(b"PENDING")
    assert is_pending([b"PENDING", b"/a", b"LOCKED"])
    assert not is_pending([])
    assert not is_pending(b"OK")
    assert not is_pending(None)


def test_where_things_are() -> None:
    assert [root_of(path) for path in ("/a/b/c", "/a", "/", "k", "")] == ["/a", "/a", "", "", ""]
    assert places_of({b"/a": {b"group": 2}, b"/b": None}) == {"/a": 2}
    assert places_of(None) == {}
    assert members_of({b"1": {b"members": [b"h:1", b"?", 3]}, b"2": 5}) == ["h:1"]
