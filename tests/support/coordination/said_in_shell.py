"""A shell of coordination in the process of a test: what a line prints, and whole transcripts."""

from __future__ import annotations

import contextlib
import re
from io import BytesIO
from typing import Self

from millstream.cli.connect import Who
from millstream.cli.coordination.shell_lines import Shell
from millstream.cli.coordination.shell_requests import Asking
from millstream.errors import MillstreamError
from support.node.node_process import NodeProcess

__all__ = ["Said", "address", "exchanges"]


def address(node: NodeProcess) -> str:
    """Return where a node takes commands, as `--coord` of the shell has it."""
    return "{}:{}".format(*node.address("coord"))


def exchanges(transcript: str) -> list[tuple[str, str]]:
    """Return the lines of a transcript behind `v2r2> `, and what each of them prints."""
    parts = transcript.strip().split("v2r2> ")[1:]
    said = [part.partition("\n") for part in parts]
    return [(line, expected.rstrip("\n") + "\n") for line, _, expected in said]


class Said:
    """A shell in this process."""

    def __init__(self, node: NodeProcess, *, is_raw: bool = False) -> None:
        self.out = BytesIO()
        self.shell = Shell(self.out, is_raw=is_raw)
        self.shell.asking = Asking(address(node), Who(None, ""), None, self.shell.tell)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shell.asking.close()

    def say(self, line: str) -> str:
        """Return what a line has printed; versions and tokens as letters."""
        begin = len(self.out.getvalue())
        with contextlib.suppress(MillstreamError):  # what it answered is printed
            self.shell.carry_out(line.encode())
        return self.text(begin)

    def text(self, begin: int = 0) -> str:
        """Return what was printed from there on."""
        text = self.out.getvalue()[begin:].decode()
        text = re.sub(r"\b\d+:\d+:\d+\b", "VERSION", text)
        return re.sub(r"TOKEN: (?!VERSION)\S+", "TOKEN: T", text)
