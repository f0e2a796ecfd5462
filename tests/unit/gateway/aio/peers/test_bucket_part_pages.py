"""What nodes ask of each other's partitions, over HTTP."""

import msgspec
import pytest

from millstream.errors import ConditionError, UnavailableError
from millstream.gateway.aio.peers import bucket_part_pages
from millstream.gateway.core.bucket_parts import Ended, Figures, Histories, framed
from millstream.model.position import Position

PARTS = "/_millstream/buckets/orders/parts/"
WANTED = {"uuid": "u1", "partitions": [0]}


class FakeParts:
    def __init__(self):
        self.asked = []

    async def histories(self, bucket, wanted):
        self.asked.append(wanted)
        if wanted.uuid != "u1":
            raise ConditionError("another one", code="bucket_not_found")
        return Histories("0.1", [])

    async def figures(self, bucket, wanted):
        self.asked.append(wanted)
        return Figures(1, 2, 3, 4, 4, False)

    async def changes(self, bucket, wanted):
        self.asked.append(wanted)
        if wanted.partitions != [0]:
            raise UnavailableError("not here", code="not_my_partition")
        yield framed(Ended())

    async def documents(self, bucket, wanted):
        self.asked.append(wanted)
        yield framed(Ended())

    async def count_purge(self, bucket, uuid, *, is_made):
        self.asked.append((bucket, uuid, is_made))


@pytest.fixture
def parts(open_host, guarded_host):
    open_host.parts = guarded_host.parts = FakeParts()
    return open_host.parts


async def test_what_is_asked_arrives_as_it_is(client, parts, body):
    asked = WANTED | {"positions": [[10, 3, 0, 4, None]], "wait_s": 0.5}
    answered = await body(await client.post(PARTS + "histories", json=asked))
    assert answered == {"purges": "0.1", "partitions": []}
    assert parts.asked[-1].positions == [Position(10, 3, 0, 4)]
    assert (await body(await client.post(PARTS + "figures", json=WANTED)))["live"] == 1
    made = await body(await client.post(PARTS + "purges", json={"uuid": "u1", "is_made": True}))
    assert made == {"ok": True}
    assert parts.asked[-1] == ("orders", "u1", True)


async def test_streams_are_messages(client, parts):
    asked = WANTED | {"positions": [[0, 0, 0, 0]], "restarts": True}
    answered = await client.post(PARTS + "changes", json=asked)
    assert answered.content_type == "application/octet-stream"
    assert await answered.read() == framed(Ended())
    assert parts.asked[-1].restarts
    asked = msgspec.json.encode(WANTED | {"start": b"\x00", "end": b"\xff", "descending": True})
    answered = await client.post(PARTS + "documents", data=asked)
    assert await answered.read() == framed(Ended())
    assert (parts.asked[-1].start, parts.asked[-1].end) == (b"\x00", b"\xff")


async def test_refusals(client, parts, body, monkeypatch):
    await body(await client.post(PARTS + "histories", json=WANTED | {"uuid": "x"}), 404)
    asked = WANTED | {"positions": [], "restarts": False, "partitions": [1]}
    refused = await body(await client.post(PARTS + "changes", json=asked), 503)
    assert refused["error"] == "not_my_partition"
    for page in ("histories", "figures", "changes", "documents", "purges"):
        for bad in (b"", b"[]", b"{", b'{"uuid":7}', b"\xff"):
            await body(await client.post(PARTS + page, data=bad), 400)
    monkeypatch.setattr(bucket_part_pages, "WANTED_BYTES_MAX", 9)
    await body(await client.post(PARTS + "figures", json=WANTED), 413)


async def test_only_nodes_and_administrators_ask(guarded, parts, body, ada, bob):
    for page in ("histories", "figures", "changes", "documents", "purges"):
        await body(await guarded.post(PARTS + page, json=WANTED), 401)
        await body(await guarded.post(PARTS + page, json=WANTED, headers=bob), 403)
    await body(await guarded.post(PARTS + "figures", json=WANTED, headers=ada))
    assert len(parts.asked) == 1
