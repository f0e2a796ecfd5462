"""What an error of the disk means: wait for space, or stop.

Invariants:
1. Only a lack of space, or of descriptors, may pass by itself; every other error ends the
   writing, for good.

Elsewhere: who waits and who stops (`kv.aio.flusher`).
"""

from __future__ import annotations

import errno
from typing import Final

from millstream.errors import UnavailableError

__all__ = ["disk_error", "is_full"]

_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT}) | _NO_DESCRIPTORS


def is_full(error: OSError) -> bool:
    """Return whether there is no space for now, also where a quota says so, or no descriptor."""
    return error.errno in _FULL


def disk_error(error: OSError, place: str, *, is_final: bool = False) -> UnavailableError:
    """Return `disk_full` or `disk_failed`, naming the file or directory concerned.

    `is_final`: it failed whatever the reason, as after a sync.
    """
    if is_full(error) and not is_final:
        cure = "have fewer files open" if error.errno in _NO_DESCRIPTORS else "free space"
        return UnavailableError(f"{place} cannot be written: {error}; {cure}", code="disk_full")
    return UnavailableError(
        f"{place}: the disk failed: {error}; look after it, then restart", code="disk_failed"
    )
