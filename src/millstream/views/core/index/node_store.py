"""The interface of a store of nodes, headers and free lists.

Invariants of a store:
1. A commit is atomic: after a kill at any moment all of it is there or nothing.
2. A node never changes. Its number is not used for another node while a kept root can reach it.
3. Reading is allowed from any thread at any time, also during a commit or a copy.

Elsewhere: LMDB (`views.aio.indexing.index_store`), what is kept (`views.core.index.index`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from millstream.views.core.index.kept_roots import FreeList

__all__ = ["NodeStore", "StoreCommit", "StoreSizes", "Stored"]


class Stored(NamedTuple):
    """What was found when a store was opened: headers and free lists by commit."""

    headers: Mapping[int, bytes] = {}
    free_lists: Mapping[int, bytes] = {}


class StoreCommit(NamedTuple):
    """One commit."""

    commit: int
    header: bytes
    nodes: Mapping[int, bytes] = {}
    free_lists: Mapping[int, bytes] = {}
    dropped_headers: Sequence[int] = ()
    dropped_free_lists: Sequence[int] = ()
    removed: Sequence[FreeList] = ()
    """Nodes that go; those that are not there are passed over."""


class StoreSizes(NamedTuple):
    """`file_bytes`: on disk; `used_bytes`: of these in use; `nodes`: how many are stored."""

    file_bytes: int
    used_bytes: int
    nodes: int


class NodeStore(Protocol):
    """Nodes by number, headers and free lists by commit."""

    def stored(self) -> Stored:
        """Return what there is, as the last commit left it."""

    def read(self, number: int) -> bytes:
        """Return a node.

        Raises:
            CorruptionError: `index_damaged`: it is not there, or not what was written.
        """

    def write_ahead(self, nodes: Mapping[int, bytes]) -> None:
        """Put nodes that a later commit will need; without it `remove_from` takes them out.

        Raises:
            UnavailableError: `disk_full`.
        """

    def remove_from(self, number: int) -> None:
        """Remove all nodes from this number on."""

    def commit(self, commit: StoreCommit) -> None:
        """Make one commit.

        Raises:
            UnavailableError: `disk_full`; nothing is changed.
            CorruptionError: `index_damaged`.
        """

    def compact_step(self, nodes_max: int) -> bool:
        """Go on with writing the store anew, without its holes; true when that is done.

        Node numbers, headers and free lists stay. Between two steps anything else may happen.
        """

    def sizes(self) -> StoreSizes:
        """Return what it takes."""
