from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.documents import (
    FLAGS_BINARY,
    FLAGS_JSON,
    Document,
    content_of,
    document_from,
    durability_framing,
    get_encoder,
    key_bytes_of,
    stored_from,
    write_encoder,
)
from millstream.errors import UsageError
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, cut_packets, parse_frame_infos, response


@given(
    key=st.binary(min_size=1, max_size=250),
    value=st.one_of(st.none(), st.binary(max_size=300), st.dictionaries(st.text(), st.integers())),
    opaque=st.integers(0, 2**32 - 1),
    expiry=st.integers(0, 2**32 - 1),
    is_durable=st.booleans(),
    keep_json=st.booleans(),
)
def test_write_frames(
    key: bytes, value: Any, opaque: int, expiry: int, is_durable: bool, keep_json: bool
) -> None:
    framing = durability_framing("persisted" if is_durable else "memory", 2.0)
    encode = write_encoder(64, expiry=expiry, framing=framing, keep_json=keep_json)
    partition_id, frame = encode((key, value), opaque)
    packets, rest = cut_packets(frame, 1_000_000)
    assert not rest
    (packet,) = packets
    assert partition_id == packet.vbucket == partition_of(key, 64)
    assert (packet.key, packet.opaque, packet.framing) == (key, opaque, framing)
    if value is None:
        assert (packet.opcode, packet.extras, packet.value) == (Opcode.DELETE, b"", b"")
        return
    data, flags, datatype = content_of(value)
    assert packet.opcode == Opcode.SET
    assert packet.value == data
    assert packet.extras == flags.to_bytes(4, "big") + expiry.to_bytes(4, "big")
    assert packet.datatype == (datatype if keep_json else 0)


@given(key=st.text(min_size=1, max_size=60), opaque=st.integers(0, 2**32 - 1))
def test_get_frames(key: str, opaque: int) -> None:
    partition_id, frame = get_encoder(16)((key,), opaque)
    ((packet,), _) = cut_packets(frame, 1_000_000)
    assert (packet.opcode, packet.key, packet.opaque) == (Opcode.GET, key.encode(), opaque)
    assert partition_id == packet.vbucket == partition_of(key.encode(), 16)


def test_content() -> None:
    assert content_of(b"raw") == (b"raw", FLAGS_BINARY, 0)
    assert content_of({"a": 1}) == (b'{"a":1}', FLAGS_JSON, 1)
    assert content_of(msgspec.Raw(b'{"a": 1.0}')) == (b'{"a": 1.0}', FLAGS_JSON, 1)
    with pytest.raises(UsageError, match="cannot be stored as JSON"):
        content_of(object())
    with pytest.raises(UsageError) as failed:
        content_of(bytes(20 * 1024 * 1024 + 1))
    assert failed.value.code == "too_large"


@pytest.mark.parametrize("key", ["", b"", "k" * 251, b"k" * 251, "ä" * 126])
def test_bad_keys(key: str | bytes) -> None:
    with pytest.raises(UsageError) as failed:
        key_bytes_of(key)
    assert failed.value.code == "bad_key"


def test_document_values() -> None:
    assert Document(b'{"a":1}', 1, FLAGS_JSON, 0).value == {"a": 1}
    assert Document(b'{"a":1}', 1, 0, 1).value == {"a": 1}
    assert Document(b'{"a":1}', 1, FLAGS_BINARY, 0).value == b'{"a":1}'
    assert Document(b"{torn", 1, FLAGS_JSON, 1).value == b"{torn"


def test_durability() -> None:
    assert durability_framing("memory", 1) == b""
    assert parse_frame_infos(durability_framing("majority", 2.0)) == {1: b"\x01\x07\x08"}
    assert parse_frame_infos(durability_framing("persisted", 1000)) == {1: b"\x03\xff\xfe"}
    with pytest.raises(UsageError, match="unknown durability 'disk'"):
        durability_framing("disk", 1)  # type: ignore[arg-type]


def test_replies() -> None:
    frame = response(Opcode.SET, 0, 1, cas=5, extras=bytes(7) + b"\x09" + bytes(7) + b"\x08")
    assert stored_from(cut_packets(frame, 100)[0][0], 3) == (5, 3, 9, 8)
    bare = cut_packets(response(Opcode.SET, 0, 1, cas=5), 100)[0][0]
    assert stored_from(bare, 3) == (5, 3, 0, 0)
    assert document_from(bare).flags == 0
