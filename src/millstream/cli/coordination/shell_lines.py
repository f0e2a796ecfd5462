"""Lines of the shell: carried out, and printed what comes of them.

Invariants:
1. Each line is one command; printed is what V2R2 prints, or if `is_raw` what the wire has.
2. A script ends with the first error, and says in which line; EXISTS, PENDING and GO are none.
3. The shell's own commands are HELP, EXIT and QUIT; all others go to a node.

Elsewhere: which node (`cli.coordination.shell_requests`), what is printed (`core.shell.output`).

Source: V2R2, its examples; docs/reference/shell.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import BinaryIO

from millstream.cli.coordination.shell_requests import Asking
from millstream.coordination.core.resp.protocol import words_of
from millstream.coordination.core.shell.commands import help_lines, root_of
from millstream.coordination.core.shell.output import is_pending, pretty
from millstream.coordination.core.shell.replies import Reply, as_sent
from millstream.errors import MillstreamError, RemoteProtocolError, UsageError

__all__ = ["Shell"]


class Shell:
    """Carries out lines and prints what comes of them."""

    asking: Asking

    def __init__(self, out: BinaryIO, *, is_raw: bool) -> None:
        self._out, self._is_raw = out, is_raw
        self._lock = threading.Lock()
        self.beside_prompt: Callable[[], str] | None = None
        """What is typed at the moment; pushes are printed above it."""

    def run(self, lines: Iterable[bytes]) -> None:
        """Carry out a script.

        Raises:
            MillstreamError: a line has failed; the error names it.
        """
        for number, line in enumerate(lines, start=1):
            try:
                if not self.carry_out(line):
                    return
            except MillstreamError as error:
                raise type(error)(f"line {number}: {error}", code=error.code) from error

    def carry_out(self, line: bytes) -> bool:
        """Carry out a line and print what comes of it; return whether the shell goes on.

        Raises:
            UsageError: `bad_line`: it is no command.
            MillstreamError: `refused`: the node has answered an error, which is printed; else the
                node was not reached.
        """
        words = _words(line)
        if not words or words[0].startswith(b"#"):
            return True
        name = words[0].upper()
        if name in (b"EXIT", b"QUIT"):
            return False
        if name == b"HELP":
            self._print(help_lines([word.decode("utf-8", "replace") for word in words[1:]]))
            return True
        if name == b"HELLO" and words[1:2] not in ([], [b"3"]):
            raise UsageError("the shell speaks RESP3 only", code="bad_line")
        replies = self.asking.ask(words)
        self._show(words, replies)
        failed = next((reply for reply in replies if reply.is_error), None)
        if failed is not None:
            code = failed.text.split(b" ", 1)[0].decode("ascii", "replace")
            raise MillstreamError(f"the node answers {code}", code="refused")
        if is_pending(replies[0]) and root_of(words) and self.asking.wait(words):
            self._print(["RETRY"])
        return True

    def tell(self, push: Reply) -> None:
        """Print what a node says without being asked; called in any thread."""
        with self._lock:
            if push.words[:1] == (b"retry",):
                return  # the shell finds out by itself
            if self.beside_prompt is not None:
                self._write(b"\r\x1b[K")
            self._write(self._form((), push))
            if self.beside_prompt is not None:
                self._write(self.beside_prompt().encode())

    def _show(self, words: list[bytes], replies: list[Reply]) -> None:
        with self._lock:
            for reply in replies:
                if reply.sign != b">":  # those were told
                    self._write(self._form(words, reply))

    def _print(self, lines: Iterable[str]) -> None:
        with self._lock:
            self._write("".join(f"{line}\n" for line in lines).encode())

    def _form(self, words: Iterable[bytes], reply: Reply) -> bytes:
        if self._is_raw:
            return as_sent(reply)
        return "".join(f"{line}\n" for line in pretty(tuple(words), reply)).encode()

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()


def _words(line: bytes) -> list[bytes]:
    """Take a line apart.

    Raises:
        UsageError: `bad_line`.
    """
    try:
        return words_of(line)
    except RemoteProtocolError as error:
        raise UsageError(
            "a quote is not closed, or text follows a closed one", code="bad_line"
        ) from error
