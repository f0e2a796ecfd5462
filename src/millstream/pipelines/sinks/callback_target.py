"""A store of the user's own, told by two functions what to do.

    def keys_above(rollback): ...        # on_rollback
    def write(rows): ...                 # on_upsert

    CallbackTarget(write, keys_above, "/data/checkpoints/flights.state")

Invariants:
1. `on_rollback` is asked for the keys that have to be repaired; what they are now comes by
   `on_upsert` in the same batch.
2. The state of partitions is kept in a file, replaced as a whole once the batch is applied. A
   batch that failed comes again.

Elsewhere: which rows (`sinks.repairing`). The store compares versions itself, since only it knows
them: it keeps a row if `row.version` is not below its own, and deletions as tombstones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from millstream.errors import CorruptionError
from millstream.pipelines.sinks.repairing import Row, StoredVersion
from millstream.runtime.files import write_atomically
from millstream.upr.core.repair import LoadState

__all__ = ["CallbackTarget", "Rollback", "Sweep", "Upsert"]


class Upsert(NamedTuple):
    """A row to be kept if its version is not below the one that is there, with its load."""

    row: Row
    load: int


class Rollback(NamedTuple):
    """Say which keys have a version of a lower branch and a higher seqno."""

    partition: int
    branch: int
    seqno: int


class Sweep(NamedTuple):
    """Remove what a partition has of a lower load; with `keys`, what is not among these."""

    partition: int
    load: int
    keys: AbstractSet[str] | None = None


_DECODER: Final = msgspec.json.Decoder(dict[int, LoadState])


class CallbackTarget:
    """A `repairing.KeyedTarget` made of functions.

    Args:
        on_upsert: applies rows, one for each key; durable on return.
        on_rollback: returns the keys that a rollback concerns.
        state_file: where the state of partitions is kept, beside the checkpoint.
        on_sweep: removes what a later load did not bring; without it such rows stay.

    Raises:
        CorruptionError: `damaged`: the state file cannot be read.
    """

    def __init__(
        self,
        on_upsert: Callable[[Sequence[Upsert]], None],
        on_rollback: Callable[[Rollback], Iterable[str]],
        state_file: str | Path,
        on_sweep: Callable[[Sweep], None] | None = None,
    ) -> None:
        self._on_upsert = on_upsert
        self._on_rollback = on_rollback
        self._on_sweep = on_sweep
        self._file = Path(state_file)
        self._states: dict[int, LoadState] = {}
        self._read: dict[int, LoadState] = {}

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        """Begin a batch from the state that is kept."""
        self._read = self._load()
        self._states = dict(self._read)

    def enter(self, batch_id: int, query_id: str) -> None:
        """Take any batch: the state file lies beside the checkpoint, and the store is not ours."""

    def state(self, partition: int) -> LoadState | None:
        """Return what was set last."""
        return self._states.get(partition)

    def set_state(self, partition: int, state: LoadState) -> None:
        """Remember the state."""
        self._states[partition] = state

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        """Return nothing: the store compares."""
        return {}

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        """Ask the store."""
        return list(self._on_rollback(Rollback(partition, branch, seqno)))

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        """Hand rows over."""
        self._on_upsert([Upsert(row, load) for row in rows])

    def sweep(self, partition: int, load: int) -> None:
        """Tell the store to remove what carries a lower load."""
        if self._on_sweep is not None:
            self._on_sweep(Sweep(partition, load))

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        """Tell the store to remove all keys but these."""
        if self._on_sweep is not None:
            self._on_sweep(Sweep(partition, 0, keys))

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        """Leave that to the store."""
        return 0

    def commit(self, batch_id: int) -> None:
        """Keep the state, if it changed."""
        if self._states != self._read:
            write_atomically(self._file, msgspec.json.encode(self._states))

    def _load(self) -> dict[int, LoadState]:
        try:
            return _DECODER.decode(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise CorruptionError(
                f"{self._file} cannot be read: {error}. Begin again with a new checkpoint and an "
                "empty store",
                code="damaged",
            ) from error
