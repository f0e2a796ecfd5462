"""A bucket as sinks see it, in memory: what is persisted, what a crash loses, when its user dies.

Every call, and every row of a bulk write, is an effect. `kill_at` counts down: at 0 the effect is
not done, or with `dies_after` done, and `Killed` is raised; so is it for every effect after that,
until `revive`. `crash` loses what was not persisted and begins a new history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from millstream.client.documents import FLAGS_JSON, Document, Stored
from millstream.client.extensions import PartitionPosition
from millstream.client.writes import Write
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.model.partitions import PartitionState, partition_of


class Killed(BaseException):
    """The process that used the bucket is gone: no `except` of the product catches it."""


class Entry(NamedTuple):
    data: bytes | None
    flags: int
    expiry: int
    cas: int
    seqno: int


class SinkBucketDouble:
    """The part of `client.kv.Client` that sinks use."""

    def __init__(self, partition_count: int = 2, bucket: str = "b") -> None:
        self.bucket = bucket
        self.partition_count = partition_count
        self.entries: dict[bytes, Entry] = {}
        self.durable: dict[bytes, Entry] = {}
        self.uuids = [1000 * (p + 1) for p in range(partition_count)]
        self.highs = [0] * partition_count
        self.durable_highs = [0] * partition_count
        self.cas = 0
        self.now = 0
        self.kill_at: int | None = None
        self.dies_after = False
        self.effects = 0
        self.is_flushing = True
        self.before_effect: list[Any] = []
        self.refusals: dict[bytes, MillstreamError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Connections close without effect."""

    # -- life and death

    def revive(self) -> None:
        """A new process uses the bucket."""
        self.kill_at = None

    def crash(self, *partition_ids: int) -> None:
        """Lose what is not persisted, of all partitions by default."""
        for p in partition_ids or range(self.partition_count):
            kept = {key: entry for key, entry in self.durable.items() if self._of(key) == p}
            others = {key: entry for key, entry in self.entries.items() if self._of(key) != p}
            self.entries = others | kept
            self.uuids[p] += 1
            self.highs[p] = self.durable_highs[p]

    def flush(self, *partition_ids: int) -> None:
        """Persist partitions, all by default."""
        for p in partition_ids or range(self.partition_count):
            others = {key: entry for key, entry in self.durable.items() if self._of(key) != p}
            mine = {key: entry for key, entry in self.entries.items() if self._of(key) == p}
            self.durable = others | mine
            self.durable_highs[p] = self.highs[p]

    def documents(self, prefix: bytes = b"") -> dict[bytes, bytes]:
        """Key -> bytes of what exists."""
        return {
            key: entry.data
            for key, entry in self.entries.items()
            if key.startswith(prefix) and self._live(key) is not None and entry.data is not None
        }

    def own_documents(self) -> dict[bytes, bytes]:
        """The documents that are users'."""
        return {k: v for k, v in self.documents().items() if not k.startswith(b"_")}

    def _effect(self) -> bool:
        """Count an effect; return whether the caller dies right after it."""
        self.effects += 1
        if self.before_effect:
            self.before_effect.pop(0)()
        if self.kill_at is None:
            return False
        self.kill_at -= 1
        if self.kill_at < 0 or (self.kill_at == 0 and not self.dies_after):
            raise Killed
        return self.kill_at == 0

    def _of(self, key: bytes) -> int:
        return partition_of(key, self.partition_count)

    def _live(self, key: bytes) -> Entry | None:
        found = self.entries.get(key)
        if found is None or found.data is None or 0 < found.expiry <= self.now:
            return None
        return found

    def break_at(self, effect: int, *, loses: bool = False, times: int = 1) -> None:
        """Let the connection break before an effect; with `loses` the node dies, too."""

        def broken() -> None:
            if loses:
                self.crash()
            raise UnavailableError("the node is away", code="connection_closed")

        self.before_effect = [lambda: None] * effect + [broken] * times

    # -- reading

    def partition_of(self, key: bytes) -> int:
        return self._of(key)

    def positions(self, partition_ids: Sequence[int] | None = None) -> list[PartitionPosition]:
        dies = self._effect()
        if self.is_flushing and partition_ids is not None:
            self.flush(*partition_ids)  # who asks for some waits for them
        wanted = range(self.partition_count) if partition_ids is None else partition_ids
        if dies:
            raise Killed
        return [
            PartitionPosition(
                p, PartitionState.ACTIVE, self.uuids[p], 1, self.highs[p], 0, self.highs[p],
                self.durable_highs[p], self.durable_highs[p], 0,
            )
            for p in wanted
        ]  # fmt: skip

    def get(self, key: str | bytes) -> Document | None:
        self._effect()
        found = self._live(_raw(key))
        return found and Document(found.data or b"", found.cas, found.flags, 0)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Document]:
        self._effect()
        found = {key: self._live(key) for key in keys}
        return {
            key: Document(entry.data or b"", entry.cas, entry.flags, 0)
            for key, entry in found.items()
            if entry
        }

    def cas_many(self, keys: Iterable[bytes]) -> dict[bytes, int]:
        self._effect()
        found = {key: self._live(key) for key in keys}
        return {key: entry.cas for key, entry in found.items() if entry}

    reconnect_s = 600.0

    def refresh_map(self) -> None:
        """The map is what it was."""

    # -- writing

    def write_each(
        self, writes: Iterable[Write], *, durability: str = "memory"
    ) -> Iterator[tuple[Write, Stored | MillstreamError]]:
        for write in writes:
            dies = self._effect()
            result = self._done(write)
            if durability == "persisted":
                self.flush(self._of(write.key))
            if dies:
                raise Killed
            yield write, result

    def insert(self, key: str, value: Any, *, durability: str = "memory") -> Stored:
        return self._one(Write(_raw(key), _encoded(value), is_insert=True), durability)

    def replace(self, key: str, value: Any, *, cas: int = 0, durability: str = "memory") -> Stored:
        return self._one(Write(_raw(key), _encoded(value), cas=cas), durability)

    def touch(self, key: bytes, expiry: int) -> Stored:
        found = self._live(key)
        if found is None:
            self._effect()
            raise ConditionError("no such document", code="not_found")
        return self._one(Write(key, found.data, found.flags, expiry=expiry), "memory")

    def _one(self, write: Write, durability: str) -> Stored:
        ((_, result),) = self.write_each([write], durability=durability)
        if isinstance(result, MillstreamError):
            raise result
        return result

    def _done(self, write: Write) -> Stored | MillstreamError:
        if write.key in self.refusals:
            return self.refusals[write.key]
        if write.key.startswith((b"_design/", b"_local/")):
            return UsageError("refused", code="bad_request")
        found, p = self._live(write.key), self._of(write.key)
        if write.is_insert and found is not None:
            return ConditionError("the document exists", code="key_exists")
        if write.cas and (found is None or found.cas != write.cas):
            return ConditionError("changed", code="not_found" if found is None else "key_exists")
        if write.value is None and found is None:
            return Stored(0, p, 0, 0)
        self.cas += 1
        self.highs[p] += 1
        expiry = write.expiry + self.now if 0 < write.expiry <= 30 * 86_400 else write.expiry
        self.entries[write.key] = Entry(write.value, write.flags, expiry, self.cas, self.highs[p])
        return Stored(self.cas, p, self.uuids[p], self.highs[p])


def _raw(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _encoded(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


def document(value: Any, cas: int = 1) -> Document:
    """A document of JSON."""
    return Document(msgspec.json.encode(value), cas, FLAGS_JSON, 1)
