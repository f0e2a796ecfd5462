"""`millstream shell`: ask coordination groups, line by line, at a prompt or from a file.

Invariants:
1. There is a prompt only for people: a file, or what comes through a pipe, is a script.
2. Sessions end with the shell: nobody waits for what it held.

Elsewhere: lines (`cli.coordination.shell_lines`), the prompt (`cli.coordination.shell_terminal`),
which node (`cli.coordination.shell_requests`).

Source: docs/reference/shell.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.connect import (
    NodeOptions,
    at_node,
    tls_of,
    who_of,
)
from millstream.cli.coordination.coord import coord_address_at
from millstream.cli.coordination.shell_lines import Shell
from millstream.cli.coordination.shell_requests import Asking

__all__ = ["command"]

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="Commands, one in each line; - or nothing: stdin."),
]
CoordOption = Annotated[
    str | None,
    typer.Option(
        "--coord",
        metavar="HOST:PORT",
        help="The node's coordination port; without it the node is asked at its kv port.",
    ),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Print replies as they are on the wire.")]


@at_node
def command(
    file: FileArgument = None,
    raw: RawOption = False,
    coord: CoordOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Ask coordination groups, at a prompt or by a script."""
    who, tls = who_of(at.user, at.password_file), tls_of(at.tls_ca)
    shell = Shell(sys.stdout.buffer, is_raw=raw)
    shell.asking = Asking(coord or coord_address_at(at.address, who, tls), who, tls, shell.tell)
    try:
        if file is None and sys.stdin.isatty():
            from millstream.cli.coordination.shell_terminal import Terminal

            Terminal(shell).run()
        elif file is None or str(file) == "-":
            shell.run(sys.stdin.buffer)
        else:
            with file.open("rb") as lines:
                shell.run(lines)
    finally:
        shell.asking.close()
