import pytest

from millstream.errors import UsageError
from millstream.views.core.mango.stored import JUDGED_BYTES_MAX, may_match, stored_condition


def test_a_selector_sees_members_and_the_key() -> None:
    wanted = stored_condition(b'{"n": {"$gt": 2}, "_id": {"$lt": "b"}}')
    assert wanted("a", b'{"n": 3}')
    assert not wanted("a", b'{"n": 2}')
    assert not wanted("b", b'{"n": 3}')
    assert not wanted("a", b'{"m": 3}')


@pytest.mark.parametrize("value", [b"", b"text", b"[1]", b"null", b'{"n": 3', b"\xff", b'"n"'])
def test_what_is_no_object_matches_nothing(value: bytes) -> None:
    assert not stored_condition(b"{}")("a", value)
    assert not may_match(b"{}")(b"a", value)


def test_what_would_take_long_may_match() -> None:
    large = b'{"n": 1, "x": "%s"}' % (b"x" * JUDGED_BYTES_MAX)
    assert may_match(b'{"n": 2}')(b"a", large)
    assert not stored_condition(b'{"n": 2}')("a", large)
    assert not may_match(b'{"n": 2}')(b"a", b'{"n": 1}')
    pattern = b'{"x": {"$regex": "^(a?){60}b$"}}'
    slow = b'{"x": "%s"}' % (b"a" * 10_000)
    assert may_match(pattern)(b"a", slow)
    assert not stored_condition(pattern)("a", slow)


def test_a_key_that_is_no_text_is_seen_in_its_text_form() -> None:
    assert may_match(b'{"_id": "\\\\xff00"}')(b"\xff\x00", b"{}")
    assert stored_condition(b'{"_id": "\\\\xff00"}')("\\xff00", b"{}")


@pytest.mark.parametrize("text", [b"", b"[]", b'{"$no": 1}', b'{"a": {"$regex": "("}}'])
def test_what_is_no_selector_is_refused(text: bytes) -> None:
    for make in (stored_condition, may_match):
        with pytest.raises(UsageError):
            make(text)
