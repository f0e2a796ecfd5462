"""The data directory of a node: whose it is, in which format, and that only one server uses it.

Layout: `node.toml` (format, uuid, created), `lock`, `users.json`, `buckets/<uuid>/`.

Invariants:
1. Nothing is written into a directory that holds something else.
2. A directory written by a newer format is not touched.
3. While it is open, no other server has it open.

Elsewhere: what is in `buckets` (`node.buckets`), in `users.json` (`access.users`).
"""

from __future__ import annotations

import time
import tomllib
import uuid
from datetime import datetime
from pathlib import Path
from typing import Final

from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.runtime.files import sync_directory, write_atomically
from millstream.runtime.process import DirectoryLock

__all__ = ["FORMAT", "PATIENCE_S", "DataDirectory", "as_text", "read_toml", "utc_now"]

FORMAT: Final = 1
PATIENCE_S: Final = 3.0
"""How long a server waits for a predecessor that is just ending."""
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_NODE_FILE: Final = "node.toml"
_OWN_BEFORE_FIRST_START: Final = frozenset({"lock", "lost+found", "node.toml.new"})


class DataDirectory:
    """An open data directory; made by `open`, ended by `close`."""

    def __init__(self, path: Path, lock: DirectoryLock, node_uuid: str) -> None:
        self.path = path
        self.uuid = node_uuid
        self.users_path = path / "users.json"
        self.buckets_path = path / "buckets"
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, patience_s: float = PATIENCE_S) -> DataDirectory:
        """Open a directory, made if missing; blocks up to `patience_s` if another server has it.

        Raises:
            UsageError: `foreign_directory`, `newer_format`.
            UnavailableError: `directory_in_use`, `directory_unusable`.
            CorruptionError: `bad_node_file`.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(path)
            lock = DirectoryLock(path / "lock", patience_s=patience_s)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            return cls(path, lock, _node_uuid(path))
        except OSError as error:
            lock.release()
            raise _unusable(path, error) from error
        except BaseException:  # whoever fails or is interrupted holds no lock
            lock.release()
            raise

    def close(self) -> None:
        """Let other servers in."""
        self._lock.release()


def utc_now() -> str:
    """Return the present time as TOML and JSON have it, to the second."""
    return time.strftime(_TIME, time.gmtime())


def as_text(value: object) -> str:
    """Return a value read from TOML as it was written; times as `utc_now` gives them."""
    return value.strftime(_TIME) if isinstance(value, datetime) else str(value)


def read_toml(path: Path) -> dict[str, object]:
    """Read one of our own small TOML files.

    Raises:
        CorruptionError: `bad_file`.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorruptionError(f"{path} is damaged: {error}", code="bad_file") from error
    written = content.get("format")
    if not isinstance(written, int):
        raise CorruptionError(f"{path} is damaged: it names no format", code="bad_file")
    if written > FORMAT:
        raise UsageError(
            f"{path} has format {written}; this Millstream knows formats up to {FORMAT}: "
            "use the newer Millstream that wrote it",
            code="newer_format",
        )
    return content


def _refuse_foreign(path: Path) -> None:
    if (path / _NODE_FILE).exists():
        return
    found = sorted(entry.name for entry in path.iterdir())
    foreign = [name for name in found if name not in _OWN_BEFORE_FIRST_START]
    if foreign:
        raise UsageError(
            f"{path} is no data directory of Millstream and holds {foreign[0]!r}; "
            "choose an empty or a new one",
            code="foreign_directory",
        )


def _node_uuid(path: Path) -> str:
    file = path / _NODE_FILE
    if not file.exists():
        node_uuid = uuid.uuid4().hex
        content = f'format = {FORMAT}\nuuid = "{node_uuid}"\ncreated = {utc_now()}\n'
        (path / "buckets").mkdir(exist_ok=True)
        write_atomically(file, content.encode())
        sync_directory(path.parent)
        return node_uuid
    content_uuid = read_toml(file).get("uuid")
    if not isinstance(content_uuid, str):
        raise CorruptionError(f"{file} is damaged: it names no uuid", code="bad_file")
    return content_uuid


def _unusable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"data directory {path} cannot be used: {error.strerror or error}",
        code="directory_unusable",
        retry="never",
    )
