"""How far a long command is, for people at a terminal.

Invariants:
1. Nothing is shown where stderr is no terminal, and nothing on stdout.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, ProgressColumn

__all__ = ["progress_of"]


def progress_of(
    *columns: str | ProgressColumn, is_quiet: bool = False, is_transient: bool = False
) -> Progress:
    """Return a display of progress on stderr.

    Args:
        columns: what is shown, from left to right.
        is_quiet: show nothing.
        is_transient: it vanishes at the end.
    """
    console = Console(stderr=True)
    return Progress(
        *columns,
        console=console,
        disable=is_quiet or not console.is_terminal,
        transient=is_transient,
    )
