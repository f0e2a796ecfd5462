"""The file `cluster.toml`: the cluster that the node is a member of.

Invariants:
1. It is durable before the inventory names the cluster. If the inventory names one and the file is
   missing or altered, the node does not start: it would serve by itself what others serve now.

Elsewhere: what it is for (`cluster.aio.membership`), the inventory (`data_directory.inventory`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millstream.cluster.core.identity import Identity, checked_cluster_name
from millstream.data_directory.inventory import Inventory, accept_hint
from millstream.data_directory.small_files import FORMAT, read_toml, sealed
from millstream.errors import CorruptionError
from millstream.runtime.files import write_atomically

__all__ = [
    "CLUSTER_FILE",
    "UNKNOWN_NAME",
    "read_identity",
    "write_identity",
]

CLUSTER_FILE: Final = "cluster.toml"
UNKNOWN_NAME: Final = "unknown"
"""Of a cluster whose file was lost."""


def read_identity(path: Path, inventory: Inventory | None) -> Identity | None:
    """Return the cluster of the node in a directory; None: it is a member of none. Blocks.

    Without an inventory only the file counts.

    Raises:
        CorruptionError: `bad_file`: it is missing or damaged.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    file, named = path / CLUSTER_FILE, "" if inventory is None else inventory.read().cluster
    if not file.exists():
        if named:
            raise _bad(file, f"is missing, and the node is a member of cluster {named}")
        return None
    content = read_toml(file, accept_hint(file))
    cluster, name, peer = (content.get(key) for key in ("cluster", "name", "peer"))
    if not (isinstance(cluster, str) and isinstance(name, str) and isinstance(peer, str)):
        raise _bad(file, "is damaged: it names no cluster")
    if named and named != cluster:
        raise _bad(file, f"names cluster {cluster}, the inventory beside it {named}")
    return Identity(cluster, name, peer)


def write_identity(path: Path, inventory: Inventory, identity: Identity) -> None:
    """Keep the cluster of a node durably. Blocks.

    Raises:
        UsageError: `bad_cluster_name`.
        OSError: it cannot be written.
    """
    checked_cluster_name(identity.name)
    lines = (
        f"format = {FORMAT}", f'cluster = "{identity.cluster}"', f'name = "{identity.name}"',
        f'peer = "{identity.peer}"',
    )  # fmt: skip
    write_atomically(path / CLUSTER_FILE, sealed("\n".join(lines) + "\n"))
    inventory.note_cluster(identity.cluster)


def _bad(file: Path, why: str) -> CorruptionError:
    return CorruptionError(
        f"{file} {why}; restore it from a backup{accept_hint(file)}", code="bad_file"
    )
