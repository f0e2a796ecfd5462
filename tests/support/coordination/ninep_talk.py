"""A connection of the file service without sockets: requests and replies by hand."""

from __future__ import annotations

from typing import Any

from millstream.coordination.core.ninep.connection import Connection, Effect, Enquire, Send
from millstream.coordination.core.ninep.packets import (
    MSIZE_MAX,
    NO_FID,
    NO_TAG,
    Kind,
    Packet,
    decode,
    encode,
)

FOUND = {
    b"type": b"BINARY", b"id": 7, b"created_version": b"0:1:5", b"version": b"0:1:9",
    b"child_version": b"0:1:12", b"created_ts": 1, b"ts": 2, b"nchildren": 3, b"data_len": 4,
    b"acl": {b"owner": b"", b"group": b"", b"mode": b"0640"},
}  # fmt: skip


class Talk:
    """A connection with one attach of `/app`, fid 0; `asked` is what waits for replies."""

    def __init__(self) -> None:
        self.connection = Connection(lambda: False)
        self.asked: list[Enquire] = []
        self.effects: list[Effect] = []
        self.sent: list[Packet] = []
        self.say(NO_TAG, Kind.Tversion, MSIZE_MAX, b"9P2000.L")
        self.say(1, Kind.Tattach, 0, NO_FID, b"", b"/app", 0)
        self.answer({})
        self.answer(FOUND)
        assert [packet.kind for packet in self.sent] == [Kind.Rversion, Kind.Rattach]
        self.sent.clear()

    def say(self, tag: int, kind: Kind, *values: Any) -> None:
        self.connection.feed(encode(Packet(kind, tag, values)))
        self.connection.advance()
        self.take()

    def answer(self, *replies: Any, at: int = 0) -> None:
        self.connection.answered(self.asked.pop(at).ticket, list(replies))
        self.take()

    def take(self) -> None:
        for effect in self.connection.take_effects():
            match effect:
                case Send(data):
                    self.sent.append(decode(data))
                case Enquire():
                    self.asked.append(effect)
                case _:
                    self.effects.append(effect)

    def open(self, fid: int, name: bytes, flags: int = 2) -> None:
        """Open a file of the root."""
        self.say(2, Kind.Twalk, 0, fid, (name,))
        self.answer(FOUND)
        self.say(2, Kind.Tlopen, fid, flags)
        self.answer(FOUND)
        self.sent.clear()
