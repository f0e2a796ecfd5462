"""Coverage records of a node's databases: what they know of other sites, in `_local` documents.

Invariants:
1. Every answer was checked against the current histories of the database.
2. A record is durable once it was stored. At most `RECORDS_MAX` are kept per database.

Elsewhere: the rules (`replication.core.coverage`), pages (`gateway.aio.databases.coverage_pages`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from millstream.documents.tokens import Vector
from millstream.errors import ConditionError
from millstream.gateway.core.api.changes import ChangesApi
from millstream.gateway.core.api.coverage import Puller
from millstream.gateway.core.api.documents import DocumentApi, LocalDocument
from millstream.replication.core.coverage import (
    Claim,
    Record,
    accepted,
    emitted,
    own_records,
    record_of_json,
    record_to_json,
    still_valid,
    verified,
)
from millstream.replication.core.logs import Log, parse_log
from millstream.replication.core.places import Present

__all__ = ["Coverage"]

_PREFIX: Final = "cov-"
_LOG_MARK: Final = b'"target_uuid"'
_NS_PER_MS: Final = 1_000_000


class Coverage:
    """Implements `gateway.core.api.coverage.CoverageApi`.

    Args:
        documents: of the node.
        changes: of the node's databases.
        clock_ns: Unix time.
    """

    def __init__(
        self,
        documents: DocumentApi,
        changes: ChangesApi,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._documents, self._changes = documents, changes
        self._clock_ns = clock_ns
        self._turns: dict[str, asyncio.Lock] = {}

    async def _present(self, bucket: str) -> Present:
        database = await self._changes.whole(bucket)
        return Present(database.uuid, tuple(database.histories()), database.purge_epoch())

    async def records(self, bucket: str, origins: Collection[str]) -> list[Record]:
        """Return the records of a database; see `CoverageApi`."""
        found = still_valid(await self._kept(bucket), await self._present(bucket))
        return [record for record in found if not origins or record.origin in origins]

    async def _kept(self, bucket: str) -> list[Record]:
        locals_ = await self._documents.locals(bucket)
        found = [record_of_json(_json(one)) for one in locals_ if one.id.startswith(_PREFIX)]
        return [record for record in found if record is not None]

    async def emitted(self, bucket: str, end: Vector, puller: Puller) -> list[Record]:
        """Return the coverage to send to a reader; see `CoverageApi`."""
        if not end.is_closed and not puller.takes_parts:
            return []
        locals_ = await self._documents.locals(bucket)
        present = await self._present(bucket)
        logs: dict[str, Log] = {
            one.id: parse_log(_json(one)) for one in locals_ if _LOG_MARK in one.body
        }
        carried = [record_of_json(_json(one)) for one in locals_ if one.id.startswith(_PREFIX)]
        known = [record for record in carried if record is not None]
        return emitted(
            [*own_records(logs, present), *known], present, end, puller.uuid,
            takes_parts=puller.takes_parts,
        )  # fmt: skip

    async def store(
        self, bucket: str, records: Sequence[Record], removed: Collection[str]
    ) -> None:
        """Store records and remove others; see `CoverageApi`."""
        turn = self._turns.setdefault(self._changes.of(bucket).uuid, asyncio.Lock())
        async with turn:
            before = {record.name: record for record in await self._kept(bucket)}
            left = [record for name, record in before.items() if name not in removed]
            now_ms, present = self._clock_ns() / _NS_PER_MS, await self._present(bucket)
            after = {record.name: record for record in accepted(left, records, present, now_ms)}
            for name in before.keys() - after.keys():
                with suppress(ConditionError):  # it was removed meanwhile
                    await self._documents.write_local(bucket, name, None, None)
            for name, record in after.items():
                if before.get(name) != record:
                    body = msgspec.json.encode(record_to_json(record))
                    await self._documents.write_local(bucket, name, body, None)

    async def verify(self, bucket: str, claims: Sequence[Claim]) -> list[Vector | None]:
        """Return how far claims hold; see `CoverageApi`."""
        logs: dict[str, Log | None] = {}
        for name in {claim.log for claim in claims}:
            found = await self._documents.read_local(bucket, name)
            logs[name] = None if found is None else parse_log(_json(found))
        present = await self._present(bucket)
        return [verified(claim, logs[claim.log], present) for claim in claims]


def _json(document: LocalDocument) -> Mapping[str, Any] | None:
    """Return the object in a local document; None if it is no object."""
    try:
        found = msgspec.json.decode(document.body)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None
