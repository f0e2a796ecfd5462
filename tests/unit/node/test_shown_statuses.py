from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from millstream.gateway.core.api.readers import StreamAt
from millstream.node.shown_statuses import reader_statuses
from millstream.upr.core.producer import Rollback, StreamFigures


def connection(peer: str, user: str | None, *, streams: bool = True) -> Any:
    figures = StreamFigures(1, 0, 4, 17, 99, is_stuck=False, is_dead=False)
    positions = [
        (3, "in-memory", 6, 0xA, 4, None),
        (4, "in-memory", 6, 0xB, 0, None),
        (5, "in-memory", 6, 0xC, 1, 1),
    ]
    streamer = SimpleNamespace(
        figures=lambda: figures, positions=lambda: positions, since_ms=8,
        last_rollback=Rollback(3, 9, 6, 7),
    )  # fmt: skip
    named = None if user is None else SimpleNamespace(name=user)
    session = SimpleNamespace(peer=peer, user=named)
    return SimpleNamespace(session=session, streamer=streamer if streams else None)


async def test_readers_are_shown_with_address_user_and_streams() -> None:
    given = [
        ("a", connection("('127.0.0.1', 5)", "ada")),
        ("b", connection("the node's own process", None)),
        ("feeds copies", connection("('::1', 6, 0, 0)", None, streams=False)),
    ]
    one, other = await reader_statuses(cast("Any", given))
    assert (one.name, one.address, one.user) == ("a", "127.0.0.1:5", "ada")
    assert (one.bytes_waiting, one.sent_bytes) == (17, 99)
    assert one.since_ms == 8
    assert one.last_rollback == {"partition": 3, "from_seqno": 9, "to_seqno": 6, "at_ms": 7}
    assert one.streams[:2] == [
        StreamAt(3, "in-memory", 6, "00000000000a", 4, None),
        StreamAt(4, "in-memory", 6, "00000000000b", 0, 0.0),
    ]  # fmt: skip
    assert (one.streams[2].lag_s or 0) > 1e9  # since 1970
    assert (other.address, other.user) == ("the node's own process", "")
