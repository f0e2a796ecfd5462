"""Ownership of a data directory: its node, its format, and the lock for one server.

Layout: `node.toml` (format, uuid, created), `inventory.toml`, `cluster.toml`, `lock`,
`users.json`, `buckets/<uuid>/`.

Invariants:
1. Nothing is written into a directory that holds foreign files.
2. A directory written by a newer format is not changed.
3. Only one server has a directory open at a time.
4. `node.toml` says that the directory has an inventory, once the inventory is durable, so a lost
   inventory is detected. A lost `node.toml` is detected if any other file of a node exists.

Elsewhere: content of `buckets` (`databases.buckets`), of `users.json` (`access.users`), of the
inventory (`data_directory.inventory`), handling of damage (`data_directory.acceptance`).
"""

from __future__ import annotations

import shutil
import uuid
from itertools import count
from pathlib import Path
from typing import Final

from millstream.data_directory.cluster_file import read_identity
from millstream.data_directory.inventory import INVENTORY_FILE, Contents, Inventory, accept_hint
from millstream.data_directory.small_files import FORMAT, as_text, read_toml, sealed, utc_now
from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.runtime.files import sync_directory, write_atomically
from millstream.runtime.process import DirectoryLock

__all__ = [
    "NODE_FILE", "PATIENCE_S", "DataDirectory", "holds_a_node", "node_file_content", "other_node",
    "put_coordination_aside", "read_node_file", "refuse_lost_coordination",
    "remove_unused_coordination",
]  # fmt: skip

PATIENCE_S: Final = 3.0
"""How long a server waits for a predecessor that is stopping."""
NODE_FILE: Final = "node.toml"
_OWN_BEFORE_FIRST_START: Final = frozenset(
    {"lock", "lost+found", "node.toml.new", "inventory.toml", "inventory.toml.new", "buckets"}
)
_OF_COORDINATION: Final = ("node.toml", "node.toml.copy")
_OF_A_NODE: Final = ("users.json", "buckets", "coord", "followed")


class DataDirectory:
    """An open data directory; created by `open`, ended by `close`."""

    def __init__(
        self, path: Path, lock: DirectoryLock, node_uuid: str, inventory: Inventory
    ) -> None:
        self.path = path
        self.inventory = inventory
        self.uuid = node_uuid
        self.identity = read_identity(path, inventory)
        """Of which cluster the node is a member; None: of none."""
        self.users_path = path / "users.json"
        self.buckets_path = path / "buckets"
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, patience_s: float = PATIENCE_S) -> DataDirectory:
        """Open a directory, created if missing; wait up to `patience_s` for another server.

        Raises:
            UsageError: `foreign_directory`, `newer_format`.
            UnavailableError: `directory_in_use`, `directory_unusable`.
            CorruptionError: `bad_file`: `node.toml` or the inventory is missing or damaged.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(path)
            lock = DirectoryLock(path / "lock", patience_s=patience_s)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            inventory = Inventory(path)
            return cls(path, lock, _node_uuid(path, inventory), inventory)
        except OSError as error:
            lock.release()
            raise _unusable(path, error) from error
        except BaseException:  # a failed or interrupted call holds no lock
            lock.release()
            raise

    def close(self) -> None:
        """Release the lock for other servers."""
        self._lock.release()


def read_node_file(path: Path) -> tuple[str, bool]:
    """Return the uuid of the node in a directory, and whether the directory has an inventory.

    Raises:
        CorruptionError: `bad_file`.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    file = path / NODE_FILE
    if not file.exists():
        raise _missing(file)
    content = read_toml(file, accept_hint(file))
    uuid_, has_inventory = content.get("uuid"), content.get("inventory") is True
    if not isinstance(uuid_, str) or (content.get("sealed") is True) != has_inventory:
        raise CorruptionError(
            f"{file} is damaged: it names no uuid or no inventory{accept_hint(file)}",
            code="bad_file",
        )
    return uuid_, has_inventory


