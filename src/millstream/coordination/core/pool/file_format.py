"""The format of a node's pool file: what it knows of its pool, and the groups that it hosts.

Invariants:
1. A damaged file is distinguished from a missing one: a node that had groups and does not know
   which must not start anew.

Elsewhere: writing it (the shell), the hard state of members (`vsr.core.hard_state`).
docs/reference/coordination-format.md.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from millstream.coordination.core.pool.messages import Id, Tables
from millstream.errors import CorruptionError, UsageError

__all__ = [
    "Fork",
    "Hosted",
    "NodeFile",
    "Phase",
    "decode_node_file",
    "encode_node_file",
    "lost_pool_file",
]

_MAGIC: Final = b"millstream pool\n"
_VERSION: Final = 1
_HASH_BYTES: Final = 16


class Phase(IntEnum):
    """How far a group has come here."""

    FORMATTING = 1
    FORMED = 2
    """Formatted, and waiting for a quorum of members to be so."""
    OPEN = 3


class Hosted(NamedTuple):
    """A group that has a folder here, or gets one; `is_founder`: a member from its first epoch."""

    group_id: Id
    phase: Phase
    is_founder: bool


class Fork(NamedTuple):
    """That a group was forked, as was heard: it goes on in this epoch with these members."""

    group_id: Id
    epoch: int
    members: tuple[Id, ...]


class NodeFile(NamedTuple):
    """All of it; `forks`: not in files of older programs."""

    node_id: Id
    tables: Tables
    hosted: tuple[Hosted, ...]
    forks: tuple[Fork, ...] = ()


_WAY_ON: Final = (
    ": the disk has lost which groups this node has. What they hold is on their other members. "
    "Stop the node, move its coord directory aside, start it again with --join and the address of "
    "a node of its pool, and have it take the lost one's place with ADMIN GROUP REPLACE <group> "
    "<lost node> <new node>; a group that had no other member comes back with ADMIN RESTORE"
)
_DECODER: Final = msgspec.msgpack.Decoder(NodeFile)


def encode_node_file(content: NodeFile) -> bytes:
    """Return magic, version, hash and content."""
    body = bytes([_VERSION]) + msgspec.msgpack.encode(content)
    return _MAGIC + blake2b(body, digest_size=_HASH_BYTES).digest() + body


def lost_pool_file(reason: str) -> CorruptionError:
    """Return the error for a node that does not know which groups it has."""
    return CorruptionError(reason + _WAY_ON, code="bad_pool_file")


def decode_node_file(data: bytes) -> NodeFile:
    """Return what was kept.

    Raises:
        CorruptionError: `bad_pool_file`.
        UsageError: `newer_format`: a newer Millstream wrote it.
    """
    at = len(_MAGIC) + _HASH_BYTES
    body = data[at:]
    is_whole = data[len(_MAGIC) : at] == blake2b(body, digest_size=_HASH_BYTES).digest()
    if not data.startswith(_MAGIC) or not body or not is_whole:
        raise lost_pool_file("both copies of the node's pool file are damaged")
    if body[0] != _VERSION:
        raise UsageError(
            f"the node's pool file has version {body[0]}; use the newer Millstream that wrote it",
            code="newer_format",
        )
    try:
        return _DECODER.decode(body[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise lost_pool_file("both copies of the node's pool file are damaged") from error
