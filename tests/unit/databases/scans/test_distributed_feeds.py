"""The changes of a bucket on several nodes, as any of them gives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from millstream.databases import routing as bucket_places
from millstream.databases.scans import distributed_feeds as distributed_feeds
from millstream.databases.scans import distributed_scans as distributed_scans
from millstream.databases.scans.distributed_feeds import DistributedWalk
from millstream.documents.tokens import parse_token
from millstream.errors import ConditionError, MillstreamError, UnavailableError, UsageError
from millstream.kv.core.revisions.changes_feed import Piece
from millstream.runtime.tasks import Tasks
from millstream.wire.frames import change_of, description_bytes, seqno_of
from support.budget import budget
from support.views.distributed_nodes import BUCKET, DistributedNodes

PAUSES = (0.0, 0.0, 0.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_places, "PAUSES_S", PAUSES)


async def begun(nodes: DistributedNodes, at: str = "a", since: Any = 0) -> DistributedWalk:
    database = await nodes[at].changes.whole(BUCKET)
    walk = database.open(database.start_of(since), restarts=False)
    assert isinstance(walk, DistributedWalk)
    return walk


def take(walk: DistributedWalk, piece: Piece) -> list[tuple[int, int]]:
    number = piece.snapshot.partition_id
    walk.tokens.move(number, piece.snapshot.at(piece.covered))
    return [(number, seqno_of(frame)) for frame in piece.frames]


async def read(walk: DistributedWalk) -> list[tuple[int, int]]:
    """One pass: (partition, seqno) of what came, the reader moved along."""
    return [one async for piece in walk.pieces() for one in take(walk, piece)]


def since_of(walk: DistributedWalk) -> Any:
    return parse_token(walk.tokens.text().decode())


def all_of(nodes: DistributedNodes) -> list[tuple[int, int]]:
    return sorted(
        (number, write.seqno)
        for number, owner in enumerate(nodes.owners)
        for write in {
            w.key: w for w in nodes[owner].bucket.partitions[number].writes
        }.values()
    )  # fmt: skip


async def test_any_node_gives_all_changes_and_its_token_is_good_at_others() -> None:
    nodes = DistributedNodes.false("abca")
    for number in range(4):
        nodes.write(number, "abcab")
    for name in "abc":
        walk = await begun(nodes, name)
        assert sorted(await read(walk)) == all_of(nodes)
        assert walk.lag() == 0
        assert walk.tokens.vector == (await nodes[name].changes.whole(BUCKET)).latest()
        assert await read(walk) == []
        walk.close()
        nodes.write(1, "d")
        later = await begun(nodes, "abca"["abc".index(name) + 1], since_of(walk))
        assert len(await read(later)) == 1
        later.close()


async def test_small_answers_are_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = DistributedNodes.false("ab")
    nodes.write(0, "abc")  # CAS are seqnos here
    nodes.write(1, "abc")
    walk = await begun(nodes)
    assert await read(walk) == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]
    walk.close()
    monkeypatch.setattr(distributed_feeds, "ORDERED_BYTES_MAX", 0)
    walk = await begun(nodes)
    assert await read(walk) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    walk.close()


async def test_who_is_inside_a_snapshot_goes_on_there_first() -> None:
    nodes = DistributedNodes.false("abab")
    for number in range(4):
        nodes.write(number, "abcd")
    walk = await begun(nodes)
    async for piece in walk.pieces():
        if piece.snapshot.partition_id == 3:
            take(walk, piece)
            break
    since = since_of(walk)
    walk.close()
    assert sum(not position.is_closed for position in since.positions) == 1
    nodes.write(3, "ef")
    walk = await begun(nodes, "b", since)
    seen = await read(walk)
    assert set(seen) | {(3, 1)} == set(all_of(nodes))
    assert walk.tokens.vector.is_closed
    walk.close()


async def test_where_all_is_here_nobody_is_asked() -> None:
    nodes = DistributedNodes.false("ab")
    nodes.move(1, "a")
    nodes.write(1, "ab")
    walk = await begun(nodes)
    assert len(await read(walk)) == 2
    assert not await walk.wait(0.001)
    walk.close()
    assert nodes["b"].asked == []


async def test_a_feed_waits_for_all_nodes() -> None:
    nodes = DistributedNodes.false("abc")
    walk = await begun(nodes)
    assert await read(walk) == []
    assert not await walk.wait(0.001)
    for number in (1, 2, 0, 1):
        waiting = asyncio.ensure_future(walk.wait(60))
        await asyncio.sleep(0)
        nodes.write(number, "x")
        assert await waiting
        assert [n for n, _ in await read(walk)] == [number]
    walk.close()
    await closed(nodes)


async def closed(nodes: DistributedNodes) -> None:
    """Until nobody reads any more, on any node."""
    async with asyncio.timeout(60):
        while any(  # noqa: ASYNC110 - there is no event for it
            node.bucket.durable_callbacks or len(node.changes.of(BUCKET))
            for node in nodes.nodes.values()
        ):
            await asyncio.sleep(0)


async def test_a_node_that_has_nothing_new_is_not_asked_for_changes_again() -> None:
    nodes = DistributedNodes.false("abc")
    walk = await begun(nodes)
    await read(walk)
    assert not await walk.wait(0.001)
    before = nodes["c"].asked.count("WantedChanges")
    nodes.write(1, "x")
    assert await walk.wait(60)
    assert len(await read(walk)) == 1
    assert nodes["c"].asked.count("WantedChanges") == before
    walk.close()
    await closed(nodes)


async def test_an_owner_that_changes_in_the_middle_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed_feeds, "ORDERED_CHANGES_MAX", -1)
    nodes = DistributedNodes.false("abcb")
    for number in range(4):
        nodes.write(number, "abcdef")
    nodes["b"].bucket.partitions[1].forget_memory(6)  # two at a time
    walk = await begun(nodes)
    seen = []
    async for piece in walk.pieces():
        seen += take(walk, piece)
        if seen[-1] == (1, 2) and nodes.owners[1] == "b":
            nodes.move(1, "c")
            nodes.move(3, "a")
    assert sorted(set(seen)) == all_of(nodes)
    assert len(seen) == len(set(seen)), "moved as they were: nothing comes twice"
    latest = (await nodes["b"].changes.whole(BUCKET)).latest()
    assert walk.tokens.vector.positions == latest.positions
    nodes.write(1, "x")
    assert await walk.wait(60)
    assert len(await read(walk)) == 1
    walk.close()


async def test_a_partition_that_comes_here_while_a_feed_waits() -> None:
    nodes = DistributedNodes.false("ab")
    nodes.write(1, "ab")
    walk = await begun(nodes)
    await read(walk)
    assert not await walk.wait(0.001)
    nodes.move(1, "a")
    nodes.write(1, "c")
    assert await walk.wait(60)
    seen = await read(walk)
    while not seen:  # the first pass may have been told of the move alone
        assert await walk.wait(60)
        seen = await read(walk)
    assert seen == [(1, 3)]
    walk.close()
    await closed(nodes)


async def test_only_the_partition_that_lost_history_goes_back() -> None:
    nodes = DistributedNodes.false("abc")
    for number in range(3):
        nodes.write(number, "abc")
    walk = await begun(nodes)
    await read(walk)
    since = since_of(walk)
    walk.close()
    nodes.move(1, "c", loses=2)
    nodes.write(1, "d")
    walk = await begun(nodes, "a", since)
    assert [position.seqno for position in walk.tokens.vector.positions] == [3, 1, 3]
    assert await read(walk) == [(1, 2)]
    walk.close()


async def test_a_loss_in_the_middle_of_a_feed_takes_the_reader_back() -> None:
    nodes = DistributedNodes.false("ab")
    nodes.write(1, "abc")
    walk = await begun(nodes)
    assert await read(walk) == [(1, 1), (1, 2), (1, 3)]
    nodes["b"].bucket.partitions[1].fail_over(1)
    assert await read(walk) == []
    assert walk.tokens.position(1).seqno == 1, "it is taken back though nothing comes"
    nodes.write(1, "xy")
    assert await read(walk) == [(1, 2), (1, 3)]
    walk.close()


async def test_a_node_that_dies_ends_the_feed_unless_another_takes_its_place() -> None:
    nodes = DistributedNodes.false("abc")
    nodes.write(1, "abc")
    walk = await begun(nodes)
    nodes["b"].is_dead = True
    with pytest.raises(MillstreamError) as caught:
        await read(walk)
    assert caught.value.code == "node_failed"
    walk.close()
    with pytest.raises(MillstreamError) as caught:
        await begun(nodes)
    assert caught.value.code == "node_failed"
    nodes.move(1, "c")
    walk = await begun(nodes)
    assert len(await read(walk)) == 3
    walk.close()


def unknown() -> None:
    raise UnavailableError("copies do not follow yet", code="majority_unknown")


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_in_a_managed_cluster_a_feed_waits_for_a_copy_that_was_promoted(
    monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    nodes = DistributedNodes.false("ab")
    nodes.write("ab".index(owner), "abc")
    walk = await begun(nodes)
    partition = nodes[owner].bucket.partitions["ab".index(owner)]
    monkeypatch.setattr(partition, "check_durable", unknown)
    with pytest.raises(MillstreamError) as caught:
        await read(walk)
    assert caught.value.code == "majority_unknown"
    monkeypatch.setattr(bucket_places.Router, "is_managed", True)
    reading = Tasks().start(read(walk), name="test")
    await asyncio.wait([reading], timeout=0.01)
    assert not reading.done()
    if owner == "a":
        assert walk.lag() == 3, "as many may be told as pending, and none is left out"
    monkeypatch.undo()
    assert len(await reading) == 3
    assert walk.lag() == 0
    walk.close()


async def test_in_a_managed_cluster_a_feed_that_waits_lives_through_a_promotion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = DistributedNodes.false("ab")
    walk = await begun(nodes)
    assert await read(walk) == []
    monkeypatch.setattr(bucket_places.Router, "is_managed", True)
    partition = nodes["a"].bucket.partitions[0]
    waiting = Tasks().start(walk.wait(30), name="test")
    await asyncio.wait([waiting], timeout=0.01)
    with monkeypatch.context() as promoted:
        promoted.setattr(partition, "check_durable", unknown)
        nodes.write(0, "a")
        assert await waiting
    assert len(await read(walk)) == 1
    walk.close()


async def test_a_node_that_breaks_off_is_asked_again_behind_what_came() -> None:
    nodes = DistributedNodes.false("ab")
    nodes.write(1, "abcdef")
    nodes["b"].bucket.partitions[1].forget_memory(6)
    count = 0

    def every_second(page: str, data: bytes) -> bytes | None:
        nonlocal count
        count += 1
        return None if page == "WantedChanges" and count % 2 == 0 else data

    nodes["b"].on_chunk = every_second
    walk = await begun(nodes)
    assert await read(walk) == [(1, seqno) for seqno in range(1, 7)]
    walk.close()


def cut(page: str, data: bytes) -> bytes:
    return data[: len(data) // 2]


def noise(page: str, data: bytes) -> bytes:
    return b"\xff" * 64 if page == "WantedChanges" else data


def other_partition(page: str, data: bytes) -> bytes:
    return data.replace(b"\x9a\x00\x01", b"\x9a\x00\x00") if page == "WantedChanges" else data


def no_frame(page: str, data: bytes) -> bytes:
    return data.replace(b"\x80\x6f", b"\x80\x6e") if page == "WantedChanges" else data


@pytest.mark.parametrize("nonsense", [cut, noise, other_partition, no_frame])
async def test_nonsense_is_refused(nonsense: Callable[[str, bytes], bytes]) -> None:
    nodes = DistributedNodes.false("ab")
    nodes.write(1, "abc")
    nodes["b"].on_chunk = nonsense
    with pytest.raises(MillstreamError) as caught:
        await read(await begun(nodes))
    assert caught.value.code == "node_failed"


async def test_a_partition_that_no_node_has() -> None:
    nodes = DistributedNodes.false("ab")
    walk = await begun(nodes)
    nodes["b"].bucket.partitions[1].state = nodes["b"].bucket.partitions[0].state
    with pytest.raises(MillstreamError) as caught:
        await read(walk)
    assert caught.value.code == "not_my_partition"
    nodes.tell_map("aa")
    with pytest.raises(MillstreamError, match="no node is known to have partition 1"):
        await begun(nodes)


async def test_another_bucket_of_the_name_is_none() -> None:
    nodes = DistributedNodes.false("ab")
    walk = await begun(nodes)
    nodes["b"].bucket.uuid = "another"
    with pytest.raises(MillstreamError) as caught:
        await read(walk)
    assert caught.value.code == "not_my_partition"


async def test_a_token_of_another_database_is_refused() -> None:
    nodes, others = DistributedNodes.false("ab"), DistributedNodes.false("abb")
    with pytest.raises(UsageError):
        await begun(nodes, "a", since_of(await begun(others)))


async def test_a_bucket_that_goes_away_ends_its_readers() -> None:
    nodes = DistributedNodes.false("ab")
    walk = await begun(nodes)
    waiting = asyncio.ensure_future(walk.wait(60))
    await asyncio.sleep(0)
    nodes["a"].changes.drop(nodes["a"].bucket)
    with pytest.raises(ConditionError):
        await waiting
    with pytest.raises(ConditionError):
        await read(walk)


async def test_a_purge_shows_before_what_it_made() -> None:
    nodes = DistributedNodes.false("abc")
    nodes.write(1, "ab")
    walk = await begun(nodes)
    first = walk.tokens.purge_epoch
    await read(walk)
    assert walk.tokens.purge_epoch == first
    async with nodes["c"].changes.purging(BUCKET):
        nodes.write(1, "c")
        async for piece in walk.pieces():
            assert walk.tokens.purge_epoch != first
            assert description_bytes(piece.frames[0])
            take(walk, piece)
    during = walk.tokens.purge_epoch
    nodes.write(1, "d")
    await read(walk)
    assert len({first, during, walk.tokens.purge_epoch}) == 3
    nodes["b"].bucket.partitions[1].fail_over(3)
    nodes.write(1, "e")
    assert [seqno for _, seqno in await read(walk)] == [1, 2, 3, 4], "from the beginning"
    walk.close()


class Reader:
    """Reads now at this node, now at that one; knows the newest change of each key."""

    def __init__(self, nodes: DistributedNodes, rng: Random) -> None:
        self.nodes, self.rng = nodes, rng
        self.since: Any = 0
        self.known: dict[tuple[int, bytes], int] = {}
        self.twice = self.short = 0
        self.refused = set[str]()
        self.walk: DistributedWalk | None = None

    async def step(self, limit: int | None) -> None:
        """Read at most so many pieces; what fails is begun anew, as a client does."""
        marks = self.nodes.marks() if self.walk is None and limit is None else []
        try:
            if self.walk is None:
                self.walk = await begun(self.nodes, self.rng.choice("abc"), self.since)
            elif self.rng.random() < 0.7:
                await self.walk.wait(self.rng.choice([0, 0.001]))
            await self._read(self.walk, limit)
            self.since = since_of(self.walk)
            self.short += any(self.walk.tokens.position(n).seqno < m for n, m in enumerate(marks))
            if limit is not None or self.rng.random() < 0.5:
                self.close()
        except MillstreamError as error:
            self.refused.add(error.code)
            self.close()

    async def _read(self, walk: DistributedWalk, limit: int | None) -> None:
        count = 0
        async with aclosing(walk.pieces()) as pieces:
            async for piece in pieces:
                number = piece.snapshot.partition_id
                for frame in piece.frames:
                    change = change_of(frame[description_bytes(frame) :])
                    self.twice += self.known.get((number, change.key)) == change.seqno
                    self.known[number, change.key] = change.seqno
                take(walk, piece)
                count += 1
                if count == limit:
                    return

    def close(self) -> None:
        if self.walk is not None:
            self.since = since_of(self.walk)
            self.walk.close()
            self.walk = None


@pytest.mark.parametrize("seed", range(budget(30)))
async def test_whatever_happens_readers_have_everything_in_the_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(distributed_feeds, "ORDERED_CHANGES_MAX", rng.choice([-1, 2048]))
    nodes = DistributedNodes.false("abcabc")
    readers = [Reader(nodes, rng) for _ in range(3)]

    def disturbed(page: str, data: bytes) -> bytes | None:
        chance = rng.random()
        if chance < 0.05:
            nodes.move(rng.randrange(6), rng.choice("abc"), is_told=rng.random() < 0.8)
        return None if chance > 0.95 else data[: len(data) // 2] if chance > 0.92 else data

    for node in nodes.nodes.values():
        node.on_chunk = disturbed
    for _ in range(60):
        number, chance = rng.randrange(6), rng.random()
        partition = nodes[nodes.owners[number]].bucket.partitions[number]
        if chance < 0.3:
            nodes.write(number, "".join(rng.choices("abcdefABC", k=rng.randint(1, 6))))
            if rng.random() < 0.3:
                partition.forget_memory(partition.high_seqno)
        elif chance < 0.4:  # what nobody was shown is lost
            lost = rng.randint(1, 3)
            partition.fill("xyz"[:lost])
            nodes.move(number, rng.choice("abc"), loses=lost)
        elif chance < 0.45:
            node = nodes[rng.choice("abc")]
            node.is_dead = not node.is_dead
        else:
            await rng.choice(readers).step(rng.choice([None, 1, 3]))
    for node in nodes.nodes.values():
        node.is_dead, node.on_chunk = False, lambda page, data: data
    nodes.tell_map()
    expected = {
        (number, write.key): write.seqno
        for number, owner in enumerate(nodes.owners)
        for write in nodes[owner].bucket.partitions[number].writes
    }
    for reader in readers:
        reader.close()
        await reader.step(None)
        reader.close()
        assert reader.known == expected
        assert reader.twice == reader.short == 0
        assert reader.refused <= {"node_failed", "not_my_partition"}
    await closed(nodes)
