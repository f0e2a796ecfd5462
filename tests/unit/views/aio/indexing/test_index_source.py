"""What the node that is read says of its partitions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.errors import AccessError, StreamError, UnavailableError
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.upr.aio.link import Link
from millstream.views.aio.indexing.index_source import (
    Histories,
    ReadableCopies,
    ask_copies,
)
from millstream.wire.mcbp import Opcode, Packet, cut_packets
from support.views.indexed_bucket import BUCKET, PARTITIONS, IndexedBucket


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[IndexedBucket]:
    async with IndexedBucket(tmp_path) as bucket:
        yield bucket


class Watched:
    """A link, and what was asked over it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.address = link.address
        self.asked: list[int] = []

    async def demand(self, frame: bytes, what: str) -> Packet:
        self._note([frame])
        return await self._link.demand(frame, what)

    async def ask_all(self, frames: list[bytes]) -> list[Packet]:
        self._note(frames)
        return await self._link.ask_all(frames)

    def _note(self, frames: list[bytes]) -> None:
        self.asked += [packet.opcode for packet in cut_packets(b"".join(frames), 1 << 20)[0]]


async def test_histories_highs_and_states(bucket: IndexedBucket) -> None:
    await bucket.put({f"d{n}": [n] for n in range(100)})
    link = bucket.link()
    await link.open_bucket(bucket.node.bucket(BUCKET).uuid)
    watched = Watched(link)

    found = await ask_copies(watched, range(PARTITIONS))  # type: ignore[arg-type]

    assert sorted(found) == list(range(PARTITIONS))
    for number, copy in found.items():
        partition = bucket.node.bucket(BUCKET).partitions[number]
        assert copy.judged.high_seqno == partition.high_seqno
        assert copy.judged.log == partition.failover_log
        assert copy.uuid == partition.failover_log[0].uuid
        assert copy.is_active

    # A history that is known is not asked for again.
    watched.asked.clear()
    again = await ask_copies(watched, range(PARTITIONS), found)  # type: ignore[arg-type]
    assert again is found
    assert watched.asked == [Opcode.POSITIONS]
    await bucket.put({"another": [1]})
    later = await ask_copies(watched, range(PARTITIONS), found)  # type: ignore[arg-type]
    assert later != found
    assert watched.asked == [Opcode.POSITIONS] * 2
    found = later
    stale = ReadableCopies({0: found[0]._replace(judged=found[1].judged)})
    assert await ask_copies(watched, [0], stale) == {0: found[0]}  # type: ignore[arg-type]
    assert await ask_copies(watched, []) == {}  # type: ignore[arg-type]
    await link.close()


async def test_a_source_that_may_not_serve_says_so(bucket: IndexedBucket) -> None:
    await bucket.put({"d": [1]})
    source, link = bucket.node.bucket(BUCKET), bucket.link()
    await link.open_bucket(source.uuid)
    found = await ask_copies(link, range(PARTITIONS))
    found.check_served(range(PARTITIONS))
    alone, shared = (DataRecord(MapKey(2, 1), "a", 1, (row,)) for row in (("a",), ("a", "b")))
    source.manage("a", lambda p: shared if p == 1 else alone)
    found = await ask_copies(link, range(PARTITIONS), found)
    assert [p for p, one in found.items() if one.is_isolated] == [1]
    assert found[1].is_active, "its stream goes on"
    found.check_served([0])
    with pytest.raises(UnavailableError) as caught:
        found.check_served([0, 1])
    assert caught.value.code == "isolated"
    await link.close()


async def test_another_bucket_of_that_name_and_a_missing_one_are_errors(
    bucket: IndexedBucket,
) -> None:
    link = bucket.link()
    with pytest.raises(StreamError, match="created again"):
        await link.open_bucket("another")
    await link.close()

    await bucket.node.delete_bucket(BUCKET)
    link = bucket.link()
    with pytest.raises(AccessError):
        await link.open_bucket("another")
    await link.close()


async def test_in_a_managed_cluster_no_source_of_a_lower_branch_is_read(
    bucket: IndexedBucket,
) -> None:
    await bucket.put({"d": [1]})
    link = bucket.link()
    await link.open_bucket(bucket.node.bucket(BUCKET).uuid)
    histories = Histories()
    histories.is_guarded = True
    found = await ask_copies(link, range(PARTITIONS), histories=histories)
    assert sorted(found) == list(range(PARTITIONS))
    (newest, *_) = found[0].judged.log
    histories.note(0, (newest._replace(branch=newest.branch + 1),))
    for known in (found, None):  # also if it says the same as before
        again = await ask_copies(link, range(PARTITIONS), known, histories=histories)
        assert sorted(again) == list(range(1, PARTITIONS))
    histories.is_guarded = False
    anew = await ask_copies(link, range(PARTITIONS), histories=histories)
    assert sorted(anew) == list(range(PARTITIONS))
    await link.close()
