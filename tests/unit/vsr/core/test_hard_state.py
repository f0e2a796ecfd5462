"""A new group begins in a view that is nobody's."""

import pytest

from millstream.vsr.core.hard_state import founded


def test_a_founded_member_has_promised_nothing() -> None:
    hard_state = founded(b"g" * 16, b"b" * 16, (b"a" * 16, b"b" * 16, b"c" * 16))
    assert (hard_state.view, hard_state.last_normal, hard_state.incarnation) == (0, (0, 0), 0)
    assert hard_state.configuration.quorum == 2
    assert hard_state.retired is None


def test_members_are_sorted() -> None:
    with pytest.raises(AssertionError):
        founded(b"g" * 16, b"b" * 16, (b"b" * 16, b"a" * 16))
