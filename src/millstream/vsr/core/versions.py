"""Versions: which entry of its group's log last changed something, as text `epoch:view:lsn`.

Invariants:
1. Compared as numbers, epoch first. Within a group the LSN alone would do: it never begins anew.
2. Written without zeros in front, read with them.

Elsewhere: what has a version (the state machine).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from millstream.vsr.core.entries import Header

__all__ = ["NEVER", "Version", "parse_version", "version_of"]

_TEXT: Final = re.compile(rb"(\d{1,20}):(\d{1,20}):(\d{1,20})\Z")


class Version(NamedTuple):
    """A place in a group's history."""

    epoch: int
    view: int
    lsn: int

    @property
    def text(self) -> bytes:
        """As clients see it."""
        return b"%d:%d:%d" % self


NEVER: Final = Version(0, 0, 0)
"""The version of what was never changed."""


def version_of(header: Header) -> Version:
    """Return the version of what this entry changes."""
    return Version(header.epoch, header.view, header.lsn)


def parse_version(text: bytes) -> Version | None:
    """Return the version that a client wrote; None if it is not a version."""
    found = _TEXT.match(text)
    return Version(*map(int, found.groups())) if found else None
