"""The error of a command that is refused.

Invariants:
1. A command that raises this has changed nothing: its executor undoes what it did.

Elsewhere: the codes (the reference of the commands).
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
