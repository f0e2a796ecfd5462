"""`core.client.wire`: what a client writes a node reads, and the other way round."""

from __future__ import annotations

import pytest

from millstream.coordination.core.client.events import ErrorReply
from millstream.coordination.core.client.wire import Replies, hello, is_answer, is_push, packed
from millstream.coordination.core.resp.protocol import RequestCutter
from millstream.errors import RemoteProtocolError


@pytest.mark.parametrize("argv", [(b"PING",), (b"SET", b"", b"a\r\nb\0\xff"), [b"x"] * 1000])
def test_a_node_reads_the_command_that_was_packed(argv: list[bytes]) -> None:
    cutter = RequestCutter()
    cutter.feed(packed(argv))
    assert cutter.cut(2) == [list(argv)]


def test_who_logs_in_says_so_with_the_greeting() -> None:
    assert hello(None, "") == (b"HELLO", b"3")
    assert hello("ada", "p\u00fc") == (b"HELLO", b"3", b"AUTH", b"ada", "p\u00fc".encode())


def test_replies_come_in_any_pieces() -> None:
    wire = b"+OK\r\n-BUSY a b\r\n*2\r\n:1\r\n$3\r\nabc\r\n"
    replies = Replies()
    ok, busy, found = [
        reply for at in range(len(wire)) for reply in replies.feed(wire[at : at + 1])
    ]
    assert (ok, found) == (b"OK", [1, b"abc"])
    assert isinstance(busy, ErrorReply)
    assert (busy.code, busy.words) == ("BUSY", "a b")
    assert not replies.has_part
    assert list(replies.feed(b"$3\r\na")) == []
    assert replies.has_part
    assert list(Replies("utf-8").feed(b"+a\r\n")) == ["a"]


def test_replies_before_what_is_no_reply_are_there() -> None:
    found = []
    with pytest.raises(RemoteProtocolError):
        found.extend(Replies().feed(b"+OK\r\nHTTP\r\n"))
    cut = Replies().feed(b"+OK\r\nHTTP\r\n")
    assert next(cut) == b"OK"


def test_a_push_is_an_answer_if_it_confirms() -> None:
    wire = b">1\r\n+message\r\n>2\r\n+subscribe\r\n:1\r\n*1\r\n+subscribe\r\n"
    found = list(Replies().feed(wire))
    assert [is_push(reply) for reply in found] == [True, True, False]
    assert [is_answer(reply) for reply in found] == [False, True, True]
