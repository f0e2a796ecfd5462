import asyncio
import logging

import pytest

from millstream.gateway.aio import streaming

LOGGER = "millstream.gateway.aio.access_log"


def lines(caplog):
    found = [record for record in caplog.records if record.name == LOGGER]
    names = ("method", "path", "status", "bytes", "user")
    return [tuple(getattr(record, name) for name in names) for record in found]


async def test_every_request_is_one_line(guarded, caplog, body, bob):
    with caplog.at_level(logging.DEBUG, LOGGER):
        await body(await guarded.get("/_up?secret=1"))
        await body(await guarded.get("/orders/_design/none", headers=bob), 404)
        await guarded.head("/_up")
    assert lines(caplog) == [
        ("GET", "/_up", 200, 16, ""),
        ("GET", "/orders/_design/none", 404, 41, "bob"),
        ("HEAD", "/_up", 200, 16, ""),
    ]
    own = [record for record in caplog.records if record.name == LOGGER]
    assert all(record.ms >= 0 for record in own)
    assert "secret" not in str([vars(record) for record in own])


async def test_answers_in_pieces_are_counted(client, open_node, caplog):
    open_node.indexes.pieces = [b"x" * 50_000] * 3
    with caplog.at_level(logging.DEBUG, LOGGER):
        await (await client.get("/orders/_design/s/_view/v")).read()
    ((_, _, status, size, _),) = lines(caplog)
    assert status == 200
    assert size >= 150_000


async def test_nothing_is_logged_by_default(client, caplog, body):
    with caplog.at_level(logging.INFO, LOGGER):
        await body(await client.get("/_up"))
    assert lines(caplog) == []


async def test_a_client_that_left_is_a_line(client, open_node, caplog, monkeypatch):
    monkeypatch.setattr(streaming, "GONE_CHECK_S", 0.01)
    waits, ended = asyncio.Event(), asyncio.Event()

    async def query(*_):
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().call_soon(ended.set)

    open_node.indexes.query = query
    with caplog.at_level(logging.DEBUG, LOGGER):
        asking = asyncio.ensure_future(client.get("/orders/_design/s/_view/v"))
        await waits.wait()
        asking.cancel()
        async with asyncio.timeout(60):
            await ended.wait()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [line[2] for line in lines(caplog)] == [499]
