"""Keys take what they are meant for, in one form, and refuse the rest."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.state.keys import (
    KEYS,
    Owner,
    in_key_pattern,
    is_true,
    number_of,
)


@pytest.mark.parametrize(
    ("name", "written", "kept"),
    [
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"3 seconds", b"3000 ms"),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"1 second", b"1000 ms"),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"500ms", b"500 ms"),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"1 hour", b"3600000 ms"),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"2 MINUTES", b"120000 ms"),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"700", b"700 ms"),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"499 ms", None),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"2 hours", None),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"3 KB", None),
        (b"NAMESPACE.SESSION.HEARTBEAT.DURATION", b"-3", None),
        (b"SUBS.MIN.HISTORY", b"0", b"0"),
        (b"SUBS.MIN.HISTORY", b"65536", b"65536"),
        (b"SUBS.MIN.HISTORY", b"65537", None),
        (b"SUBS.MIN.HISTORY", b"0128", b"128"),
        (b"SUBS.MIN.HISTORY", b"1 s", None),
        (b"LOCK.READ.OPEN", b"yes", b"true"),
        (b"LOCK.READ.OPEN", b"False", b"false"),
        (b"LOCK.READ.OPEN", b"1", None),
        (b"LIMIT.DATA", b"2 KB", b"2048"),
        (b"LIMIT.DATA", b"2 MB", None),
        (b"LIMIT.BYTES", b"5 MB", b"5242880"),
        (b"GROUP.JOURNAL", b"NONE", b"none"),
        (b"GROUP.JOURNAL", b"often", None),
        (b"GROUP.VIEW.TIMEOUT", b"1-2 s", b"1000-2000 ms"),
        (b"GROUP.VIEW.TIMEOUT", b"300 - 300", b"300-300 ms"),
        (b"GROUP.VIEW.TIMEOUT", b"99-600 ms", None),
        (b"GROUP.VIEW.TIMEOUT", b"600-60001 ms", None),
        (b"GROUP.VIEW.TIMEOUT", b"900-600 ms", None),
        (b"GROUP.VIEW.TIMEOUT", b"900", None),
        (b"GROUP.VIEW.TIMEOUT", b"600-900 KB", None),
        (b"GLOBAL.AUTH.REQUIRED", b"yes", b"true"),
        (b"GLOBAL.AUTH.JWKS", b"https://id.example/keys", b"https://id.example/keys"),
        (b"GLOBAL.AUTH.JWKS", b"\xff", None),
        (b"GLOBAL.AUTH.JWKS", b"a\nb", None),
        (b"GLOBAL.AUTH.JWKS", b"x" * 1025, None),
    ],
)
def test_values_are_stored_in_one_form(name: bytes, written: bytes, kept: bytes | None) -> None:
    assert KEYS[name].read(written) == kept


def test_the_default_of_a_key_is_a_valid_value() -> None:
    for key in KEYS.values():
        assert key.read(key.default) == key.default, key.name
        assert key.range


def test_numbers_and_truths_are_found_again() -> None:
    assert number_of(b"3000 ms") == 3000
    assert number_of(b"128") == 128
    assert is_true(b"true")
    assert not is_true(b"false")


def test_keys_are_in_order_and_say_whose_they_are() -> None:
    assert list(KEYS) == sorted(KEYS)
    assert KEYS[b"LIMIT.ELEMENTS"].owner is Owner.NAMESPACE
    assert {key.owner for key in KEYS.values()} == set(Owner)


@given(st.text("AB.*?", max_size=6), st.text("AB.", max_size=6))
def test_patterns_are_those_of_the_shell(pattern: str, name: str) -> None:
    expected = fnmatch.fnmatchcase(name, pattern)
    assert in_key_pattern(name.encode(), pattern.lower().encode()) == expected
