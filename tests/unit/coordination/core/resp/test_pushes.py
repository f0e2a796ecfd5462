"""What waits for a connection becomes bytes as it takes them."""

from __future__ import annotations

import pytest

from millstream.coordination.core.resp.pushes import Listener


@pytest.mark.parametrize(("protocol", "sign"), [(2, b"*"), (3, b">")])
def test_messages_are_taken_in_pieces(protocol: int, sign: bytes) -> None:
    listener = Listener(lambda: None)
    for text in (b"one", b"two", b"three"):
        listener.subscriber.say(b"/a", text)
    assert (listener.waiting_bytes, listener.is_empty) == (11, False)
    begin = sign + b"3\r\n$7\r\nmessage\r\n$2\r\n/a\r\n"
    assert listener.take(4, protocol) == begin + b"$3\r\none\r\n" + begin + b"$3\r\ntwo\r\n"
    assert listener.take(100, protocol) == begin + b"$5\r\nthree\r\n"
    assert (listener.take(100, protocol), listener.waiting_bytes) == (b"", 0)
    assert listener.is_empty


def test_what_is_barred() -> None:
    listener = Listener(lambda: None)
    assert not listener.bars(b"GET", 2)
    listener.is_on = True
    assert [listener.bars(b"GET", 2), listener.bars(b"PING", 2), listener.bars(b"GET", 3)] == [
        True, False, False,
    ]  # fmt: skip
    listener.subscriber.say(b"/a", b"x")
    listener.end()
    assert (listener.bars(b"GET", 2), listener.waiting_bytes) == (False, 0)
