"""What a node says of itself over its kv port.

Elsewhere: the figures (docs/reference/statistics.md), what they say to people
(`cli.serving.health`).
"""

from __future__ import annotations

from typing import Final

from millstream.client.connection import Connection
from millstream.errors import AccessError, UnavailableError
from millstream.wire.mcbp import Opcode, request

__all__ = ["STATISTICS_MAX", "statistics_of"]

STATISTICS_MAX: Final = 10_000
"""Figures of a node, and of the bucket that the connection has selected."""


def statistics_of(connection: Connection) -> dict[str, str]:
    """Return all figures, by name, in the node's order; with a bucket selected, those of it, too.

    Raises:
        AccessError: they are shown after a log-in only.
        UnavailableError: as `Connection.receive`, or they do not end.
    """
    opaque = connection.next_opaque()
    connection.send(request(Opcode.STAT, opaque=opaque))
    found: dict[str, str] = {}
    is_whole = False
    while not is_whole:
        for packet in connection.receive():
            if packet.status:
                raise AccessError("the node shows its statistics only after a log-in (--user)")
            if not packet.key and not packet.value:
                is_whole = True
            else:
                found[packet.key.decode()] = packet.value.decode()
        if len(found) > STATISTICS_MAX:
            connection.close()
            raise UnavailableError("the node's statistics do not end")
    return found
