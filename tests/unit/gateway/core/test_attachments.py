from base64 import b64encode

import pytest

from millstream.errors import ConditionError, UsageError
from millstream.gateway.core.attachments import (
    ATTACHMENT_NAME_BYTES_MAX,
    CONTENT_TYPE_BYTES_MAX,
    Range,
    Said,
    accepts_gzip,
    asked_range,
    checked_name,
    checked_type,
    decoded,
    digest_of,
    is_compressible,
    said_of,
)


@pytest.mark.parametrize("kind", ["text/plain", "TEXT/css; charset=utf-8", "application/json"])
def test_texts_are_compressed(kind):
    assert is_compressible(kind)


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "", "context/plain"])
def test_others_are_not(kind):
    assert not is_compressible(kind)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("gzip", True), ("deflate, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False),
        ("gzip; q=0.000", False), ("br", False), (None, False), ("", False),
    ],
)  # fmt: skip
def test_who_takes_gzip(header, found):
    assert accepts_gzip(header) is found


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("bytes=0-3", Range(0, 4)), ("bytes=4-", Range(4, 10)), ("bytes=-3", Range(7, 10)),
        ("bytes=-30", Range(0, 10)), ("bytes=2-400", Range(2, 10)), (None, None),
        ("bytes=1-2,4-5", None), ("bytes=-", None), ("lines=1-2", None),
    ],
)  # fmt: skip
def test_ranges(header, found):
    assert asked_range(header, 10) == found


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=5-4", "bytes=-0"])
def test_ranges_that_are_not_there(header):
    with pytest.raises(ConditionError):
        asked_range(header, 10)


def test_a_range_says_what_it_is():
    assert Range(2, 5).header(10) == "bytes 2-4/10"


def test_digests_are_shown_as_couchdb_does():
    assert digest_of(bytes(16)) == "md5-AAAAAAAAAAAAAAAAAAAAAA=="


@pytest.mark.parametrize("name", ["", "_x", "a\0b", "x" * (ATTACHMENT_NAME_BYTES_MAX + 1)])
def test_bad_names(name):
    with pytest.raises(UsageError):
        checked_name(name)


@pytest.mark.parametrize("data", ["???", 7, None, "Zg", "ü"])
def test_bad_data(data):
    with pytest.raises(UsageError):
        decoded(data)


def test_data_is_base64():
    assert decoded("Zmlyc3Q=") == b"first"
    assert decoded("") == b""


def test_what_an_entry_says_of_its_bytes():
    digest = "md5-" + b64encode(b"0" * 16).decode()
    assert said_of({}) == said_of({"digest": 7, "length": "x"}) == Said()
    assert said_of({"digest": "sha-x", "length": True}) == Said()
    assert said_of({"digest": digest, "length": 5}) == Said(b"0" * 16, 5)
    packed = {"digest": digest, "length": 5, "encoding": "gzip"}
    assert said_of(packed) == Said(b"0" * 16, None)
    assert said_of({**packed, "encoded_length": 4}) == Said(b"0" * 16, 4)
    for text in ("md5-*", "md5-YQ"):
        with pytest.raises(UsageError):
            said_of({"digest": text})


def test_content_types_are_bounded():
    assert checked_type("x" * CONTENT_TYPE_BYTES_MAX) == "x" * CONTENT_TYPE_BYTES_MAX
    for kind in ("x" * (CONTENT_TYPE_BYTES_MAX + 1), 7, None, []):
        with pytest.raises(UsageError):
            checked_type(kind)
