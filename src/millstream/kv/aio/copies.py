"""Operations on a partition's copy for operators and replication: states, rollback, branches.

Each is durable before its result is visible. Until then no commit is running, the partition
refuses documents as a temporary failure, and the holds of its readers are lost.

Invariants:
1. Only one such operation runs at a time in a bucket.
2. The effects of a rollback are reported: streams end, leases are lost, waits for the disk fail.
3. If the disk is full nothing has changed. Any other error of the disk stops the bucket.

Elsewhere: legal moves (`kv.core.partition.states`), the partition in memory
(`kv.core.partition.partition`), on disk (`storage.core.store`).

Source: docs/design/0006-copies.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, NamedTuple

from millstream.errors import ConditionError, UsageError
from millstream.kv.aio.flusher import Flusher
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.moves import activate, rename, restore
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.states import FOLLOWING, SERVING, Move, move_between
from millstream.model.partitions import PartitionState
from millstream.storage.core.store import LogStore

__all__ = ["Copies"]

_LOG = logging.getLogger(__name__)
SETTLE_PAUSES_MAX: Final = 200
"""How often an active copy that is handed over looks whether the writes under way are over."""
SETTLE_PAUSE_S: Final = 0.005


class CopiesStatistics(NamedTuple):
    """Statistics of a bucket's copies."""

    active: int
    replica: int
    pending: int
    dead: int
    moves_total: int
    rollbacks_total: int
    rolled_back_total: int


