"""The file `inventory.toml`: what the data directory of a node must hold.

It names each bucket with its parts beside its own file, whether there are users, whether the node
takes part in coordination, and the cluster that it is a member of. If anything named here is
missing or altered, that part stops and is never created anew.

Invariants:
1. A part is durable before it is named here, and it is named before its creation is acknowledged.
   A part that is removed is taken out of the inventory first. So a kill in between leaves a part
   that exists and is not named. The next start adds it.
2. The file is replaced as a whole, by one process at a time, based on its current content.

Elsewhere: who adds entries (`databases.buckets`, `access.users`, `node.engine`); handling of
missing parts (`data_directory.acceptance`).
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.data_directory.small_files import FORMAT, as_text, read_toml, sealed
from millstream.errors import CorruptionError
from millstream.runtime.files import alone_in, write_atomically

__all__ = [
    "INVENTORY_FILE", "LOCAL", "LOG", "MAP", "RECORDS", "Contents", "Entry", "Inventory",
    "accept_hint",
]  # fmt: skip

INVENTORY_FILE: Final = "inventory.toml"
LOG: Final = "log"
"""Part of a bucket: its log was opened, and has a receipt."""
LOCAL: Final = "local"
"""Part of a bucket: `_local` documents or settings were stored."""
MAP: Final = "map"
"""Part of a bucket: it was given a map."""
RECORDS: Final = "records"
"""Part of a bucket: it adopted records of a managed cluster."""


class Entry(NamedTuple):
    """A bucket of the node."""

    name: str
    partitions: int
    created: str
    parts: frozenset[str] = frozenset()
    log_id: str = ""
    """Id of its log in hex; empty: not known."""

    @property
    def log(self) -> bytes | None:
        """Return the id of the log that must be there; empty: any log; None: it may be new."""
        return bytes.fromhex(self.log_id) if LOG in self.parts else None


class Contents(NamedTuple):
    """Content of the inventory."""

    uuid: str = ""
    has_users: bool = False
    coordinates: bool = False
    buckets: Mapping[str, Entry] = {}
    """The buckets by uuid."""
    cluster: str = ""
    """Uuid of the cluster that the node is a member of; empty: of none."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was ever created in the directory."""
        return not (self.has_users or self.coordinates or self.buckets or self.cluster)

    def with_bucket(self, uuid: str, entry: Entry) -> Contents:
        """Return it with a new or replaced bucket entry."""
        return self._replace(buckets={**self.buckets, uuid: entry})

    def with_part(self, uuid: str, part: str) -> Contents:
        """Return it with a new part of a bucket, if the bucket is in it."""
        entry = self.buckets.get(uuid)
        if entry is None:
            return self
        return self.with_bucket(uuid, entry._replace(parts=entry.parts | {part}))

    def without_bucket(self, uuid: str) -> Contents:
        """Return it without a bucket."""
        return self._replace(buckets={u: e for u, e in self.buckets.items() if u != uuid})


def accept_hint(path: Path, directory: Path | None = None) -> str:
    """Return the end of an error message: the command that continues with what is left.

    Args:
        path: the missing or damaged file.
        directory: the data directory; by default the one that contains the file.
    """
    directory = path.parent if directory is None else directory
    what, of = path.relative_to(directory).as_posix(), shlex.quote(str(directory))
    return f"; to go on with what is there: millstream check {of} --accept {what}"


class Inventory:
    """The inventory of one directory. All calls block; from any thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = directory / INVENTORY_FILE
        self._known: Contents | None = None
        self._stamp: object = None
        """Identity of the file as last read or written."""
        self._lock = threading.Lock()

    @staticmethod
    def is_begun_in(directory: Path) -> bool:
        """Return whether the file exists."""
        return (directory / INVENTORY_FILE).exists()

    def begin(self, contents: Contents) -> None:
        """Write the file, whatever was there; raises OSError."""
        with self._lock:
            self._write(contents)

    def read(self, *, is_expected: bool = False) -> Contents:
        """Return the content of the file; without a file it is empty, unless the file is expected.

        Raises:
            CorruptionError: `bad_file`.
            UsageError: `newer_format`.
            OSError: it cannot be read.
        """
        hint = accept_hint(self._file)
        if not self._file.exists():
            if is_expected:
                raise CorruptionError(
                    f"{self._file} is missing, and with it which buckets and users there must "
                    f"be; restore it from a backup{hint}",
                    code="bad_file",
                )
            return self._known or Contents()
        stamp = _stamp(self._file)
        if self._known is not None and stamp == self._stamp:
            return self._known
        content = read_toml(self._file, hint)
        try:
            if content.get("sealed") is not True:
                raise ValueError("it has no checksum")
            self._known, self._stamp = _decoded(content), stamp
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptionError(
                f"{self._file} is damaged: {error}{hint}", code="bad_file"
            ) from error
        return self._known

    def change(self, function: Callable[[Contents], Contents]) -> None:
        """Replace the content by the result of a function, durably; raises as `read`."""
        buckets = self.directory / "buckets"
        buckets.mkdir(exist_ok=True)
        with self._lock, alone_in(buckets):  # access.users has the lock of the directory itself
            before = self.read()
            after = function(before)
            if after != before or not self._file.exists():
                self._write(after)

    def _write(self, contents: Contents) -> None:
        write_atomically(self._file, _encoded(contents))
        self._known, self._stamp = contents, _stamp(self._file)

    def note_coordination(self) -> None:
        """Record durably that the node takes part in coordination; raises as `read`."""
        self.change(lambda contents: contents._replace(coordinates=True))

    def note_cluster(self, uuid: str) -> None:
        """Record durably of which cluster the node is a member; raises as `read`."""
        self.change(lambda contents: contents._replace(cluster=uuid))

    # -- for the users

    def has_users(self) -> bool:
        """Return whether the node ever had users; raises as `read`."""
        return self.read().has_users

    def note_users(self) -> None:
        """Record durably that the node has users; raises as `read`."""
        self.change(lambda contents: contents._replace(has_users=True))


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return values that differ between a file and its replacement."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _encoded(contents: Contents) -> bytes:
    lines = [f"format = {FORMAT}", f'uuid = "{contents.uuid}"']
    lines += ["users = true"] * contents.has_users
    lines += ["coordination = true"] * contents.coordinates
    lines += [f'cluster = "{contents.cluster}"'] * bool(contents.cluster)
    for uuid, entry in sorted(contents.buckets.items()):
        parts = ", ".join(f'"{part}"' for part in sorted(entry.parts))
        lines += [
            f'[buckets."{uuid}"]', f'name = "{entry.name}"', f"partitions = {entry.partitions}",
            f"created = {entry.created}", f"parts = [{parts}]",
        ]  # fmt: skip
        lines += [f'log_id = "{entry.log_id}"'] * bool(entry.log_id)
    return sealed("\n".join(lines) + "\n")


def _decoded(content: Mapping[str, Any]) -> Contents:
    buckets = {
        uuid: Entry(
            str(entry["name"]), int(entry["partitions"]), as_text(entry["created"]),
            frozenset(map(str, entry["parts"])), bytes.fromhex(entry.get("log_id", "")).hex(),
        )
        for uuid, entry in content.get("buckets", {}).items()
    }  # fmt: skip
    return Contents(
        str(content["uuid"]),
        content.get("users") is True,
        content.get("coordination") is True,
        buckets,
        str(content.get("cluster", "")),
    )
