"""A bucket of changes in plain lists (`fake_source`), with what `_changes` asks of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.kv.aio.documents.changes import BucketChanges
from support.streams.fake_source import FakeBucket, FakePartition


class ChangingBucket(FakeBucket):
    """Everything is durable once `flush` was called; a mark is where it was."""

    uuid = "u1"
    map = None
    node_name = ""
    is_managed = False

    def __init__(self, count: int = 2) -> None:
        super().__init__([FakePartition(number) for number in range(count)], name="orders")
        self.changes = BucketChanges(self)

    def subscribe_map(self, callback: Callable[[], None]) -> None:
        """Done by `subscribe` as well: tests call both back."""
        self.subscribe(callback)

    def write(self, partition: int, keys: str) -> None:
        """One write per letter, a capital letter deletes; all of it is durable."""
        self.partitions[partition].fill(keys)
        self.flush()

    def flush(self) -> None:
        for partition in self.partitions:
            partition.persisted_seqno = partition.high_seqno
            partition.marks.append(partition.high_seqno)
        for callback in tuple(self.durable_callbacks):
            callback()

    async def until_read(self) -> None:
        """Until some reader waits for more."""
        async with asyncio.timeout(60):
            while not self.durable_callbacks:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
