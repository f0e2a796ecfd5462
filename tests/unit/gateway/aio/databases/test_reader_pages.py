"""Who reads a bucket, as told over HTTP."""

import asyncio

import pytest

from millstream.gateway.aio.answers import NODE_API
from millstream.gateway.aio.databases.reader_pages import kind_of
from millstream.gateway.core.api.readers import LeaseShown, ReaderStatus, StreamAt

PATH = "/_millstream/buckets/orders/readers"
ROLLED_BACK = {"partition": 3, "from_seqno": 9, "to_seqno": 2, "at_ms": 7_000}


@pytest.fixture
def host(client, monkeypatch):
    host = client.app[NODE_API]
    streams = [
        StreamAt(0, "in-memory", 5, "0a", 0, 0.0),
        StreamAt(3, "in-memory", 2, "0b", 7, 1.5),
    ]
    name = "millstream:index:orders:1"

    async def readers(_):
        return [ReaderStatus(name, "127.0.0.1:9", "", 12, 99, 5_000, ROLLED_BACK, streams)]

    monkeypatch.setattr(host, "readers", readers, raising=False)
    leases = [LeaseShown(0xAB, 12.5, {3: 4})]
    monkeypatch.setattr(host, "leases", lambda _: leases, raising=False)
    gone = [("gone", ROLLED_BACK)]
    monkeypatch.setattr(host, "past_rollbacks", lambda _: gone, raising=False)
    return host


@pytest.mark.usefixtures("host")
async def test_readers_and_leases_are_told(client, body):
    found = await body(await client.get(PATH))
    (reader,) = found["readers"]
    assert (reader["kind"], reader["lag"], reader["bytes_waiting"]) == ("index", 7, 12)
    assert reader["streams"][1] == {
        "partition": 3, "state": "in-memory", "sent_seqno": 2, "uuid": "0b",
        "lag": 7, "lag_s": 1.5,
    }  # fmt: skip
    assert (reader["lag_s"], reader["since_ms"]) == (1.5, 5_000)
    assert reader["last_rollback"] == ROLLED_BACK
    assert found["past_rollbacks"] == [{"name": "gone", **ROLLED_BACK}]
    assert found["leases"] == [
        {"lease": f"{0xAB:016x}", "seconds_left": 12.5, "holds": [{"partition": 3, "seqno": 4}]}
    ]


async def test_a_lag_in_seconds_is_not_known_if_one_partition_has_none(client, body, host):
    host_streams = (await host.readers("orders"))[0].streams
    host_streams.append(StreamAt(4, "backfilling", 2, "0b", 7, None))
    assert (await body(await client.get(PATH)))["readers"][0]["lag_s"] is None


async def test_only_administrators_are_told(guarded, body, bob):
    await body(await guarded.get(PATH), 401)
    await body(await guarded.get(PATH, headers=bob), 403)


def test_a_name_tells_what_a_reader_is():
    assert kind_of("millstream:replication:a->b:orders") == "copy"
    assert kind_of("millstream-consumer-1") == "consumer"
    assert kind_of("millstream-bulk-1") == "bulk"
    assert kind_of("<script>") == "other"


async def test_many_readers_of_many_partitions_hold_up_nothing(client, body, monkeypatch):
    """In one step, 100 readers of 1,024 partitions took a second."""
    streams = [StreamAt(p, "in-memory", p, "0a", 0, 0.0) for p in range(1024)]
    many = [ReaderStatus(f"r{n}", "", "", 0, 0, 0, None, streams) for n in range(100)]

    async def readers(_):
        return many

    monkeypatch.setattr(client.app[NODE_API], "readers", readers, raising=False)
    monkeypatch.setattr(client.app[NODE_API], "leases", lambda _: [], raising=False)
    monkeypatch.setattr(client.app[NODE_API], "past_rollbacks", lambda _: [], raising=False)

    async def ask():
        return await body(await client.get(PATH))

    turns, asked = 0, asyncio.ensure_future(ask())
    while not asked.done():
        await asyncio.sleep(0)
        turns += 1
    found = await asked
    assert [len(one["streams"]) for one in found["readers"]] == [1024] * 100
    assert turns > 20