class Copies:
    """The copies of one bucket's partitions on this node."""

    def __init__(
        self,
        bucket: Bucket,
        store: LogStore,
        flusher: Flusher,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._bucket = bucket
        self._store = store
        self._flusher = flusher
        self._pause = pause
        self._move_total = 0
        self._rollback_total = 0
        self._rolled_back_total = 0
        self._moved_subscribers: list[Callable[[int], None]] = []

    def subscribe_moved(self, callback: Callable[[int], None]) -> None:
        """Call `callback` after the state of a copy changed, a rollback or a promise."""
        self._moved_subscribers.append(callback)

    def unsubscribe_moved(self, callback: Callable[[int], None]) -> None:
        """Reverse `subscribe_moved`."""
        if callback in self._moved_subscribers:
            self._moved_subscribers.remove(callback)

    async def set_state(
        self, partition_id: int, state: PartitionState, *, is_hand_over: bool = False
    ) -> None:
        """Set the state of a copy. It is durable on return, with all earlier data of the copy.

        Args:
            partition_id: of the bucket.
            state: the new one; nothing happens if it is the current one.
            is_hand_over: the former active copy has stopped, and this one has all its changes: it
                becomes active in the same history.

        Raises:
            UsageError: `illegal_move`; `not_complete`: a hand-over to a copy inside a snapshot.
            ConditionError: `fenced`: a hand-over to a copy that has promised a later history.
            UnavailableError: `disk_full`: nothing changed; `disk_failed`, `stopping`.
        """
        partition = self._bucket.partitions[partition_id]
        async with self._suspended(partition):
            await self._change(partition, state, is_hand_over=is_hand_over)

    async def stop(self, partition_id: int, epoch: int) -> None:
        """Make the active copy dead, to hand it over, unless its epoch has changed.

        New writes are held back, and those under way reach their level first, for at most
        `SETTLE_PAUSES_MAX` pauses: otherwise their clients would be told that the outcome is
        unknown.

        Raises:
            UsageError: `illegal_move`: it changed meanwhile.
            UnavailableError: as `set_state`.
        """
        partition = self._bucket.partitions[partition_id]
        self._bucket.hold_back_writes(partition_id)
        await self._settle(partition)
        async with self._suspended(partition):
            if partition.epoch != epoch or partition.state is not PartitionState.ACTIVE:
                message = f"partition {partition_id} is no longer what was to be stopped"
                raise UsageError(message, code="illegal_move")
            await self._change(partition, PartitionState.DEAD)

    async def _settle(self, partition: Partition) -> None:
        """Wait until the writes under way are answered."""
        epoch, high = partition.epoch, partition.high_seqno
        acknowledged = partition.acknowledged
        for _ in range(SETTLE_PAUSES_MAX):
            if acknowledged is None or not acknowledged.is_possible or partition.epoch != epoch:
                return
            is_durable = partition.durable_seqno >= partition.awaited_seqno
            is_over = min(partition.majority_seqno, partition.persisted_seqno) >= high
            self._bucket.hurry()
            await self._pause(SETTLE_PAUSE_S)  # at the end, too: the replies are sent meanwhile
            if is_durable and is_over:
                return

    async def _change(
        self, partition: Partition, state: PartitionState, *, is_hand_over: bool = False
    ) -> None:
        before = partition.state
        move = move_between(before, state)
        if move is Move.NONE:
            return
        if move is None:
            message = f"partition {partition.partition_id} is {before.name.lower()}"
            raise UsageError(
                f"{message}, it cannot become {state.name.lower()} from there: "
                "see the table of moves",
                code="illegal_move",
            )
        await self._flusher.flush(partition)
        if move is Move.ACTIVATE and is_hand_over:
            await self._take_over(partition)
        else:
            await self._move(partition, state, move)
        self._bucket.map_changes += 1
        self._move_total += 1
        _LOG.info(
            "bucket %s: partition %d was %s, is %s; %s",
            self._bucket.name, partition.partition_id, before.name.lower(), state.name.lower(),
            partition.failover_log[0],
        )  # fmt: skip

    async def _move(self, partition: Partition, state: PartitionState, move: Move) -> None:
        p, store, flusher = partition.partition_id, self._store, self._flusher
        if move is Move.REMOVE:
            partition.epoch += 1
            await flusher.in_thread(store.remove, [p])
            restore(partition, store.partition(p))
        elif move is Move.ACTIVATE:
            activate(partition, await flusher.in_thread(store.activate, p))
        else:
            await flusher.in_thread(store.set_state, p, state)
            rename(partition, state)

    async def _take_over(self, partition: Partition) -> None:
        p, store = partition.partition_id, self._store
        if partition.high_seqno != partition.queue.high_seqno:
            raise UsageError(
                f"partition {p} has received only a part of a snapshot: let it receive the rest",
                code="not_complete",
            )
        if partition.last_branch > partition.failover_log[0].branch:
            raise ConditionError(
                f"partition {p} has promised branch {partition.last_branch} to a promotion: let "
                "that be completed",
                code="fenced",
            )
        await self._flusher.in_thread(store.set_state, p, PartitionState.ACTIVE)
        activate(partition, store.partition(p))

    async def roll_back(self, partition_id: int, seqno: int) -> int:
        """Go back to the newest restorable state at or below `seqno`; return its seqno.

        That is a mark: where a commit was frozen or, on a copy that follows another, the end of a
        snapshot. 0: there is none, and the partition is empty now. An active copy begins another
        history there.

        Raises:
            UnavailableError: `disk_full`: nothing changed; `disk_failed`, `stopping`.
        """
        partition = self._bucket.partitions[partition_id]
        async with self._suspended(partition):
            return await self._roll_back(partition, seqno)

    async def undo(self, partition_id: int, seqno: int, epoch: int, branch: int) -> int:
        """Roll back a following copy at the request of its source; see `roll_back`.

        Args:
            partition_id: of the copy.
            seqno: upper bound of the result.
            epoch: of the copy when it asked the source.
            branch: the newest of the source.

        Raises:
            ConditionError: `moved_on`: the copy has changed, or may not follow that source.
            UnavailableError: as `roll_back`.
        """
        partition = self._bucket.partitions[partition_id]
        async with self._suspended(partition):
            is_same = partition.state in FOLLOWING and partition.epoch == epoch
            if not is_same or branch < partition.last_branch:
                raise ConditionError(
                    f"partition {partition_id} has moved on: it asks again", code="moved_on"
                )
            return await self._roll_back(partition, seqno)

    async def _roll_back(self, partition: Partition, seqno: int) -> int:
        p, before = partition.partition_id, partition.queue.high_seqno
        partition.epoch += 1  # streams that read on could mix the two states
        recovered = await self._flusher.in_thread(self._store.roll_back, p, seqno)
        restore(partition, recovered)
        self._flusher.undone(partition)
        self._rollback_total += 1
        self._rolled_back_total += before - recovered.high_seqno
        _LOG.warning(
            "bucket %s: partition %d was at %d, is rolled back to %d%s", self._bucket.name,
            p, before, recovered.high_seqno,
            "" if recovered.high_seqno else ": no later mark can be restored, it is empty",
        )  # fmt: skip
        return recovered.high_seqno

    async def take_places(self) -> None:
        """Create replicas where the newest map or record places one here and there is no copy.

        Maps and records have no other effect: activating a copy here takes a separate command, and
        copies that are not placed stay until they are removed. In a managed cluster a new copy
        follows no source of a lower branch than that of its record.

        Raises:
            UnavailableError: as `set_state`.
        """
        bucket, wanted = self._bucket, self._missing_replicas()
        if not wanted:
            return
        async with self._suspended(*wanted):
            missing = [one for one in wanted if one.state is PartitionState.ABSENT]
            heard = {one.partition_id: self._branch_of_record(one) for one in missing}
            await self._flusher.in_thread(self._store.promise, heard, begins=True)
            for partition in missing:
                branch = heard[partition.partition_id]
                partition.last_branch = max(partition.last_branch, branch)
                rename(partition, PartitionState.REPLICA)
            bucket.map_changes += 1
            self._move_total += len(missing)
        _LOG.info("bucket %s: %d copies follow from now on", bucket.name, len(missing))

    def _missing_replicas(self) -> list[Partition]:
        bucket, absent = self._bucket, PartitionState.ABSENT
        missing = [one for one in bucket.partitions if one.state is absent]
        return [
            partition
            for partition in missing
            if bucket.is_placed(partition.partition_id)
            and (bucket.is_managed or not self._is_first(partition))
        ]

    def _is_first(self, partition: Partition) -> bool:
        return self._bucket.active_node(partition.partition_id) == self._bucket.node_name

    def _branch_of_record(self, partition: Partition) -> int:
        record = self._bucket.record(partition.partition_id)
        return 0 if record is None else record.branch

    async def take_over(self, partition_id: int, state: PartitionState, epoch: int) -> None:
        """Become pending, or active in the same history, at the request of a take-over's source.

        Args:
            partition_id: of a copy that follows.
            state: one of these.
            epoch: of the copy as the stream left it.

        Raises:
            ConditionError: `moved_on`: the copy has changed; `fenced`, see `set_state`.
            UsageError: `not_complete`, see `set_state`.
            UnavailableError: as `set_state`.
        """
        partition = self._bucket.partitions[partition_id]
        async with self._suspended(partition):
            if partition.epoch != epoch or partition.state not in FOLLOWING:
                message = f"partition {partition_id} has moved on: it is not taken over"
                raise ConditionError(message, code="moved_on")
            await self._change(partition, state, is_hand_over=True)

    async def stand_back(self, partition_id: int) -> None:
        """Let a copy follow again whose take-over failed; other copies stay as they are.

        Raises:
            UnavailableError: as `set_state`.
        """
        partition = self._bucket.partitions[partition_id]
        async with self._suspended(partition):
            if partition.state is PartitionState.PENDING:
                await self._change(partition, PartitionState.REPLICA)

    async def promise(self, partition_ids: Collection[int], branch: int) -> list[int]:
        """Let copies promise one branch; see `promise_all`."""
        return await self.promise_all(dict.fromkeys(partition_ids, branch))

    async def promise_all(self, branches: Mapping[int, int]) -> list[int]:
        """Let copies promise branches before promotions; return those that did.

        In one commit, durable on return. From then on they follow no source of a lower branch and
        serve no documents: an active copy stands down, with all its data. A copy that knows this
        branch or a larger one promises nothing: ask with a larger one.

        Raises:
            UnavailableError: `disk_full`: nothing changed; `disk_failed`, `stopping`.
        """
        every = self._bucket.partitions
        async with self._suspended(*(every[p] for p in branches)):
            asked = [every[p] for p in branches if branches[p] > every[p].last_branch]
            serving = [partition for partition in asked if partition.state in SERVING]
            for partition in serving:
                await self._flusher.flush(partition)
            numbers = [partition.partition_id for partition in asked]
            promised = {p: branches[p] for p in numbers}
            await self._flusher.in_thread(self._store.promise, promised)
            for partition in asked:
                partition.last_branch = promised[partition.partition_id]
            for partition in serving:
                rename(partition, PartitionState.REPLICA)
            self._bucket.map_changes += bool(serving)
            self._move_total += len(serving)
        _LOG.warning(
            "bucket %s: %d of %d copies promised branch %d, %d of them stood down",
            self._bucket.name, len(asked), len(branches), max(branches.values(), default=0),
            len(serving),
        )  # fmt: skip
        return numbers

    async def activate(self, branch: int, ends: Mapping[int, int]) -> list[int]:
        """Make copies active in one branch; see `activate_all`.

        Args:
            branch: as promised.
            ends: partition -> the least complete end that it must have.
        """
        return await self.activate_all(dict.fromkeys(ends, branch), ends)

    async def activate_all(
        self, branches: Mapping[int, int], ends: Mapping[int, int] = MappingProxyType({})
    ) -> list[int]:
        """Make copies active in the branches they promised last; return those that are.

        A copy that is already active in it stays so: a request may come twice. A copy that has
        promised another branch since, or has less than it had when it promised, is left as it is.

        Args:
            branches: partition -> the branch, as promised.
            ends: partition -> the least complete end that it must have, by default 0.

        Raises:
            UnavailableError: `disk_full`: nothing changed; `disk_failed`, `stopping`.
        """
        asked = [self._bucket.partitions[p] for p in branches]
        active = PartitionState.ACTIVE
        async with self._suspended(*asked):
            ready = [
                partition
                for partition in asked
                if partition.state is not active
                and partition.failover_log[0].branch < branches[partition.partition_id]
                and partition.last_branch == branches[partition.partition_id]
                and partition.high_seqno >= ends.get(partition.partition_id, 0)
            ]
            for partition in ready:
                await self._flusher.flush(partition)
            numbers = {one.partition_id: branches[one.partition_id] for one in ready}
            await self._flusher.in_thread(self._store.activate_all, numbers)
            for partition in ready:
                activate(partition, self._store.partition(partition.partition_id))
            self._bucket.map_changes += bool(ready)
            self._move_total += len(ready)
        _LOG.warning(
            "bucket %s: %d of %d copies became active in branch %d",
            self._bucket.name, len(ready), len(asked), max(branches.values(), default=0),
        )  # fmt: skip
        return [
            partition.partition_id
            for partition in asked
            if partition.state is active
            and partition.failover_log[0].branch == branches[partition.partition_id]
        ]

    async def follow_again(self, partition_ids: Collection[int]) -> None:
        """Make dead copies replicas; other copies stay as they are. In one commit.

        Raises:
            UnavailableError: as `set_state`.
        """
        await self._rename_all(partition_ids, (PartitionState.DEAD,), PartitionState.REPLICA)

    async def remove(self, partition_ids: Collection[int]) -> None:
        """Remove copies in whatever state they are. Durable on return.

        Raises:
            UnavailableError: as `set_state`.
        """
        await self._rename_all(
            partition_ids, (*SERVING, PartitionState.REPLICA), PartitionState.DEAD
        )
        every = [self._bucket.partitions[p] for p in partition_ids]
        async with self._suspended(*every):
            dead = [one for one in every if one.state is PartitionState.DEAD]
            for partition in dead:
                partition.epoch += 1
            numbers = [partition.partition_id for partition in dead]
            await self._flusher.in_thread(self._store.remove, numbers)
            for partition in dead:
                restore(partition, self._store.partition(partition.partition_id))
            self._bucket.map_changes += bool(dead)
            self._move_total += len(dead)
        _LOG.info("bucket %s: %d copies were removed", self._bucket.name, len(dead))

    async def _rename_all(
        self,
        partition_ids: Collection[int],
        before: Collection[PartitionState],
        state: PartitionState,
    ) -> None:
        """Set the state of copies, except to active, if they are in one of the states before."""
        every = [self._bucket.partitions[p] for p in partition_ids]
        async with self._suspended(*every):
            wanted = [partition for partition in every if partition.state in before]
            for partition in wanted:
                await self._flusher.flush(partition)
            numbers = [partition.partition_id for partition in wanted]
            await self._flusher.in_thread(self._store.set_states, numbers, state)
            for partition in wanted:
                rename(partition, state)
            self._bucket.map_changes += bool(wanted)
            self._move_total += len(wanted)

    def statistics(self) -> CopiesStatistics:
        """Return the number of copies per state, and totals of their changes."""
        states = [partition.state for partition in self._bucket.partitions]
        return CopiesStatistics(
            active=states.count(PartitionState.ACTIVE),
            replica=states.count(PartitionState.REPLICA),
            pending=states.count(PartitionState.PENDING),
            dead=states.count(PartitionState.DEAD),
            moves_total=self._move_total,
            rollbacks_total=self._rollback_total,
            rolled_back_total=self._rolled_back_total,
        )

    @asynccontextmanager
    async def _suspended(self, *partitions: Partition) -> AsyncIterator[None]:
        async with self._flusher.paused():
            for partition in partitions:
                partition.suspend()
            try:
                yield
            finally:
                for partition in partitions:
                    partition.resume()
                self._tell_moved(*partitions)
                self._bucket.changed()

    def _tell_moved(self, *partitions: Partition) -> None:
        for callback in tuple(self._moved_subscribers):
            for partition in partitions:
                callback(partition.partition_id)
