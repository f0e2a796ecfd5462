"""Who this node is among those that coordinate: `coord/node.toml`.

Invariants:
1. The id is random, made once, and never given to another directory; `incarnation` grows by one,
   durably, before a process says anything to another node.
2. A directory that has groups and no such file is not served: a node that does not know what it
   has promised as whom must not go on.

Elsewhere: what a member of a group has promised (its superblock), which groups there are
(`aio.coordinator`).
"""

from __future__ import annotations

import secrets
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

from millstream.coordination.core.entries import ID_BYTES
from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.runtime.files import sync_directory, write_atomically

__all__ = ["NODE_FILE", "Identity", "begin_incarnation"]

NODE_FILE: Final = "node.toml"
_FORMAT: Final = 1


class Identity(NamedTuple):
    """One process of one node."""

    node_id: bytes
    incarnation: int


def begin_incarnation(directory: Path) -> Identity:
    """Make the directory and its node if there is none; count this process. Blocks.

    Raises:
        CorruptionError: `bad_node_file`.
        UsageError: `newer_format`.
        UnavailableError: `directory_unusable`.
    """
    try:
        if not directory.is_dir():
            directory.mkdir(mode=0o700, parents=True)
            sync_directory(directory.parent)
        identity = _read(directory / NODE_FILE)
        content = (
            f'format = {_FORMAT}\nid = "{identity.node_id.hex()}"\n'
            f"incarnation = {identity.incarnation}\n"
        )
        write_atomically(directory / NODE_FILE, content.encode())
    except OSError as error:
        raise UnavailableError(
            f"{directory} cannot be used: {error.strerror or error}",
            code="directory_unusable",
            retry="never",
        ) from error
    return identity


def _read(path: Path) -> Identity:
    if not path.exists():
        if any(each.is_dir() for each in path.parent.iterdir()):
            raise CorruptionError(
                f"{path} is gone, but there are groups beside it: bring it back from a copy, or "
                "move the directory aside and let a new node take this one's place "
                "(ADMIN GROUP REPLACE)",
                code="bad_node_file",
            )
        return Identity(secrets.token_bytes(ID_BYTES), 1)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        written, node_id = int(content["format"]), bytes.fromhex(content["id"])
        incarnation = int(content["incarnation"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path) from error
    if written > _FORMAT:
        raise UsageError(
            f"{path} has format {written}; use the newer Millstream that wrote it",
            code="newer_format",
        )
    if len(node_id) != ID_BYTES or incarnation < 1:
        raise _damaged(path)
    return Identity(node_id, incarnation + 1)


def _damaged(path: Path) -> CorruptionError:
    return CorruptionError(
        f"{path} is damaged: bring it back from a copy, or move the directory aside and let a new "
        "node take this one's place (ADMIN GROUP REPLACE)",
        code="bad_node_file",
    )
