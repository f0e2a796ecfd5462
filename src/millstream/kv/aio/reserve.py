"""Disk space reserved for a start of a bucket on a full disk: the file `reserve`.

After an unclean stop a start must write before anything is served: new history branches, and the
end of the log. On a full disk the reserve is released for that. It is taken again once there is
space.

Invariants:
1. The file has no content. It may be missing: then a start on a full disk waits for space.

Elsewhere: writes of a start (`storage.core.store`), retries (`databases.buckets`).
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
"""For a start's writes per partition: a rollback, an entry, a state."""


class Reserve:
    """The reserve of one bucket. All calls block."""

    def __init__(self, path: Path, partition_count: int) -> None:
        self._path = path
        self._bytes = FIXED_BYTES + PARTITION_BYTES * partition_count

    def give_back(self) -> bool:
        """Release the space; False if there was none."""
        try:
            self._path.unlink()
            sync_directory(self._path.parent)
        except OSError:
            return False
        return True

    def take(self) -> None:
        """Reserve the space, unless there is too little."""
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
