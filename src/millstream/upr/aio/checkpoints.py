"""Where a consumer keeps its checkpoint: a Protocol, and a file.

Invariants:
1. `save` returns when the checkpoint is durable; after a crash the old or the new one is found.

Elsewhere: what a checkpoint holds (`upr.core.checkpoint`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from millstream.errors import UnavailableError
from millstream.runtime.files import write_atomically
from millstream.upr.core.checkpoint import (
    Checkpoint,
    checkpoint_from_json,
    checkpoint_to_json,
)

__all__ = ["CheckpointStore", "FileCheckpointStore"]


class CheckpointStore(Protocol):
    """Keeps one checkpoint. Both calls may block and are made in a worker thread.

    The best store is the reader's own: the checkpoint in one transaction with what was read.
    """

    def load(self) -> Checkpoint | None:
        """Return what was saved last; None before the first time."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep it durably in place of the one before."""


class FileCheckpointStore:
    """A checkpoint as a small JSON file, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Checkpoint | None:
        """Return the checkpoint in the file, None if there is no file.

        Raises:
            CorruptionError: the file holds something else.
            UnavailableError: `unreadable`.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read the checkpoint {self._path}: {error.strerror}"
            raise UnavailableError(message, code="unreadable") from error
        return checkpoint_from_json(text, name=str(self._path))

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the file.

        Raises:
            UnavailableError: `unwritable`.
        """
        try:
            write_atomically(self._path, checkpoint_to_json(checkpoint))
        except OSError as error:
            message = f"cannot write the checkpoint {self._path}: {error.strerror}"
            raise UnavailableError(message, code="unwritable") from error
