"""Space of a bucket that is kept for a start on a full disk: the file `reserve`.

After an unclean stop a start must write before anything is served: new history branches, and how
far the log reached. On a full disk the reserve is given back for that; it is taken again once
there is space.

Invariants:
1. The file holds nothing. It may be missing: then a start on a full disk waits for space.

Elsewhere: who writes at a start (`storage.core.store`), who tries again (`node.buckets`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from millstream.runtime.files import sync_directory

__all__ = ["Reserve"]

FIXED_BYTES: Final = 64 * 1024
"""For small files, the header of a segment and a page or two of by-id."""
PARTITION_BYTES: Final = 256
"""For what a start writes of each partition: a rollback, an entry, a state."""


class Reserve:
    """The reserve of one bucket. All calls block."""

    def __init__(self, path: Path, partition_count: int) -> None:
        self._path = path
        self._bytes = FIXED_BYTES + PARTITION_BYTES * partition_count

    def give_back(self) -> bool:
        """Give the space back; False if there was none."""
        try:
            self._path.unlink()
            sync_directory(self._path.parent)
        except OSError:
            return False
        return True

    def take(self) -> None:
        """Have the space, unless there is too little."""
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size >= self._bytes:
                return
            try:
                with self._path.open("wb") as file:
                    file.write(bytes(self._bytes))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                self._path.unlink(missing_ok=True)
