from __future__ import annotations

import hashlib
import io
from typing import Any

import pytest

from millstream.client import blobs as module
from millstream.client.blobs import BlobClient
from millstream.client.routing import Router
from millstream.errors import (
    CorruptionError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, response

DATA = b"0123456789" * 10
NAME = hashlib.sha256(DATA).digest()


class Attachments:
    """What a node does with GET_BLOB and PUT_BLOB."""

    def __init__(self, node: Any) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.coming = b""
        self.status = Status.SUCCESS
        node.handlers[Opcode.GET_BLOB] = self.get
        node.handlers[Opcode.PUT_BLOB] = self.put

    def get(self, packet: Packet) -> bytes:
        data, offset = self.kept.get(packet.key), int.from_bytes(packet.extras[:8], "big")
        if data is None:
            return response(packet.opcode, Status.KEY_ENOENT, packet.opaque)
        return self.answer(packet, len(data), data[offset : offset + 30])

    def put(self, packet: Packet) -> bytes:
        offset, total = (int.from_bytes(packet.extras[at : at + 8], "big") for at in (0, 8))
        if packet.key in self.kept:
            return self.answer(packet, total)
        self.coming = self.coming[:offset] + packet.value
        if len(self.coming) == total:
            if hashlib.sha256(self.coming).digest() != packet.key:
                return response(packet.opcode, Status.EINVAL, packet.opaque)
            self.kept[packet.key] = self.coming
        return self.answer(packet, len(self.coming))

    def answer(self, packet: Packet, number: int, value: bytes = b"") -> bytes:
        extras = number.to_bytes(8, "big")
        return response(packet.opcode, self.status, packet.opaque, extras=extras, value=value)


@pytest.fixture(name="client")
def _client(node: Any) -> Any:
    router = Router(
        [(node.host, node.port)], bucket="flights", user=None, password=None, timeout_s=5, tls=None
    )
    client = BlobClient(router)
    yield client
    client.close()


def test_it_is_read_and_put_in_pieces(
    node: Any, client: BlobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 40)
    there = Attachments(node)
    assert client.put(1, NAME, len(DATA), io.BytesIO(DATA))
    assert there.kept == {NAME: DATA}
    assert len(node.requests_of(Opcode.PUT_BLOB)) == 4
    assert not client.put(1, NAME, len(DATA), io.BytesIO(DATA))
    assert len(node.requests_of(Opcode.PUT_BLOB)) == 5
    assert list(client.pieces(1, NAME)) == [DATA[:30], DATA[30:60], DATA[60:90], DATA[90:]]
    nothing = hashlib.sha256(b"").digest()
    assert client.put(1, nothing, 0, io.BytesIO())
    assert list(client.pieces(1, nothing)) == [b""]


def test_what_is_not_right_is_told(node: Any, client: BlobClient) -> None:
    there = Attachments(node)
    with pytest.raises(UnavailableError) as missing:
        list(client.pieces(1, NAME))
    assert (missing.value.code, missing.value.retry) == ("blob_missing", "never")
    for data in (DATA[:-1] + b"x", DATA[:50]):
        with pytest.raises(CorruptionError) as other:
            client.put(1, NAME, len(DATA), io.BytesIO(data))
        assert other.value.code == "bad_blob"
        there.coming = b""
    there.status = Status.ENOMEM
    with pytest.raises(UnavailableError):
        client.put(1, NAME, len(DATA), io.BytesIO(DATA))


def test_answers_that_are_none(node: Any, client: BlobClient) -> None:
    there = Attachments(node)
    node.handlers[Opcode.GET_BLOB] = lambda packet: there.answer(packet, 7)
    with pytest.raises(RemoteProtocolError, match="without bytes"):
        list(client.pieces(1, NAME))
    node.handlers[Opcode.GET_BLOB] = lambda packet: response(packet.opcode, 0, packet.opaque)
    with pytest.raises(RemoteProtocolError, match="without a length"):
        list(client.pieces(1, NAME))
    node.handlers[Opcode.PUT_BLOB] = lambda packet: there.answer(packet, 3)
    with pytest.raises(RemoteProtocolError, match="counts otherwise"):
        client.put(1, NAME, len(DATA), io.BytesIO(DATA))


def test_it_takes_a_node_of_ours(node: Any) -> None:
    node.features = [feature for feature in node.features if feature != Feature.MILLSTREAM]
    router = Router(
        [(node.host, node.port)], bucket="flights", user=None, password=None, timeout_s=5, tls=None
    )
    client = BlobClient(router)
    with pytest.raises(UsageError, match="not a Millstream node"):
        list(client.pieces(1, NAME))
    client.close()
