"""Updates are told as documented, and read as they were written."""

import json
from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.state.access_lists import Acl, Grant, Readers
from millstream.coordination.core.namespace.state.updates import (
    Update,
    decode_update,
    encode_update,
    payload,
    remark,
)

PUT = Update(
    7, 1, 2, 1760000000000, b"put", b"/ns/\xc3\xa4", b"", b"BINARY", b"00ff-3", b"\x00data", False
)


def test_a_message_has_these_keys_in_this_order() -> None:
    assert (
        payload(PUT, 0, 1, with_data=False)
        == (
            '{"lsn":7,"version":"1:2:7","op":"put","path":"/ns/ä","type":"BINARY",'
            '"ts":1760000000000,"client":"00ff-3"}'
        ).encode()
    )
    moved = PUT._replace(op=b"move", to=b"/ns/b", client=b"", is_deleted=True)
    assert (
        payload(moved, 1, 3, with_data=True)
        == (
            '{"lsn":7,"version":"1:2:7","op":"move","path":"/ns/ä","to":"/ns/b","type":"BINARY",'
            '"ts":1760000000000,"data":"AGRhdGE=","del":true,"part":1,"parts":3}'
        ).encode()
    )


def test_empty_data_is_data_and_none_is_not() -> None:
    empty = json.loads(payload(PUT._replace(data=b""), 0, 1, with_data=True))
    assert b64decode(empty["data"]) == b""
    assert "data" not in json.loads(payload(PUT._replace(data=None), 0, 1, with_data=True))


def test_a_remark_says_where_it_stands() -> None:
    assert remark("overrun", 9) == b'{"op":"overrun","lsn":9}'


NUMBERS = st.integers(0, 2**32 - 1)
TEXTS = st.binary(max_size=5)
BITS = st.integers(0, 0o777)
GRANTS = st.lists(st.builds(Grant, st.booleans(), TEXTS, st.integers(0, 7)), max_size=2).map(tuple)
ACLS = st.lists(st.builds(Acl, TEXTS, TEXTS, BITS, GRANTS, BITS, GRANTS), max_size=2).map(tuple)


@given(
    st.builds(
        Update,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        TEXTS,
        TEXTS,
        TEXTS,
        TEXTS,
        TEXTS,
        st.none() | st.binary(max_size=9),
        st.booleans(),
        st.none() | st.builds(Readers, ACLS, ACLS, TEXTS),
    ),
    TEXTS,
)
def test_an_update_is_read_as_it_was_written(update: Update, before: bytes) -> None:
    written = before + encode_update(update)
    assert decode_update(written + b"more", len(before)) == (update, len(written))
