"""A store that receives transformed documents instead of the documents.

    TransformingTarget(target, derive)      # derive: documents -> transformed documents, by key

`RepairingSink` decides by versions which rows are right, including those fetched after a rollback.
All of them pass through here on their way to the store.

Invariants:
1. Each row keeps its key and version. A document that `derive` leaves out becomes a tombstone, so
   the store has nothing of that key.
2. Rows are held back until the batch asks for all rows, or commits. So a batch usually calls
   `derive` once. Until then versions come from the store and from the rows held back.
3. Keys that begin with `_` (design documents, companions of sinks) are not documents: `derive`
   does not get them.

Elsewhere: which rows (`sinks.repairing`), `derive` in Spark (`pipelines.document_frames`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from millstream.client.documents import FLAGS_JSON
from millstream.errors import UsageError
from millstream.pipelines.sinks.repairing import OP_DELETE, KeyedTarget, Row, StoredVersion
from millstream.upr.core.repair import LoadState
from millstream.wire.mcbp import Datatype

__all__ = ["Derive", "TransformingTarget"]

Derive = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Key -> document, to key -> what becomes of it; what is left out has no place in the store."""

_JSON: Final = int(Datatype.JSON)
_ESCAPED: Final = "\\x" + b"_".hex()
"""How the text form of a key that begins with `_` begins where the key is no text."""


class TransformingTarget:
    """A `repairing.KeyedTarget` before another one."""

    def __init__(self, target: KeyedTarget, derive: Derive) -> None:
        self._target = target
        self._derive = derive
        self._held: dict[int, dict[str, tuple[Row, int]]] = {}

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Begin a batch; forget what one before it did not commit."""
        self._held = {}
        self._target.begin(partitions, partition_count)

    def enter(self, batch_id: int, query_id: str) -> None:
        """Refuse a batch that cannot be the next one."""
        self._target.enter(batch_id, query_id)

    def state(self, partition: int) -> LoadState | None:
        """Return what was set last."""
        return self._target.state(partition)

    def set_state(self, partition: int, state: LoadState) -> None:
        """Remember the state."""
        self._target.set_state(partition, state)

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        """Return the versions of keys, tombstones included."""
        held = self._held.get(partition, {})
        found = dict(self._target.versions(partition, [key for key in keys if key not in held]))
        return found | {key: _version(*held[key]) for key in keys if key in held}

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        """Return keys that may have a version of a lower branch and a higher seqno."""
        held = self._held.get(partition, {})
        stored = self._target.keys_above(partition, branch, seqno)
        found = {key for key in stored if key not in held}
        concerned = (row for row, _ in held.values() if row.branch < branch and row.seqno > seqno)
        return found.union(row.key for row in concerned)

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        """Hold rows back.

        Raises:
            UsageError: `bad_schema`: a document has no value.
        """
        held = self._held.setdefault(partition, {})
        for row in rows:
            if row.value is None and not row.is_deleted:
                raise UsageError(
                    f"document {row.key!r} has no value: read the stream with its values",
                    code="bad_schema",
                )
            held[row.key] = row, load

    def sweep(self, partition: int, load: int) -> None:
        """Remove what carries a lower load."""
        self._pass_on()
        self._target.sweep(partition, load)

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        """Remove all keys but these."""
        self._pass_on()
        self._target.retain(partition, keys)

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        """Forget tombstones at or below; return the highest seqno forgotten."""
        self._pass_on()
        return self._target.drop_tombstones(partition, seqno)

    def commit(self, batch_id: int) -> None:
        """Make durable what the batch did."""
        self._pass_on()
        self._target.commit(batch_id)

    def _pass_on(self) -> None:
        """Derive what is held back and put it (invariant 1)."""
        held, self._held = self._held, {}
        documents = {
            row.key: row.value
            for rows in held.values()
            for row, _ in rows.values()
            if row.value is not None and not row.is_deleted and not _is_reserved(row.key)
        }
        derived = self._derive(documents) if documents else {}
        for partition, rows in held.items():
            by_load: dict[int, list[Row]] = {}
            for row, load in rows.values():
                found = None if row.is_deleted else derived.get(row.key)
                by_load.setdefault(load, []).append(_with_value(row, found))
            for load, changed in by_load.items():
                self._target.put(partition, changed, load)


def _is_reserved(key: str) -> bool:
    return key.startswith(("_", _ESCAPED))


def _with_value(row: Row, value: bytes | None) -> Row:
    if row.is_deleted:
        return row
    if value is None:
        return Row(OP_DELETE, row.partition, row.branch, row.seqno, row.key, row.cas, row.rev)
    return row._replace(value=value, flags=FLAGS_JSON, datatype=_JSON, meta=None)


def _version(row: Row, load: int) -> StoredVersion:
    return StoredVersion(row.partition, row.branch, row.seqno, row.key, row.is_deleted, load)
