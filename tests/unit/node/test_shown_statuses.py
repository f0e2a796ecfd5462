from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from millstream.gateway.core.api.node import StreamAt
from millstream.node.shown_statuses import reader_statuses
from millstream.upr.core.producer import StreamFigures


def connection(peer: str, user: str | None, *, streams: bool = True) -> Any:
    figures = StreamFigures(1, 0, 4, 17, 99, is_stuck=False, is_dead=False)
    streamer = SimpleNamespace(figures=lambda: figures, positions=lambda: [(3, "in-memory", 6, 4)])
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
    assert one.streams == [StreamAt(3, "in-memory", 6, 4)]
    assert (other.address, other.user) == ("the node's own process", "")
