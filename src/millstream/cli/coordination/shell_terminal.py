"""The prompt `v2r2> `: lines with history, and with completion of commands and paths.

Invariants:
1. A line with a password is not kept in the history, nor in its file.
2. Nothing said to a node ends the prompt; ctrl-D, EXIT and QUIT do.

Elsewhere: what a word may become (`core.shell.commands`), lines (`cli.coordination.shell_lines`).
"""

from __future__ import annotations

import contextlib
import os
import readline
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.coordination.core.shell.commands import completions, has_secret
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.cli.coordination.shell_lines import Shell

__all__ = ["HISTORY_LINES", "PROMPT", "Terminal", "history_file"]

PROMPT: Final = "v2r2> "
HISTORY_LINES: Final = 1_000
"""Lines that are kept from one shell to the next."""


def history_file() -> Path:
    """Return where lines are kept."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "millstream" / "shell_history"


class Terminal:
    """Reads lines from the terminal and has the shell carry them out."""

    def __init__(self, shell: Shell) -> None:
        self._shell, self._found = shell, list[str]()

    def run(self) -> None:
        """Ask for lines until there are no more."""
        history = history_file()
        readline.set_completer(self._complete)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")
        readline.set_history_length(HISTORY_LINES)
        readline.set_auto_history(False)
        with contextlib.suppress(OSError):
            readline.read_history_file(history)
        try:
            while self._next():
                pass
        finally:
            with contextlib.suppress(OSError):  # there may be no home to keep it in
                history.parent.mkdir(parents=True, exist_ok=True)
                history.touch(mode=0o600)
                readline.write_history_file(history)

    def _next(self) -> bool:
        """Carry out one line; False at the end."""
        try:
            self._shell.beside_prompt = lambda: PROMPT + readline.get_line_buffer()
            try:
                line = input(PROMPT)
            finally:
                self._shell.beside_prompt = None
            if line.strip() and not has_secret(line):
                readline.add_history(line)
            return self._shell.carry_out(line.encode("utf-8", "surrogateescape"))
        except EOFError:
            print()
            return False
        except KeyboardInterrupt:
            print()
        except MillstreamError as error:
            if error.code != "refused":  # that is printed
                print(f"{error}", file=sys.stderr)
        return True

    def _complete(self, _: str, number: int) -> str | None:
        """Return one of the words that the last one may become; None behind the last."""
        if number == 0:
            try:
                line = readline.get_line_buffer()[: readline.get_endidx()]
                self._found = completions(line, self._shell.asking.names_below)
            except MillstreamError:
                self._found = []
        if number >= len(self._found):
            return None
        is_whole = len(self._found) == 1 and not self._found[0].startswith("/")
        return self._found[number] + (" " if is_whole else "")
