"""Measuring what a lease shows: where it reaches so many rows or bytes, without reading it.

    LEASE 0x6c, op 4    value {rows u64, bytes u64, {partition u16, after u64}*}
                        reply value {partition u16, end u64, rows u64, bytes u64}*

Invariants:
1. A node may leave partitions for another request: it is asked again, until it answers about none.

Elsewhere: leases (`client.kv`), who measures (`kv.aio.measuring`).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from millstream.client.extensions import LeaseOp, lease_extras, lease_value
from millstream.client.kv import Client
from millstream.errors import RemoteProtocolError
from millstream.wire.mcbp import Opcode, Status
from millstream.wire.replies import error_of

__all__ = ["Piece", "measure_lease"]

_LIMITS: Final = Struct(">QQ")
_PIECE: Final = Struct(">HQQQ")


class Piece(NamedTuple):
    """The rows from the piece before up to seqno `end`, and their bytes as stored."""

    end: int
    rows: int
    bytes: int


def measure_lease(
    client: Client, lease_id: int, after: Mapping[int, int], rows_max: int, bytes_max: int
) -> dict[int, list[Piece]]:
    """Return the pieces of what a lease shows above seqnos, by partition.

    Args:
        client: of the bucket.
        lease_id: of the lease.
        after: partition -> seqno.
        rows_max: rows of a piece, at least 1.
        bytes_max: bytes of a piece; a single row may have more.

    Returns:
        Pieces in order, the first ones if there are very many. A partition that the lease does
        not hold any more, or that nobody serves, is missing.

    Raises:
        UnavailableError, RoutingError: a node did not answer, or cannot measure now.
    """
    found: dict[int, list[Piece]] = {}
    for node, mine in client.router.groups(list(after)).items():
        connection, left = client.router.connection_to(node), dict.fromkeys(mine)
        while left:
            packet = connection.request(
                Opcode.LEASE,
                extras=lease_extras(LeaseOp.MEASURE, lease_id, 0),
                value=_LIMITS.pack(rows_max, bytes_max) + lease_value({p: after[p] for p in left}),
            )
            if packet.status != Status.SUCCESS:
                raise error_of(
                    packet, address=connection.address, what=f"measuring lease {lease_id}"
                )
            if len(packet.value) % _PIECE.size:
                raise RemoteProtocolError("pieces of wrong length", code="bad_frame")
            pieces = list(_PIECE.iter_unpack(packet.value))
            for p, *piece in pieces:
                found.setdefault(p, []).append(Piece(*piece))
            answered = {p for p, *_ in pieces}
            left = {p: None for p in left if p not in answered} if answered else {}
    return found
