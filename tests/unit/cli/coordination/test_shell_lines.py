"""`cli.coordination.shell_lines`: lines that a false node answers."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from millstream.cli.coordination.shell_lines import Shell
from millstream.coordination.core.shell.replies import Reply
from millstream.errors import MillstreamError, UsageError


class FalseAsking:
    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked = list(replies), list[Any]()
        self.is_there = True

    def ask(self, words: Any) -> list[Reply]:
        self.asked.append(words)
        return [self.replies.pop(0)]

    def wait(self, words: Any) -> bool:
        return self.is_there


def shell(*replies: Reply, is_raw: bool = False) -> tuple[Any, BytesIO]:
    out = BytesIO()
    made: Any = Shell(out, is_raw=is_raw)
    made.asking = FalseAsking(*replies)
    return made, out


OK, PENDING = Reply(b"+", b"OK"), Reply(b"+", b"PENDING")


def test_a_script_ends_with_its_first_error() -> None:
    made, out = shell(OK, Reply(b"-", b"NOTEMPTY /a"))
    with pytest.raises(MillstreamError, match="line 4: the node answers NOTEMPTY") as ended:
        made.run([b"# first\n", b"\n", b"PUT /a x\n", b"DELETE /a\n", b"PUT /a y\n"])
    assert ended.value.code == "refused"
    assert out.getvalue() == b"OK\nNOTEMPTY /a\n"


def test_what_ends_and_what_is_no_line() -> None:
    made, out = shell(OK)
    made.run([b"help exit", b"quit", b"PUT /a x"])
    assert out.getvalue() == b"EXIT\n    leave the shell\n"
    for wrong in (b'PUT "a', b"HELLO 2"):
        with pytest.raises(UsageError):
            made.carry_out(wrong)
    assert made.asking.asked == []


def test_what_waits_is_told_to_retry_once_it_has_come() -> None:
    made, out = shell(PENDING, PENDING)
    made.carry_out(b"LOCK /a")
    assert out.getvalue() == b"PENDING\nRETRY\n"
    made.asking.is_there = False
    made.carry_out(b"LOCK /a")
    assert out.getvalue().endswith(b"RETRY\nPENDING\n")


def test_pushes_are_printed_above_what_is_typed() -> None:
    made, out = shell()
    message = Reply(b">", b"", (Reply(b"$", b"message"), Reply(b"$", b"/a"), Reply(b"$", b"{}")))
    made.tell(message)
    made.beside_prompt = lambda: "v2r2> GE"
    made.tell(message)
    made.tell(Reply(b">", b"", (Reply(b"$", b"retry"),)))
    assert out.getvalue() == b"/a {}\n\r\x1b[K/a {}\nv2r2> GE"


def test_raw_output() -> None:
    made, out = shell(OK, is_raw=True)
    made.carry_out(b"PUT /a x")
    assert out.getvalue() == b"+OK\r\n"
