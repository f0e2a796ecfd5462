"""The list of a database's latest purges, as `_purged_infos` shows it.

    kept as   MessagePack: [limit, [[id, [revision, ..]], ..]], oldest purge first

Invariants:
1. The list has at most `limit` purges and about `PURGED_INFOS_BYTES_MAX` bytes; the oldest leave.

Elsewhere: what a purge does to a document (`documents.updating`), where the list is kept
(`databases.documents.local_documents`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

__all__ = [
    "PURGED_INFOS_BYTES_MAX",
    "PURGED_INFOS_LIMIT_DEFAULT",
    "PURGED_INFOS_LIMIT_MAX",
    "PurgeList",
    "Purged",
]  # fmt: skip

PURGED_INFOS_LIMIT_DEFAULT: Final = 1000
"""Purges of documents that a database remembers, by default."""
PURGED_INFOS_LIMIT_MAX: Final = 100_000
PURGED_INFOS_BYTES_MAX: Final = 1024 * 1024
"""Ids and revisions of the purges that a database remembers."""


class Purged(NamedTuple):
    """One document, purged once."""

    id: str
    revs: list[str]
    """Leaves that are gone."""


class PurgeList(NamedTuple):
    """The latest purges of a database, oldest first."""

    limit: int = PURGED_INFOS_LIMIT_DEFAULT
    infos: tuple[Purged, ...] = ()

    def extended(self, infos: Iterable[Purged]) -> PurgeList:
        """Return the list with more purges at its end."""
        return PurgeList(self.limit, _newest((*self.infos, *infos), self.limit))

    def limited(self, limit: int) -> PurgeList:
        """Return the list with another limit."""
        return PurgeList(limit, _newest(self.infos, limit))

    def encoded(self) -> bytes:
        """Return it as it is kept."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decoded(cls, kept: bytes | None) -> PurgeList:
        """Return a list as it was kept; None: an empty one."""
        return cls() if kept is None else _decode(kept)


_decode: Final = msgspec.msgpack.Decoder(PurgeList).decode


def _newest(infos: tuple[Purged, ...], limit: int) -> tuple[Purged, ...]:
    left, first = PURGED_INFOS_BYTES_MAX, len(infos)
    while first > max(0, len(infos) - limit):
        info = infos[first - 1]
        left -= len(info.id.encode()) + sum(map(len, info.revs))
        if left < 0:
            break
        first -= 1
    return infos[first:]
