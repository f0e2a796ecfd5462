"""Bytes of attachments to and from the nodes that have a partition: for backups and restores.

Invariants:
1. No more than `PIECE_BYTES` of an attachment are in memory.
2. What is put is on the node's disk when `put` returns, under the name that its bytes have.

Elsewhere: the commands (docs/reference/wire/extensions.md), who names attachments
(`documents.stored`).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, Protocol

from millstream.client.connection import Connection
from millstream.client.routing import Router
from millstream.errors import (
    CorruptionError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.wire.mcbp import Opcode, Packet, Status
from millstream.wire.replies import error_of

__all__ = ["PIECE_BYTES", "BlobClient", "Pieces"]

PIECE_BYTES: Final = 1024 * 1024
_RANGE: Final = Struct(">QI")
_PLACE: Final = Struct(">QQ")
_LENGTH_BYTES: Final = 8


class Pieces(Protocol):
    """Where the bytes of an attachment come from: a file."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` of the next bytes, nothing at the end."""


class BlobClient:
    """Attachments of one bucket; who made it alone closes `router` with it."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def close(self) -> None:
        """Close all connections."""
        self._router.close()

    def pieces(self, partition_id: int, name: bytes) -> Iterator[bytes]:
        """Yield the bytes of an attachment that a document of the partition names.

        Raises:
            UnavailableError: `blob_missing`: the node has not got it; as `Router`.
        """
        return (piece for _, piece in self.sized_pieces(partition_id, name))

    def sized_pieces(self, partition_id: int, name: bytes) -> Iterator[tuple[int, bytes]]:
        """Do what `pieces` does; with each piece comes the length of the whole attachment."""
        offset, length = 0, 1
        while offset < length:
            extras = _RANGE.pack(offset, PIECE_BYTES)
            packet = self._ask(partition_id, Opcode.GET_BLOB, name, extras, b"")
            if packet.status == Status.KEY_ENOENT:
                raise UnavailableError(
                    f"attachment {name.hex()} is not on the node that has partition "
                    f"{partition_id} of bucket {self._router.bucket!r}",
                    code="blob_missing",
                    retry="never",
                )
            length = self._number_of(packet, "reading an attachment")
            if not packet.value and offset < length:
                raise RemoteProtocolError("a piece without bytes", code="bad_blob")
            offset += len(packet.value)
            yield length, packet.value

    def put(self, partition_id: int, name: bytes, size: int, file: Pieces) -> bool:
        """Bring an attachment to the node that has a partition; False: it was there.

        Args:
            partition_id: of the document that is going to name it.
            name: SHA-256 of the bytes.
            size: how many there are.
            file: where they are, at its beginning.

        Raises:
            CorruptionError: `bad_blob`: the file has other bytes.
            UnavailableError: the node cannot keep it; as `Router`.
        """
        what = f"putting attachment {name.hex()}"
        packet = self._ask(partition_id, Opcode.PUT_BLOB, name, _PLACE.pack(0, size), b"")
        if size and self._number_of(packet, what) == size:
            return False
        offset = 0
        while offset < size:
            data = file.read(min(PIECE_BYTES, size - offset))
            packet = self._ask(
                partition_id, Opcode.PUT_BLOB, name, _PLACE.pack(offset, size), data
            )
            if packet.status == Status.EINVAL or not data:
                raise CorruptionError(
                    f"{what}: these are not the {size} bytes of that name", code="bad_blob"
                )
            offset += len(data)
            if self._number_of(packet, what) != offset:
                raise RemoteProtocolError(f"{what}: the node counts otherwise", code="bad_blob")
        return True

    def _ask(
        self, partition_id: int, opcode: Opcode, name: bytes, extras: bytes, value: bytes
    ) -> Packet:
        def ask(connection: Connection) -> Packet:
            if not connection.is_extended:
                raise UsageError(
                    f"{connection.address} is not a Millstream node: it keeps no attachments",
                    code="not_supported",
                )
            return connection.request(opcode, key=name, extras=extras, value=value)

        return self._router.call(partition_id, ask)

    def _number_of(self, packet: Packet, what: str) -> int:
        if packet.status != Status.SUCCESS:
            address = ",".join(f"{host}:{port}" for host, port in self._router.map.nodes[:3])
            raise error_of(packet, address=address, what=what)
        if len(packet.extras) != _LENGTH_BYTES:
            raise RemoteProtocolError(f"{what}: a reply without a length", code="bad_blob")
        return int.from_bytes(packet.extras, "big")
