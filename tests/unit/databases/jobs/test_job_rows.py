"""Documents of the database of jobs on a real node, whose partitions come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import pytest

from millstream.databases.jobs import job_rows
from millstream.databases.jobs.job_rows import JobRow, JobRows, Left
from millstream.documents.sent import parse_sent
from millstream.documents.stored import StoredDocument
from millstream.documents.updating import interactive
from millstream.errors import ConditionError, UnavailableError
from millstream.model.partitions import PartitionState, partition_of
from millstream.node.engine import Engine
from millstream.node.settings import Settings
from millstream.replication.core.jobs import JOB_BYTES_MAX

NAME = "_replicator"
PARTITIONS = 4


def put(text: bytes) -> Callable[[StoredDocument | None], StoredDocument | None]:
    return lambda one: interactive(one, parse_sent(text), revs_limit=9).document


class Reader:
    """Whoever reads; `here` is doc id -> revision of those that are this node's concern."""

    def __init__(self, node: Engine) -> None:
        self.node = node
        self.here: dict[str, str] = {}
        self.partitions: dict[str, int] = {}
        self.keys: dict[str, str] = {}
        running = node._buckets.running[NAME]
        self.rows = JobRows(running.bucket, running.copies)
        self.error: Exception | None = None
        self.changed = asyncio.Event()
        self.task = asyncio.ensure_future(self.read())

    async def read(self) -> None:
        try:
            async for told in self.rows.tell():
                self.take(told)
                self.changed.set()
        except ConditionError as error:
            self.error = error
            self.changed.set()

    def take(self, told: JobRow | Left) -> None:
        if isinstance(told, Left):
            for name in list(self.here):
                if self.partitions[name] in told.partitions and name not in told.doc_ids:
                    del self.here[name]
        elif told.doc is None:
            self.here.pop(told.doc_id, None)
        else:
            self.here[told.doc_id] = told.rev
            self.partitions[told.doc_id] = told.partition
            self.keys[told.doc_id] = told.state_key

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def write(self, *names: str, text: bytes = b'{"n":1}') -> None:
        edits = [(name, put(text)) for name in names]
        for one in await self.node.documents.update(NAME, edits, is_durable=True):
            assert not isinstance(one, Exception), one

    async def move(self, number: int, state: PartitionState) -> None:
        await self.node.set_partition_state(NAME, number, state)


@pytest.fixture
async def reader(make_settings: Callable[..., Settings]) -> AsyncIterator[Reader]:
    node = await Engine.start(make_settings(http=None))
    await node.create_bucket(NAME, PARTITIONS)
    reader = Reader(node)
    yield reader
    reader.task.cancel()
    await asyncio.wait([reader.task])
    reader.rows.close()
    await node.stop()


def at(number: int, count: int = 3) -> list[str]:
    """Ids in a partition."""
    every = (f"d{n}" for n in range(1000))
    return [name for name in every if partition_of(name.encode(), PARTITIONS) == number][:count]


async def test_documents_are_told_as_they_change(reader: Reader) -> None:
    names = [f"d{n}" for n in range(20)]
    await reader.write(*names)
    await reader.until(lambda: reader.here.keys() == set(names))
    before = dict(reader.here)
    await reader.write("d3", text=b'{"n":2,"_rev":"%b"}' % before["d3"].encode())
    await reader.until(lambda: reader.here["d3"] != before["d3"])
    rev = reader.here["d3"].encode()
    await reader.write("d3", text=b'{"_deleted":true,"_rev":"%b"}' % rev)
    await reader.until(lambda: "d3" not in reader.here)
    assert len(reader.here) == 19
    for name, key in reader.keys.items():
        assert partition_of(key.encode(), PARTITIONS) == reader.partitions[name]
        assert reader.partitions[name] == partition_of(name.encode(), PARTITIONS)


async def test_numbers_of_any_size_end_nothing(reader: Reader) -> None:
    await reader.write("d0", text=b'{"n":%b}' % (b"9" * 5000))
    await reader.write("d1")
    await reader.until(lambda: reader.here.keys() == {"d0", "d1"})


async def test_documents_of_any_size_end_nothing(reader: Reader) -> None:
    """Once a row came in several pieces, no job was followed any more."""
    await reader.write("d0", text=b'{"n":"%b"}' % (b"9" * 100_000))
    await reader.write("d2", text=b'{"n":"%b"}' % (b"9" * JOB_BYTES_MAX))
    await reader.write("d1")
    await reader.until(lambda: reader.here.keys() == {"d0", "d1", "d2"})


async def test_a_partition_that_goes_takes_its_documents_along(reader: Reader) -> None:
    gone, stays = at(1), at(2)
    await reader.write(*gone, *stays)
    await reader.until(lambda: len(reader.here) == 6)
    await reader.move(1, PartitionState.DEAD)
    await reader.until(lambda: reader.here.keys() == set(stays))
    await reader.write(at(2, 4)[3])
    await reader.until(lambda: len(reader.here) == 4)
    await reader.move(1, PartitionState.ACTIVE)
    await reader.until(lambda: len(reader.here) == 7)


async def test_no_partition_may_be_here_and_all_may_go(reader: Reader) -> None:
    await reader.write(*at(0), *at(3))
    await reader.until(lambda: len(reader.here) == 6)
    for number in range(PARTITIONS):
        await reader.move(number, PartitionState.DEAD)
    await reader.until(lambda: not reader.here)
    await reader.move(3, PartitionState.ACTIVE)
    await reader.until(lambda: reader.here.keys() == set(at(3)))


async def test_what_a_rollback_took_is_told_to_be_gone(reader: Reader) -> None:
    old, new = at(1, 2)
    await reader.write(old)
    await reader.until(lambda: old in reader.here)
    mark = reader.node.served[NAME].partitions[1].persisted_seqno
    await reader.write(new, *at(2))
    await reader.until(lambda: len(reader.here) == 5)
    assert await reader.node.roll_back_partition(NAME, 1, mark) == mark
    await reader.until(lambda: new not in reader.here)
    assert reader.here.keys() == {old, *at(2)}
    await reader.write(new)
    await reader.until(lambda: new in reader.here)


async def test_what_cannot_be_read_is_tried_again_after_a_pause_and_holds_nothing_up(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a node without a majority of the copies tried again and again, and answered nobody."""
    await reader.write("d0")
    await reader.until(lambda: "d0" in reader.here)
    tries = 0

    def refuse(_: int) -> NoReturn:
        nonlocal tries
        tries += 1
        reader.changed.set()
        if tries > 100:
            raise ConditionError("it is tried without a pause")
        raise UnavailableError("not a majority of the copies is there", code="majority_unknown")

    monkeypatch.setattr(job_rows, "LOOK_AGAIN_S", 0.1)
    monkeypatch.setattr(reader.rows._changes, "start_of", refuse)
    await reader.move(3, PartitionState.DEAD)
    await reader.until(lambda: tries)
    await reader.write("d1")
    assert reader.error is None
    assert "d1" not in reader.here
    monkeypatch.undo()
    await reader.until(lambda: reader.here.keys() == {"d0", "d1"})


async def test_a_bucket_that_goes_is_told(reader: Reader) -> None:
    await reader.write("x")
    await reader.until(lambda: "x" in reader.here)
    reader.rows.drop()
    await reader.until(lambda: reader.error)
    code: Any = reader.error
    assert code.code == "bucket_not_found"
