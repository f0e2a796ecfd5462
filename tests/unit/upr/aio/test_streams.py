"""Connections of a reader to several nodes; what is read is in test_client and test_following."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from millstream.errors import UnavailableError
from millstream.upr import Consumer
from millstream.upr.aio.client import Changes, ConnectionLost
from millstream.upr.core import driver
from millstream.wire.frames import stream_end
from millstream.wire.mcbp import Opcode, StreamEndReason
from support.streams.scripted_source import Source, snapshot


@pytest.fixture
async def sources(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Source]]:
    """Two nodes; partition 0 is at the first, partition 1 at the second."""
    monkeypatch.setattr(driver, "PAUSE_S_MIN", 0.0)
    made = [Source(), Source()]
    for source in made:
        await source.start()
    for source in made:
        source.ports, source.owners = [each.port for each in made], [0, 1]
    yield made
    for source in made:
        await source.stop()


def asked(source: Source) -> list[int]:
    return [one[0] for one in source.asked]


async def test_each_partition_is_read_at_its_node(sources: list[Source]) -> None:
    first, second = sources
    for number, source in enumerate(sources):
        end = stream_end(number, number, StreamEndReason.OK)
        source.script = [source.opened(number) + snapshot(number, 1, 2) + end]
    async with Consumer(second.address, bucket="orders", until_now=True) as consumer:
        found = [event async for event in consumer if isinstance(event, Changes)]
    assert sorted(event.partition_id for event in found) == [0, 1]
    assert (asked(first), asked(second)) == ([0], [1])


async def test_a_partition_that_moved_is_read_on_at_its_new_node(sources: list[Source]) -> None:
    first, second = sources
    first.script = [
        first.opened(0) + snapshot(0, 1, 2) + stream_end(0, 0, StreamEndReason.STATE_CHANGED)
    ]
    second.script = [second.opened(1) + stream_end(1, 1, StreamEndReason.OK)]
    async with Consumer(first.address, bucket="orders", until_now=True) as consumer:
        async for event in consumer:
            if isinstance(event, Changes):
                for source in sources:
                    source.owners, source.revision = [1, 1], 2
            elif isinstance(event, ConnectionLost):
                assert "stream of partition 0" in event.reason
    assert (asked(first), sorted(asked(second))) == ([0], [0, 1])
    assert second.asked[-1][3] == 2


async def test_a_node_that_is_behind_does_not_hide_a_newer_map(sources: list[Source]) -> None:
    first, second = sources
    first.script = [
        first.opened(0) + snapshot(0, 1, 2) + stream_end(0, 0, StreamEndReason.STATE_CHANGED)
    ]
    second.script = [second.opened(0) + stream_end(0, 0, StreamEndReason.OK)]
    async with Consumer(
        first.address, bucket="orders", partitions=[0], until_now=True
    ) as consumer:
        async for event in consumer:
            if isinstance(event, Changes):
                second.owners, second.revision = [1, 1], 2
    assert asked(second) == [0]


async def test_a_node_that_is_away_costs_its_own_partitions_only(sources: list[Source]) -> None:
    first, second = sources
    await second.stop()
    first.script = [first.opened(0) + snapshot(0, 1, 2)]
    async with Consumer(first.address, bucket="orders") as consumer:
        events = consumer.__aiter__()
        assert isinstance(await anext(events), Changes)
    await first.stop()
    with pytest.raises(UnavailableError, match="cannot connect"):
        async with Consumer(first.address, bucket="orders"):
            pass


async def test_a_connection_is_read_on_when_its_events_were_taken(sources: list[Source]) -> None:
    first, _ = sources
    first.script = [first.opened(0) + snapshot(0, 1, 2)]
    async with Consumer(
        first.address, bucket="orders", partitions=[0], window_bytes=1
    ) as consumer:
        events = consumer.__aiter__()
        assert isinstance(await anext(events), Changes)
        await asyncio.sleep(0)
        acknowledged = [one for one in first.requests if one.opcode == Opcode.DCP_BUFFER_ACK]
        assert acknowledged == []
        await anext(events)  # the end of the snapshot
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.05)
        while first.requests[-1].opcode != Opcode.DCP_BUFFER_ACK:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
