"""A new group begins in a view that is nobody's."""

import pytest

from millstream.vsr.core.hard_state import founded


def test_a_founded_member_has_promised_nothing() -> None:
    standing = founded(b"g" * 16, b"b" * 16, (b"a" * 16, b"b" * 16, b"c" * 16))
    assert (standing.view, standing.last_normal, standing.incarnation) == (0, (0, 0), 0)
    assert standing.configuration.quorum == 2
    assert standing.retired is None


def test_members_are_sorted() -> None:
    with pytest.raises(AssertionError):
        founded(b"g" * 16, b"b" * 16, (b"b" * 16, b"a" * 16))
