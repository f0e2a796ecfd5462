"""`millstream support`: one archive with what those need who help with a node.

Invariants:
1. An existing file is not overwritten.
2. It holds no documents, keys or secrets: the node makes it (`gateway.aio.node.support_pages`).

Source: docs/reference/support.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.connect import NodeOptions, at_node
from millstream.cli.node_http import node_http
from millstream.errors import UsageError

__all__ = ["command"]

OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Where to; millstream-support-TIME.zip."),
]


@at_node
def command(out: OutOption = None, *, at: NodeOptions) -> None:
    """Write an archive with versions, settings, states, statistics and logs of a node.

    It holds no documents, keys or secrets; the file contents.txt in it lists what it holds.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = out or Path(f"millstream-support-{stamp}.zip")
    http = node_http(**at.options)
    try:
        with path.open("xb") as file:
            for piece in http.pieces("GET", "/_millstream/support"):
                file.write(piece)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already: name another file by --out") from error
    except BaseException:  # also when interrupted: half an archive is not left
        path.unlink(missing_ok=True)
        raise
    sys.stderr.write(f"wrote {path}, {path.stat().st_size} bytes\n")
