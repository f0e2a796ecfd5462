"""The bucket reader against a node in the same loop; killed ones are in tests/e2e."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.access import kv_login
from millstream.errors import LocalProtocolError, StreamError, UnavailableError, UsageError
from millstream.model.addresses import parse_address
from millstream.model.partitions import PartitionState
from millstream.upr import BucketReader, CallbackSink, SqliteSink
from millstream.upr.aio import streams
from millstream.upr.core import driver
from millstream.upr.core.bookkeeper import Apply, Effect, Keep
from millstream.upr.core.consumer import ConsumerCore
from millstream.upr.core.kept import Kept
from millstream.upr.core.questions import Judgement
from millstream.wire.mcbp import Feature, Opcode
from support.kv.raw_client import RawClient


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[millstream.Node]:
    async with millstream.Node(tmp_path / "node", buckets=["orders:4"]) as made:
        yield made


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PAUSE_S_MIN", 0.005)


async def write(node: millstream.Node, documents: dict[str, Any], *gone: str) -> None:
    def do() -> None:
        with millstream.connect(node.kv, bucket="orders") as client:
            client.upsert_many(documents).raise_first()
            for key in gone:
                client.remove(key)
            client.wait_persisted()

    await asyncio.to_thread(do)


def set_state(node: millstream.Node, partition_id: int, state: PartitionState) -> None:
    assert node.kv is not None
    with RawClient(parse_address(node.kv, default_port=1), "orders") as client:
        answer = client.ask(Opcode.SET_VBUCKET_STATE, vbucket=partition_id, extras=bytes([state]))
        assert answer.status == 0


def documents(path: Path) -> dict[str, bytes]:
    database = sqlite3.connect(path)
    try:
        return {k.decode(): v for k, v in database.execute("SELECT key, value FROM documents")}
    finally:
        database.close()


async def read(node: millstream.Node, path: Path, **options: Any) -> None:
    sink = SqliteSink(path)
    try:
        await BucketReader(node.kv, bucket="orders", sink=sink, until_now=True, **options).run()
    finally:
        sink.close()


async def test_a_table_becomes_the_bucket_and_goes_on(
    node: millstream.Node, tmp_path: Path
) -> None:
    path = tmp_path / "orders.db"
    await write(node, {f"k{n}": n for n in range(100)}, "k7")
    await read(node, path, window_bytes=100)
    assert documents(path) == {f"k{n}": b"%d" % n for n in range(100) if n != 7}
    await write(node, {"k8": "new", "k100": 1}, "k9")
    await read(node, path)
    found = documents(path)
    assert (found["k8"], found["k100"], "k9" in found, len(found)) == (b'"new"', b"1", False, 99)


async def test_iterating_shows_what_was_made_durable(
    node: millstream.Node, tmp_path: Path
) -> None:
    await write(node, {f"k{n}": n for n in range(50)})
    sink = SqliteSink(tmp_path / "orders.db")
    reader = BucketReader(node.kv, bucket="orders", sink=sink, until_now=True)
    seen = [effect async for effects in reader for effect in effects]
    changes = [change for effect in seen if isinstance(effect, Apply) for change in effect.changes]
    assert {change.key.decode() for change in changes} == set(documents(tmp_path / "orders.db"))
    kept = {effect.partition_id: effect.kept for effect in seen if isinstance(effect, Keep)}
    assert {number: stored.kept for number, stored in sink.load().items()} == kept
    sink.close()


async def all_seen(steps: AsyncIterator[Sequence[Effect]], count: int) -> None:
    """Wait until `count` changes were applied."""
    seen: set[bytes] = set()
    while len(seen) < count:
        seen |= {c.key for e in await anext(steps) if isinstance(e, Apply) for c in e.changes}


async def test_streams_that_end_are_asked_for_again_and_lag_is_told(
    node: millstream.Node, tmp_path: Path
) -> None:
    await write(node, {f"k{n}": n for n in range(20)})
    sink = SqliteSink(tmp_path / "orders.db")
    reader = BucketReader(node.kv, bucket="orders", sink=sink)
    async with aclosing(reader.__aiter__()) as steps:
        await all_seen(steps, 20)
        assert set(await reader.lag()) == {0, 1, 2, 3}
        for state in (PartitionState.DEAD, PartitionState.ACTIVE):
            await asyncio.to_thread(set_state, node, 1, state)
        await write(node, {f"k{n}": "again" for n in range(20)})
        await all_seen(steps, 20)
    assert set(documents(tmp_path / "orders.db").values()) == {b'"again"'}
    assert await reader.lag() == {}
    sink.close()


async def test_pauses_grow_while_a_partition_is_refused(
    node: millstream.Node, tmp_path: Path
) -> None:
    await write(node, {f"k{n}": n for n in range(20)})
    await asyncio.to_thread(set_state, node, 2, PartitionState.DEAD)
    sink = SqliteSink(tmp_path / "orders.db")
    reader = BucketReader(node.kv, bucket="orders", sink=sink, until_now=True)
    running = asyncio.ensure_future(reader.run())
    async with asyncio.timeout(60):
        while reader._driver._paused_s < 8 * driver.PAUSE_S_MIN:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        await asyncio.to_thread(set_state, node, 2, PartitionState.ACTIVE)
        await running
    sink.close()
    assert len(documents(tmp_path / "orders.db")) == 20


async def test_a_callback_that_fails_ends_the_reader_and_is_called_again(
    node: millstream.Node, tmp_path: Path
) -> None:
    await write(node, {f"k{n}": n for n in range(20)})
    found: dict[bytes, bytes] = {}
    dice = random.Random(1)
    calls = 0

    def take(effect: Effect) -> None:
        nonlocal calls
        calls += 1
        if dice.random() < 0.5:
            raise ZeroDivisionError
        if isinstance(effect, Apply):
            found.update((change.key, change.value) for change in effect.changes)

    for _ in range(300):
        sink = CallbackSink(tmp_path / "place.db", take)
        reader = BucketReader(node.kv, bucket="orders", sink=sink, until_now=True, window_bytes=1)
        try:
            await reader.run()
            break
        except ZeroDivisionError:
            continue
        finally:
            sink.close()
    assert found == {b"k%d" % n: b"%d" % n for n in range(20)}
    assert calls > 10


async def test_a_cut_connection_is_logged_and_opened_again(
    node: millstream.Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", streams.__name__)
    sink = SqliteSink(tmp_path / "orders.db")
    reader = BucketReader(node.kv, bucket="orders", sink=sink)
    await write(node, {f"k{n}": n for n in range(20)})
    async with aclosing(reader.__aiter__()) as steps:
        await all_seen(steps, 20)
        (session,) = reader._streams.sessions.values()
        await session.streams.close()
        await write(node, {f"k{n}": "again" for n in range(20)})
        await all_seen(steps, 20)
    assert "its partitions are requested again" in caplog.text
    sink.close()


class _Full:
    def __init__(self, sink: SqliteSink) -> None:
        self.load, self.claim = sink.load, sink.claim

    def write(self, effects: Sequence[Effect]) -> None:
        raise UnavailableError("the disk is full", code="unwritable")

    def close(self) -> None: ...


async def test_a_sink_that_cannot_write_is_an_error(node: millstream.Node, tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "orders.db")
    reader = BucketReader(node.kv, bucket="orders", sink=_Full(sink))
    with pytest.raises(UnavailableError, match="disk is full"):
        await reader.run()
    with pytest.raises(UnavailableError, match="disk is full"):
        async for _ in reader:
            pass
    sink.close()


async def test_what_cannot_be_followed_is_refused(node: millstream.Node, tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    with pytest.raises(UsageError, match="0 to 3, not 4"):
        await read(node, path, partitions=[4])
    with pytest.raises(UsageError, match="a ring has 1"):
        await read(node, path, ring_changes=0)
    sink = SqliteSink(path)
    with pytest.raises(UnavailableError):
        await BucketReader("127.0.0.1:1", bucket="orders", sink=sink).run()
    sink.close()
    database = sqlite3.connect(path)
    database.execute("UPDATE millstream_bucket SET uuid = 'x'")
    database.commit()
    with pytest.raises(StreamError, match="created again"):
        await read(node, path)
    database.execute("UPDATE millstream_bucket SET name = 'x'")
    database.commit()
    database.close()
    with pytest.raises(UsageError, match="follows bucket 'x'"):
        await read(node, path)


# -- durable changes alone


def stored(path: Path) -> dict[int, Kept]:
    sink = SqliteSink(path)
    try:
        return {number: one.kept for number, one in sink.load().items()}
    finally:
        sink.close()


def store(path: Path, *places: tuple[int, Kept]) -> None:
    sink = SqliteSink(path)
    sink.write([Keep(number, kept) for number, kept in places])
    sink.close()


async def test_durable_changes_are_followed_into_a_table(
    node: millstream.Node, tmp_path: Path
) -> None:
    path = tmp_path / "orders.db"
    await write(node, {f"k{n}": n for n in range(100)}, "k7")
    sink = SqliteSink(path)
    reader = BucketReader(node.kv, bucket="orders", sink=sink, durable_only=True)
    async with aclosing(reader.__aiter__()) as steps:
        await all_seen(steps, 99)
        await write(node, {"k8": "new"})
        while b"new" not in documents(path)["k8"]:
            await anext(steps)
    sink.close()
    assert len(documents(path)) == 99


async def test_a_superseded_source_is_not_followed_but_waited_out(
    node: millstream.Node, tmp_path: Path
) -> None:
    path = tmp_path / "orders.db"
    await write(node, {f"k{n}": n for n in range(40)})
    await read(node, path, durable_only=True)
    for number, kept in stored(path).items():
        newest = kept.failover_log[0]
        newer = newest._replace(branch=newest.branch + 1)  # as if read from one promoted since
        store(path, (number, replace(kept, failover_log=(newer, *kept.failover_log[1:]))))
    await write(node, {f"k{n}": "again" for n in range(40)})
    sink = SqliteSink(path)
    reader = BucketReader(node.kv, bucket="orders", sink=sink, until_now=True, durable_only=True)
    closed = asyncio.Event()
    close_stream = ConsumerCore.close_stream

    def closing(core: ConsumerCore, partition_id: int) -> None:
        close_stream(core, partition_id)
        closed.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumerCore, "close_stream", closing)
        running = asyncio.ensure_future(reader.run())
        await closed.wait()
        closed.clear()
        await closed.wait()  # it was asked again, and left alone again
    assert set(documents(path).values()) == {b"%d" % n for n in range(40)}
    for number in range(4):
        for state in (PartitionState.DEAD, PartitionState.ACTIVE):
            await asyncio.to_thread(set_state, node, number, state)
    async with asyncio.timeout(60):
        await running
    sink.close()
    assert set(documents(path).values()) == {b'"again"'}


async def beyond(node: millstream.Node, path: Path) -> None:
    """Leave a table of durable changes that has read of partition 1 what no node knows."""
    await write(node, {f"k{n}": n for n in range(40)})
    await read(node, path, durable_only=True)
    kept = stored(path)[1]
    far = kept.position.seqno + 100
    store(path, (1, replace(kept, position=kept.position._replace(
        seqno=far, snap_start=far, snap_end=far
    ))))  # fmt: skip


async def test_durable_changes_that_are_lost_are_an_error(
    node: millstream.Node, tmp_path: Path
) -> None:
    path = tmp_path / "orders.db"
    await beyond(node, path)
    with pytest.raises(StreamError, match="lacks changes that were durable") as caught:
        await read(node, path, durable_only=True)
    assert caught.value.code == "durable_lost"


@pytest.mark.parametrize("is_superseded", [False, True])
async def test_after_a_purge_the_partition_is_read_anew(
    node: millstream.Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_superseded: bool,
) -> None:
    path = tmp_path / "orders.db"
    await beyond(node, path)
    await write(node, {"other": 1}, *(f"k{n}" for n in range(40)))
    answers = [Judgement.PURGED]
    if is_superseded:
        answers.append(Judgement.SUPERSEDED)

    async def judged(*_: object) -> Judgement:
        return answers.pop()

    monkeypatch.setattr(BucketReader, "_judge", judged)
    await read(node, path, durable_only=True)
    assert answers == []
    assert documents(path) == {"other": b"1"}
    assert stored(path)[1].loaded.load == 2


# -- barriers


async def test_a_barrier_waits_until_the_sink_has_it(
    node: millstream.Node, tmp_path: Path
) -> None:
    path = tmp_path / "orders.db"
    sink = SqliteSink(path)
    reader = BucketReader(node.kv, bucket="orders", sink=sink)
    first = asyncio.ensure_future(reader.barrier())  # before it runs
    running = asyncio.ensure_future(reader.run())
    async with asyncio.timeout(60):
        await first
        for round_ in range(5):
            await write(node, {f"k{n}": round_ for n in range(40)})
            barriers = [asyncio.ensure_future(reader.barrier()) for _ in range(3)]
            if round_ == 2:
                for state in (PartitionState.DEAD, PartitionState.ACTIVE):
                    await asyncio.to_thread(set_state, node, 1, state)
            await asyncio.gather(*barriers)
            assert set(documents(path).values()) == {b"%d" % round_}
    waiting = asyncio.ensure_future(reader.barrier())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait((running, waiting))
    assert waiting.exception() is None or waiting.exception().code == "reader_ended"  # type: ignore[union-attr]
    sink.close()


async def test_barriers_and_durable_changes_are_for_nodes_of_ours(
    node: millstream.Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(node, {"a": 1})
    features = tuple(set(kv_login._FEATURES) - {Feature.MILLSTREAM})
    monkeypatch.setattr(kv_login, "_FEATURES", features)
    with pytest.raises(LocalProtocolError, match="durable_only"):
        await read(node, tmp_path / "a.db", durable_only=True)
    sink = SqliteSink(tmp_path / "b.db")
    reader = BucketReader(node.kv, bucket="orders", sink=sink)
    async with aclosing(reader.__aiter__()) as steps:
        await all_seen(steps, 1)
        with pytest.raises(LocalProtocolError, match="barrier"):
            await reader.barrier()
        monkeypatch.undo()
        await write(node, {"b": 1})
        await all_seen(steps, 1)
    sink.close()
