"""The directory of a backup: manifests, the data they name, and one writer at a time.

    DIR/manifest-000003.json
    DIR/data-000003-5f2c9a10/partition=7/<16 hex>.parquet
    DIR/blobs/ab/cdef...                                    attachments, see `blobs`
    DIR/.lock

Invariants:
1. A backup exists iff its manifest does: files are synced before it is written, it is written as a
   whole, and the directory of its data is never used again.
2. One process writes at a time; readers need no lock.
3. What a killed backup left behind is removed by the next one, and so are the data of manifests
   that were deleted; nothing is removed while a chain is broken or a manifest cannot be read.
4. A manifest that cannot be read fails only what needs it.

Elsewhere: what manifests say (`manifest`), Parquet (`parquet`).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.pipelines.lake.blobs import remove_others, sync_blobs
from millstream.pipelines.lake.chain import Manifests, chain_of
from millstream.pipelines.lake.manifest import Manifest, manifest_from_json, manifest_to_json
from millstream.runtime.files import sync_directory, write_atomically
from millstream.runtime.process import FileLock

__all__ = ["BackupDirectory", "only_writer"]

_MANIFEST: Final = re.compile(r"manifest-(\d{6,})\.json")
_DATA: Final = re.compile(r"data-(\d{6,})-[0-9a-f]{8}")
_LOCK: Final = ".lock"


class _WriterLock(FileLock):
    """The right to write into a directory."""

    def refusal(self, path: Path, holder: str) -> ConditionError:
        """Return `already_running`."""
        return ConditionError(
            f"another pipeline (process {holder}) writes into {path.parent}; wait for its end",
            code="already_running",
        )


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Make a directory if necessary, and hold the right to write into it alone.

    Raises:
        ConditionError: `already_running`.
        UnavailableError: `bad_directory`.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = _WriterLock(path / _LOCK, patience_s=0)
    except OSError as error:
        raise UnavailableError(
            f"cannot write {error.filename}: {error.strerror}", code="bad_directory",
            retry="never",
        ) from error  # fmt: skip
    with lock:
        yield


class BackupDirectory:
    """A backup on a file system that driver and executors share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def manifests(self) -> Manifests:
        """Return all manifests by id, and what is wrong with those that cannot be read.

        Raises:
            UsageError: `no_backup`: no such directory.
        """
        found = Manifests()
        for name in self._names():
            if match := _MANIFEST.fullmatch(name):
                id_ = int(match[1])
                try:
                    found[id_] = manifest_from_json((self.path / name).read_bytes(), name)
                except (CorruptionError, UsageError) as error:
                    found.unreadable[id_] = error
        return found

    def writing(self) -> AbstractContextManager[None]:
        """Be the only writer during the block; see `only_writer`."""
        return only_writer(self.path)

    def new_data(self, id_: int) -> str:
        """Make the directory of a new backup's data; return its name."""
        name = f"data-{id_:06d}-{secrets.token_hex(4)}"
        (self.path / name).mkdir()
        return name

    def publish(self, manifest: Manifest, data: str) -> None:
        """Make a backup exist whose files, all in `data`, are synced."""
        named = {file.path for part in manifest.parts for file in part.all_files}
        for folder in (self.path / data).iterdir():
            for file in folder.iterdir():  # of tasks that Spark ran twice
                if file.relative_to(self.path).as_posix() not in named:
                    file.unlink()
            sync_directory(folder)
        sync_directory(self.path / data)
        sync_blobs(self.path)
        sync_directory(self.path)
        write_atomically(
            self.path / f"manifest-{manifest.id:06d}.json", manifest_to_json(manifest)
        )

    def remove_unnamed(self, manifests: Manifests) -> list[str]:
        """Remove data that no manifest names, if all chains are whole; return what it was.

        With them go the attachments that only they may name.
        """
        if manifests.unreadable:
            return []
        try:
            for id_ in manifests:
                chain_of(manifests, id_)
        except CorruptionError:
            return []
        named = {
            file.path.partition("/")[0]
            for manifest in manifests.values()
            for part in manifest.parts
            for file in part.all_files
        }
        unnamed = [name for name in self._names() if _DATA.fullmatch(name) and name not in named]
        if unnamed:
            parts = [part for manifest in manifests.values() for part in manifest.parts]
            try:
                remove_others(self.path, [part.blobs for part in parts if part.blobs])
            except CorruptionError:
                return []
        for name in unnamed:
            shutil.rmtree(self.path / name)
        return unnamed

    def next_id(self) -> int:
        """Return an id above those of all manifests and data."""
        matches = [_MANIFEST.fullmatch(name) or _DATA.fullmatch(name) for name in self._names()]
        return 1 + max((int(match[1]) for match in matches if match), default=0)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except OSError as error:
            raise UsageError(
                f"no backup in {self.path}: {error.strerror}", code="no_backup"
            ) from error
