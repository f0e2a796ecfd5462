"""`core.shell.replies`: cut from any pieces, and back to the same bytes."""

from __future__ import annotations

import pytest

from millstream.coordination.core.client.wire import Replies
from millstream.coordination.core.shell.replies import DEPTH_MAX, Reply, ReplyCutter, as_sent
from millstream.errors import RemoteProtocolError

WIRE = (
    b"+OK\r\n-LOCKED /a\r\n:-3\r\n(99999999999999999999\r\n_\r\n#t\r\n$5\r\na\r\nbc\r\n$0\r\n\r\n"
    b"*0\r\n%1\r\n$1\r\nk\r\n*2\r\n:1\r\n~1\r\n+x\r\n>2\r\n$5\r\nretry\r\n$2\r\n-1\r\n"
)


@pytest.mark.parametrize("step", [1, 2, 7, len(WIRE)])
def test_replies_come_in_any_pieces_and_go_back_to_the_same_bytes(step: int) -> None:
    cutter = ReplyCutter()
    found = [
        reply for at in range(0, len(WIRE), step) for reply in cutter.feed(WIRE[at : at + step])
    ]
    assert len(found) == 11
    assert b"".join(map(as_sent, found)) == WIRE
    assert found[6] == Reply(b"$", b"a\r\nbc")
    assert [reply.is_error for reply in found].count(True) == 1


def test_replies_are_the_same_values_that_programs_get() -> None:
    wire = WIRE.replace(b"(99999999999999999999\r\n", b"").replace(b"-LOCKED /a\r\n", b"")
    values = [reply.value for reply in ReplyCutter().feed(wire)]
    assert values == list(Replies().feed(wire))


def test_nothing_is_told_as_resp2_does_too() -> None:
    assert list(ReplyCutter().feed(b"$-1\r\n*-1\r\n")) == [Reply(b"_"), Reply(b"_")]


@pytest.mark.parametrize(
    "wrong", [b"HTTP/1.1 200\r\n", b"$x\r\n", b"?1\r\n", b"*1\r\n" * (DEPTH_MAX + 3)]
)
def test_an_invalid_reply_is_an_error(wrong: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="does not speak RESP"):
        list(ReplyCutter().feed(wrong))
