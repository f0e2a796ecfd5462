"""A bucket in memory as a pipeline's target writes it: what is durable, what a crash takes away.

`fail_after`: so many more documents are written, then the connection breaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from millstream.client.documents import Document
from millstream.client.kv import BulkResult
from millstream.client.writes import Write
from millstream.errors import UnavailableError


class FalseBucket:
    """A `client.kv.Client` of the bucket, as far as a target uses one."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[bytes, int, int, int]] = {}
        self.durable: dict[str, tuple[bytes, int, int, int]] = {}
        self.uuid = 1
        self.fail_after: int | None = None
        self.deleted: list[str] = []

    def close(self) -> None:
        pass

    def crash(self) -> None:
        """Lose what is not durable, and begin a new history."""
        self.documents = dict(self.durable)
        self.uuid += 1

    def positions(self) -> list[Any]:
        return [SimpleNamespace(partition_id=0, uuid=self.uuid, high_seqno=1)]

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
        self.wait_persisted(0)
        return BulkResult(0, [])

    def write_each(self, writes: Iterable[Write]) -> Iterator[tuple[Write, None]]:
        for write in writes:
            key, value, flags, datatype, expiry, _, _ = write
            self._write(key.decode(), None if value is None else (value, flags, expiry, datatype))
            yield write, None

    def wait_persisted(self, timeout_s: float) -> None:
        self._fail()
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
