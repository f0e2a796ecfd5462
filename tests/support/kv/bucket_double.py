"""A bucket in memory as a pipeline's target writes it: what is durable, what a crash takes away.

`fail_after`: so many more documents are written, then the connection breaks.
`is_replicating`: a majority of the copies follows; if not, only the disk of the active one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from millstream.client.documents import Document, Stored
from millstream.client.kv import BulkResult
from millstream.client.writes import Write
from millstream.errors import UnavailableError


class FalseBucket:
    """A `client.kv.Client` of the bucket, as far as a target uses one."""

    bucket = "copy"
    reconnect_s = 600.0

    def __init__(self) -> None:
        self.documents: dict[str, tuple[bytes, int, int, int]] = {}
        self.durable: dict[str, tuple[bytes, int, int, int]] = {}
        self.uuid = 1
        self.partition_count = 1
        self.owned = [0]
        self.fail_after: int | None = None
        self.is_replicating = True
        self.deleted: list[str] = []
        self.refreshed = 0

    def close(self) -> None:
        pass

    def refresh_map(self) -> None:
        self.refreshed += 1

    def crash(self) -> None:
        """Lose what is not durable, and begin a new history."""
        self.documents = dict(self.durable)
        self.uuid += 1

    def partition_of(self, _: str | bytes) -> int:
        return 0

    def positions(self, partition_ids: Sequence[int] | None = None) -> list[Any]:
        if partition_ids is not None:  # who asks for some waits for them
            self.wait_durable()
        wanted = range(self.partition_count) if partition_ids is None else partition_ids
        return [
            SimpleNamespace(
                partition_id=p, uuid=self.uuid, high_seqno=1, durable_seqno=self.is_replicating
            )
            for p in wanted
            if p in self.owned
        ]

    def get_many(self, keys: Iterable[str]) -> dict[str, Document]:
        found = {key: self.documents[key] for key in keys if key in self.documents}
        return {
            key: Document(data, 1, flags, kind) for key, (data, flags, _, kind) in found.items()
        }

    def upsert_many(
        self, documents: Iterable[tuple[str, bytes]], *, durability: str
    ) -> BulkResult:
        assert durability == "persisted"
        for key, data in documents:
            self._write(key, (data, 0, 0, 0))
        self.wait_durable()
        return BulkResult(0, [])

    def write_each(self, writes: Iterable[Write]) -> Iterator[tuple[Write, Stored]]:
        for write in writes:
            key, value, flags, datatype, expiry, _, _ = write
            self._write(key.decode(), None if value is None else (value, flags, expiry, datatype))
            yield write, Stored(1, 0, self.uuid, 1)

    def wait_persisted(self, _: float) -> None:
        self.wait_durable()

    def wait_durable(self) -> None:
        self._fail()
        if self.is_replicating:
            self.durable = dict(self.documents)

    def live_keys(self, _: object, highs: Mapping[int, int]) -> Iterator[str]:
        return iter(list(self.documents))

    def _write(self, key: str, document: tuple[bytes, int, int, int] | None) -> None:
        self._fail()
        if document is None:
            self.documents.pop(key, None)
            self.deleted.append(key)
        else:
            self.documents[key] = document

    def _fail(self) -> None:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                self.fail_after = None
                raise UnavailableError("told to", code="connection_closed")
