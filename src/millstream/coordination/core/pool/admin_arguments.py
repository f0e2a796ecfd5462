"""Parses arguments of administrators' commands. An error names the invalid argument.

Elsewhere: groups by name (`discovery`), each command (`pool_commands`, `group_commands`,
`replica_commands`).
"""

from __future__ import annotations

from typing import Final

from millstream.coordination.core.pool.messages import TOMBSTONES_MAX
from millstream.coordination.core.pool.tables import PoolTables
from millstream.vsr.core.values import error

__all__ = [
    "PREFIX_MIN",
    "RefusedError",
    "Words",
    "file_in",
    "first_of",
    "group_id_in",
    "is_removed_node",
    "need_room_for_a_tombstone",
    "no_more",
    "node_named",
    "nodes_named",
    "number_in",
    "shown",
]

PREFIX_MIN: Final = 4
"""Digits of a node's id that may stand for it, if no other one begins so."""

Words = tuple[bytes, ...]
"""The words of a command."""


class RefusedError(Exception):
    """A command is not done; the value says why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.value = error(code, text)


def shown(text: bytes) -> str:
    """Return words as text, whatever they are."""
    return text.decode(errors="replace")


def file_in(text: bytes) -> str:
    """Return the name of a file: exactly what was written, or it is refused."""
    try:
        name = text.decode()
    except UnicodeDecodeError:
        name = ""
    if not name or "\0" in name:
        raise RefusedError("BADARG", "a file's name is UTF-8 without a NUL")
    return name


def group_id_in(text: bytes) -> bytes:
    """Return an id in hex as bytes. Empty if it is no id."""
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""


def number_in(text: bytes, least: int, most: int) -> int:
    """Return a number within bounds."""
    if not text.isdigit() or len(text) > 20 or not least <= int(text) <= most:
        raise RefusedError("BADARG", f"{shown(text)} is not a number from {least} to {most}")
    return int(text)


def first_of(words: Words) -> bytes:
    """Return the first word: which group."""
    if not words:
        raise RefusedError("BADARG", "which group?")
    return words[0]


def no_more(words: Words) -> None:
    """Refuse words that mean nothing."""
    if words:
        raise RefusedError("BADARG", f"{shown(words[0])} is too much")


# ---- nodes


def node_named(tables: PoolTables, text: bytes) -> bytes:
    """Return the node of the pool whose id begins so."""
    text = text.lower()
    found = [node for node in sorted(tables.nodes) if node.hex().startswith(shown(text))]
    found = [node for node in found if tables.node(node) is not None]
    if len(text) < PREFIX_MIN or len(found) != 1:
        raise RefusedError(
            "BADARG",
            f"{shown(text)} does not begin the id of one node: ADMIN NODES shows them",
        )
    return found[0]


def need_room_for_a_tombstone(tables: PoolTables) -> None:
    """Refuse if nothing more can be refused for ever."""
    if len(tables.tombstones) >= TOMBSTONES_MAX:
        text = f"a pool deletes at most {TOMBSTONES_MAX} groups and nodes"
        raise RefusedError("QUOTA", text)


def is_removed_node(tables: PoolTables, text: bytes) -> bool:
    """Return whether the id of a node, or a group, that is to be no more begins so."""
    wanted = shown(text.lower())
    removed = sum(one.hex().startswith(wanted) for one in tables.tombstones)
    return len(text) >= PREFIX_MIN and removed == 1


def nodes_named(tables: PoolTables, words: Words) -> tuple[bytes, ...]:
    """Return nodes in order, none of them twice."""
    nodes = tuple(sorted(node_named(tables, word) for word in words))
    if len(set(nodes)) < len(nodes):
        raise RefusedError("BADCONFIG", "a node is named twice")
    return nodes