def node_file_content(node_uuid: str, created: str) -> bytes:
    """Return the content of node.toml for a directory with an inventory."""
    return sealed(
        f'format = {FORMAT}\nuuid = "{node_uuid}"\ncreated = {created}\ninventory = true\n'
    )


def refuse_lost_coordination(path: Path, contents: Contents) -> None:
    """Refuse to begin coordination anew where its files are missing.

    Raises:
        CorruptionError: `coordination_lost`.
    """
    coord = path / "coord"
    if contents.coordinates and not any((coord / name).exists() for name in _OF_COORDINATION):
        raise CorruptionError(
            f"{coord} has lost what says who this node is among those that coordinate, and what "
            f"it promised; restore it from a backup{accept_hint(coord)}",
            code="coordination_lost",
        )


def remove_unused_coordination(path: Path) -> None:
    """Remove the files of a coordination that nobody has used. Blocks; raises OSError."""
    coord = path / "coord"
    if coord.exists():
        aside = path / "coord.unused"
        shutil.rmtree(aside, ignore_errors=True)
        coord.rename(aside)
        sync_directory(path)
        shutil.rmtree(aside)


def put_coordination_aside(path: Path) -> None:
    """Rename the files of a coordination that is given up, if any. Blocks; raises OSError."""
    coord = path / "coord"
    if coord.exists():
        names = (path / f"coord.lost-{number}" for number in count(1))
        coord.rename(next(name for name in names if not name.exists()))
        sync_directory(path)


def _refuse_foreign(path: Path) -> None:
    if (path / NODE_FILE).exists():
        return
    found = sorted(entry.name for entry in path.iterdir())
    if holds_a_node(path) and not _is_unfinished(path, found):
        raise _missing(path / NODE_FILE)
    foreign = [name for name in found if name not in _OWN_BEFORE_FIRST_START]
    if foreign:
        raise UsageError(
            f"{path} is no data directory of Millstream and holds {foreign[0]!r}; "
            "choose an empty or a new one",
            code="foreign_directory",
        )


def holds_a_node(path: Path) -> bool:
    """Return whether there are any files of a node in a directory."""
    own = (NODE_FILE, INVENTORY_FILE, *_OF_A_NODE)
    return any((path / name).exists() for name in own)


def _missing(file: Path) -> CorruptionError:
    return CorruptionError(
        f"{file} is missing beside what a node had here; restore it from a backup"
        f"{accept_hint(file)}",
        code="bad_file",
    )


def _is_unfinished(path: Path, found: list[str]) -> bool:
    """Return whether a first start was interrupted before it had written `node.toml`."""
    buckets = path / "buckets"
    if set(found) - _OWN_BEFORE_FIRST_START or (buckets.is_dir() and any(buckets.iterdir())):
        return False
    return not Inventory.is_begun_in(path) or Inventory(path).read().is_empty


def _node_uuid(path: Path, inventory: Inventory) -> str:
    file = path / NODE_FILE
    if not file.exists():
        (path / "buckets").mkdir(exist_ok=True)
        node_uuid, created = uuid.uuid4().hex, utc_now()
        inventory.begin(Contents(node_uuid))
        write_atomically(file, node_file_content(node_uuid, created))
        sync_directory(path.parent)
        return node_uuid
    node_uuid, has_inventory = read_node_file(path)
    if not has_inventory:  # made by an older version: existing files are taken in
        (path / "buckets").mkdir(exist_ok=True)
        if not Inventory.is_begun_in(path):
            inventory.begin(Contents(node_uuid))
        created = as_text(read_toml(file).get("created", utc_now()))
        write_atomically(file, node_file_content(node_uuid, created))
    if inventory.read(is_expected=True).uuid != node_uuid:
        raise CorruptionError(other_node(path, node_uuid), code="bad_file")
    return node_uuid


def other_node(path: Path, node_uuid: str) -> str:
    """Return the error of a node file and an inventory that name different nodes."""
    file = path / NODE_FILE
    return f"{file} names node {node_uuid}, the inventory beside it another one{accept_hint(file)}"


def _unusable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"data directory {path} cannot be used: {error.strerror or error}",
        code="directory_unusable",
        retry="never",
    )
