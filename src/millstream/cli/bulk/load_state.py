"""How far a load has come, kept beside each file so that it can go on.

`FILE.BUCKET.load` (or a file of that name in the directory given) holds JSON: version, bucket, its
uuid, line, offset, digest, and whether the file is done.

Invariants:
1. A place is kept only after every row before it was acknowledged.
2. The place of another bucket, or of one that was re-created, counts as none.

Elsewhere: what a place is (`cli.bulk.load_rows`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from millstream.cli.bulk.load_rows import Place
from millstream.errors import UnavailableError, UsageError
from millstream.runtime.files import write_atomically

__all__ = ["LoadState", "NoState"]

_VERSION = 1


class _Form(msgspec.Struct):
    v: int
    bucket: str
    bucket_uuid: str
    line: int
    offset: int
    digest: str
    is_done: bool


class NoState:
    """The place in what cannot be gone on with."""

    place = Place()
    is_done = False

    def save(self, place: Place, *, is_done: bool = False) -> None:
        """Keep nothing."""

    def remove(self) -> None:
        """There is nothing to forget."""


class LoadState:
    """The place reached in one file, for one bucket."""

    def __init__(
        self, file: Path, bucket: str, bucket_uuid: str, directory: Path | None = None
    ) -> None:
        self.path = (directory or file.parent) / f"{file.name}.{bucket}.load"
        self._bucket, self._bucket_uuid = bucket, bucket_uuid
        self.place, self.is_done = self._read()

    def _read(self) -> tuple[Place, bool]:
        try:
            form = msgspec.json.decode(self.path.read_bytes(), type=_Form)
        except FileNotFoundError:
            return Place(), False
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"{self.path} does not say how far a load has come ({error}); remove it to load "
                "from the beginning",
                code="bad_state_file",
            ) from error
        if (form.v, form.bucket, form.bucket_uuid) != (_VERSION, self._bucket, self._bucket_uuid):
            return Place(), False
        return Place(form.line, form.offset, form.digest), form.is_done

    def save(self, place: Place, *, is_done: bool = False) -> None:
        """Keep a place durably.

        Raises:
            UnavailableError: `unwritable`.
        """
        self.place, self.is_done = place, is_done
        form = _Form(_VERSION, self._bucket, self._bucket_uuid, *place, is_done)
        try:
            write_atomically(self.path, msgspec.json.encode(form))
        except OSError as error:
            raise UnavailableError(
                f"cannot write {self.path}: {error.strerror}; give another place with --state",
                code="unwritable",
            ) from error

    def remove(self) -> None:
        """Forget the place: everything is loaded."""
        self.path.unlink(missing_ok=True)
