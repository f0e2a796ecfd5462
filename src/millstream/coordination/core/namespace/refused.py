"""Why a command is not done.

Invariants:
1. A command that raises this has changed nothing: whoever carries it out takes back what it did.

Elsewhere: which codes there are (the reference of the commands).
"""

from __future__ import annotations

from millstream.vsr.core.values import error

__all__ = ["Refused"]


class Refused(Exception):
    """An error that is a client's answer: its code, and words that say what to do."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    @property
    def value(self) -> bytes:
        """The reply."""
        return error(self.code, self.text)
