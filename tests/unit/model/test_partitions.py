"""Keys map to partitions as clients compute it, and have a text form that can be read back."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.partitions import key_from_text, partition_of, text_of_key


@given(st.binary(min_size=1, max_size=250), st.sampled_from([1, 2, 16, 64, 1024]))
def test_partition_is_within_range_and_halves_with_the_count(key: bytes, count: int) -> None:
    partition_id = partition_of(key, count)
    assert 0 <= partition_id < count
    assert partition_of(key, 1024) % count == partition_id


def test_partition_is_the_customary_hash() -> None:
    assert crc32(b"foo") == 0x8C736521
    assert partition_of(b"foo", 1024) == 0x8C73 % 1024


@given(st.binary(max_size=250))
def test_text_form_can_be_read_back(key: bytes) -> None:
    assert key_from_text(text_of_key(key)) == key


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_text_forms_of_two_keys_differ(one: bytes, other: bytes) -> None:
    assert (text_of_key(one) == text_of_key(other)) == (one == other)


def test_text_form_of_plain_and_strange_keys() -> None:
    assert text_of_key("käse".encode()) == "käse"
    assert text_of_key(b"\xff\x00") == "\\xff00"
    assert text_of_key(b"\\xabc") == "\\x5c78616263"


def test_bad_hex_is_refused() -> None:
    with pytest.raises(ValueError, match="hex"):
        key_from_text("\\xzz")
