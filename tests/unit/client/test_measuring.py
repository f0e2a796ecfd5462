from __future__ import annotations

import struct
from typing import Any

import pytest

from millstream.client.measuring import Piece, measure_lease
from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.wire.mcbp import Opcode, Packet, Status, response


def answered(packet: Packet, *pieces: tuple[int, int, int, int], rest: bytes = b"") -> bytes:
    value = b"".join(struct.pack(">HQQQ", *piece) for piece in pieces) + rest
    return response(packet.opcode, 0, packet.opaque, extras=struct.pack(">QH", 7, 0), value=value)


def test_partitions_that_a_node_leaves_out_are_asked_for_again(node: Any, client: Any) -> None:
    replies = [[(1, 5, 2, 300), (1, 9, 1, 20)], [(3, 4, 1, 10)], []]
    asked: list[list[tuple[int, int]]] = []

    def measure(packet: Packet) -> bytes:
        assert packet.extras == struct.pack(">BQH", 4, 7, 0)
        assert struct.unpack_from(">QQ", packet.value) == (2, 400)
        asked.append(list(struct.iter_unpack(">HQ", packet.value[16:])))
        return answered(packet, *replies.pop(0))

    node.handlers[Opcode.LEASE] = measure
    found = measure_lease(client, 7, {1: 3, 2: 0, 3: 1}, 2, 400)
    assert found == {1: [Piece(5, 2, 300), Piece(9, 1, 20)], 3: [Piece(4, 1, 10)]}
    assert asked == [[(1, 3), (2, 0), (3, 1)], [(2, 0), (3, 1)], [(2, 0)]]


def test_a_node_that_cannot_measure_now_is_an_error(node: Any, client: Any) -> None:
    node.handlers[Opcode.LEASE] = lambda packet: response(
        packet.opcode, Status.ETMPFAIL, packet.opaque
    )
    with pytest.raises(UnavailableError, match="measuring lease 7"):
        measure_lease(client, 7, {1: 3}, 2, 400)


def test_a_reply_of_another_length_is_refused(node: Any, client: Any) -> None:
    node.handlers[Opcode.LEASE] = lambda packet: answered(packet, rest=b"\0")
    with pytest.raises(RemoteProtocolError, match="pieces of wrong length"):
        measure_lease(client, 7, {1: 3}, 2, 400)
