"""Signatures are those of CouchDB."""

import json
import struct
from hashlib import md5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.json_text import cut, parse
from millstream.documents.revision_ids import signature_of
from millstream.documents.stored import Attachment

EMPTY_CREATED = "967a00dff5e02add41819138abb3284d"


def attachment(content_type, digest):
    return Attachment(content_type, 1, 1, digest, b"s" * 32, "", 1)


def made(text, **more):
    _, body, content = cut(text)
    return signature_of(body, content, **more)


def term_of(encoded, deleted=b"d\0\5false", parent=b"a\0a\0", attached=b"j"):
    return md5(b"\x83l\0\0\0\5" + deleted + parent + encoded + attached + b"j").hexdigest()


def test_what_couchdb_answered():
    assert made(b"{}") == EMPTY_CREATED
    assert made(b'{"a":1}') == "23202479633c2b380f79507a776743d5"
    assert (
        made(b"{}", is_deleted=True, parent=f"1-{EMPTY_CREATED}")
        == "eec205a9d413992850a6e32678485900"
    )


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (b"null", b"d\0\4null"),
        (b"true", b"d\0\4true"),
        (b"false", b"d\0\5false"),
        (b"0", b"a\0"),
        (b"-0", b"a\0"),
        (b"255", b"a\xff"),
        (b"256", b"b\0\0\1\0"),
        (b"-1", b"b\xff\xff\xff\xff"),
        (b"2147483647", b"b\x7f\xff\xff\xff"),
        (b"-2147483648", b"b\x80\0\0\0"),
        (b"2147483648", b"n\4\0\0\0\0\x80"),
        (b"-2147483649", b"n\4\1\1\0\0\x80"),
        (str(256**255 - 1).encode(), b"n\xff\0" + b"\xff" * 255),
        (str(-(256**255)).encode(), b"o\0\0\1\0\1" + b"\0" * 255 + b"\1"),
        (b"1.0", b"F" + struct.pack(">d", 1.0)),
        (b"1e3", b"F" + struct.pack(">d", 1000.0)),
        (b"-0.0", b"F" + struct.pack(">d", -0.0)),
        ('"ü"'.encode(), b"m\0\0\0\2\xc3\xbc"),
        (b'"\\u00fc"', b"m\0\0\0\2\xc3\xbc"),
        (b"[]", b"j"),
        (b"[0,255]", b"k\0\2\0\xff"),
        (b"[0,256]", b"l\0\0\0\2a\0b\0\0\1\0j"),
        (b"[-1]", b"l\0\0\0\1b\xff\xff\xff\xffj"),
        (b"[1,true]", b"l\0\0\0\2a\1d\0\4truej"),
        (b"[1.0]", b"l\0\0\0\1F" + struct.pack(">d", 1.0) + b"j"),
        (b'[[],"a",{}]', b"l\0\0\0\3jm\0\0\0\1ah\1jj"),
        (b"[" + b"7," * 65_534 + b"7]", b"k\xff\xff" + b"\7" * 65_535),
        (b"[" + b"7," * 65_535 + b"7]", b"l\0\1\0\0" + b"a\7" * 65_536 + b"j"),
        (b'{"b":{},"a":1}', b"h\1l\0\0\0\2h\2m\0\0\0\1bh\1jh\2m\0\0\0\1aa\1j"),
        (b'{"b":1,"a":2,"b":3}', b"h\1l\0\0\0\2h\2m\0\0\0\1aa\2h\2m\0\0\0\1ba\3j"),
    ],
)
@pytest.mark.parametrize("form", [b'{"%b":%b}', b'{"%b" : %b }'])
def test_every_kind_of_value(value, encoded, form):
    name = b"n" * 70
    wanted = b"h\1l\0\0\0\1h\2m\0\0\0\x46" + name + encoded + b"j"
    assert made(form % (name, value)) == term_of(wanted)


def test_special_members_do_not_count():
    assert made(b'{"_id":"x","a":1,"_rev":"1-a"}') == made(b'{"a":1}')


def test_parents_count():
    digits = "00" * 15 + "0f"
    assert made(b"{}", parent=f"300-{digits}") == term_of(
        b"h\1j", parent=b"b\0\0\1\x2cm\0\0\0\x10" + bytes(15) + b"\x0f"
    )
    assert made(b"{}", parent="2-foreign") == term_of(b"h\1j", parent=b"a\2m\0\0\0\7foreign")


def test_attachments_count_from_the_last_to_the_first():
    table = {"a": attachment("text/plain", b"1" * 16), "ü": attachment("x", b"2" * 16)}
    assert made(b"{}", attachments=table) == term_of(
        b"h\1j",
        attached=b"l\0\0\0\2"
        + b"h\3m\0\0\0\2\xc3\xbcm\0\0\0\1xm\0\0\0\x10"
        + b"2" * 16
        + b"h\3m\0\0\0\1am\0\0\0\x0atext/plainm\0\0\0\x10"
        + b"1" * 16
        + b"j",
    )
    assert made(b"{}", attachments={}) == EMPTY_CREATED


def naive(value):
    """The encoding, said as plainly as can be."""
    if value is None or isinstance(value, bool):
        name = json.dumps(value).encode()
        return b"d" + struct.pack(">H", len(name)) + name
    if isinstance(value, int):
        return (
            struct.pack(">cB", b"a", value)
            if 0 <= value < 256
            else b"b" + value.to_bytes(4, "big", signed=True)
        )
    if isinstance(value, float):
        return b"F" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"m" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, list):
        if value and all(type(one) is int and 0 <= one < 256 for one in value):
            return b"k" + struct.pack(">H", len(value)) + bytes(value)
        return counted([naive(one) for one in value])
    return b"h\1" + counted([b"h\2" + naive(n) + naive(v) for n, v in value.items()])


def counted(terms):
    return b"l" + struct.pack(">I", len(terms)) + b"".join(terms) + b"j" if terms else b"j"


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.lists(st.integers(-1, 256), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXT, JSON, max_size=4), st.sampled_from([(",", ":"), (", ", " : ")]))
def test_any_body(document, separators):
    text = json.dumps(document, separators=separators).encode()
    assert signature_of(text, parse(text)) == term_of(naive(document))
