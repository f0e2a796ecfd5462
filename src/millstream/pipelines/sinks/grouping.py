"""Groups of the documents in a table, kept in a store of their own.

    state = StateTable("/data/flights-state")
    groups = GroupingSink(state, target, results)
    ...                                     # a batch is applied to `state`
    groups.update(batch_id)

Change rows are never added up: they come again, and leave out what was overwritten. A group is
computed from the documents that the table holds, which repairs itself after a rollback.

Invariants:
1. The first batch that a sink updates computes all groups and removes all others. So it does not
   matter what a process before it left undone, or whether the store was emptied.
2. After it a batch computes the groups that the documents it replaced were in, and those that the
   new ones are in. A batch that fails is done again or ends the query, so no group is forgotten.
3. A group whose last document went is removed.
4. The load of the store's partition 0 counts batches; each row of a batch carries it as load and
   seqno, so that a row is always newer than the one it replaces.

Elsewhere: how groups are computed (`pipelines.document_frames`), what the table holds
(`sinks.transforming`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from millstream.client.documents import FLAGS_JSON
from millstream.model.limits import KEY_BYTES_MAX
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import OP_DELETE, OP_PUT, WHOLE, KeyedTarget, Row
from millstream.upr.core.repair import LoadState
from millstream.wire.mcbp import Datatype

__all__ = ["GroupingSink", "Results", "StateTable", "computed_row", "group_name"]

Results = Callable[[Sequence[bytes] | None], Mapping[str, bytes | None]]
"""Documents whose groups are wanted, None for all groups, to name -> the group as JSON; None for a
group that has no documents any more."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class StateTable(ParquetTarget):
    """A table that says which documents its last commit replaced, and which it put.

    `touched`: both, as JSON.
    """

    touched: Sequence[bytes] = ()

    def commit(self, batch_id: int) -> None:
        """Write the files that changed; remember what was in their place."""
        found: list[bytes] = []
        for partition in sorted({*self.changed, *self.gone}):
            changed = self.changed.get(partition, {})
            found.extend(row.value for row, _ in changed.values() if row.value is not None)
            keys = pa.array([*changed, *self.gone.get(partition, ())], pa.string())
            stored = self.stored_rows(partition, ["key", "value"])
            before = stored.filter(pa.compute.is_in(stored.column("key"), value_set=keys))
            found.extend(value for value in before.column("value").to_pylist() if value)
        super().commit(batch_id)
        self.touched = found


class GroupingSink:
    """Keeps a store equal to the groups of a table.

    Args:
        state: the table.
        target: the store; it has nothing else.
        results: computes groups of what the table holds.
    """

    def __init__(self, state: StateTable, target: KeyedTarget, results: Results) -> None:
        self._state = state
        self._target = target
        self._results = results
        self._is_whole = False

    def update(self, batch_id: int, query_id: str = "") -> None:
        """Compute the groups that the last batch of the table concerns.

        Raises:
            UsageError: `other_checkpoint`: another query writes the store.
        """
        if self._is_whole and not self._state.touched:
            return
        found = self._results(self._state.touched if self._is_whole else None)
        self._target.begin([WHOLE, 0], 1)
        self._target.enter(batch_id, query_id)
        before = self._target.state(0) or LoadState(load=0)
        load = before.load + 1
        self._target.set_state(0, LoadState(load))
        rows = [computed_row(0, name, value, load) for name, value in found.items()]
        if rows:
            self._target.put(0, rows, load)
        if not self._is_whole:
            self._target.retain(0, found.keys())
        self._target.drop_tombstones(0, load)
        self._target.commit(batch_id)
        self._is_whole = True


def computed_row(partition: int, name: str, value: bytes | None, load: int) -> Row:
    """Return the row of a result, whose version is a load; None for a result that is gone."""
    if value is None:
        return Row(OP_DELETE, partition, 0, load, name)
    json = int(Datatype.JSON)
    return Row(OP_PUT, partition, 0, load, name, flags=FLAGS_JSON, datatype=json, value=value)


def group_name(group: bytes, keys: Sequence[str]) -> str:
    """Return the name of a group: its keys as a JSON array, numbers with all their digits.

    One that is too long for a key of a bucket ends with a digest in place of the rest.

    Args:
        group: a JSON object.
        keys: members of it.
    """
    members = _members(group)
    name = msgspec.json.encode([members[key] for key in keys])
    if len(name) > KEY_BYTES_MAX:
        digest = "#" + hashlib.sha256(name).hexdigest()
        return name[: KEY_BYTES_MAX - len(digest)].decode(errors="ignore") + digest
    return name.decode()
