"""What clients ask reaches the group, or is answered as by who does not lead it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.coordination.aio.coordinator import Coordinator
from millstream.coordination.core.backend import Where
from millstream.coordination.core.pool.directory import GroupStatus
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.values import bulk, integer, items
from support.coordination.coordinators import until


async def test_a_group_that_runs_here(tmp_path: Path) -> None:
    node = await Coordinator.start(tmp_path)
    await until(lambda: node.groups.numbered[FIRST_GROUP].replica.leading)
    requests = node.requests
    assert requests.group_of(b"key") == FIRST_GROUP
    replies = asyncio.Queue[Reply]()
    requests.request(FIRST_GROUP, Body(argv=(b"SET", b"k", b"v")), replies.put_nowait)
    assert (await replies.get()).code is Code.OK
    requests.read(FIRST_GROUP, Body(argv=(b"GET", b"k")), replies.put_nowait)
    assert (await replies.get()).value == b"=v"
    requests.request(FIRST_GROUP, Body(), replies.put_nowait, Kind.SESSION_OPEN, b"i" * 16)
    session = int((await replies.get()).value.lstrip(b":="))
    requests.resume(FIRST_GROUP, b"i" * 16, session, b"", replies.put_nowait)
    assert (await replies.get()).code is Code.OK
    requests.touch(FIRST_GROUP, session)
    requests.list_sessions(FIRST_GROUP, 0, replies.put_nowait)
    (shown,) = items((await replies.get()).value)
    shown_id = bulk(b"%b-%d" % ((b"i" * 16).hex().encode(), session))
    assert items(shown)[:4] == [bulk(b"client_id"), shown_id, bulk(b"ttl"), integer(10_000)]
    assert requests.where(FIRST_GROUP) == Where(0, 1, "")
    assert requests.vds((b"VDS",)).startswith(b"%")
    assert "role=primary" in requests.figures()["coordination"][f"group_{FIRST_GROUP}"]
    values = asyncio.Queue[bytes]()
    requests.admin((b"ADMIN", b"STATUS"), values.put_nowait)
    assert (await values.get()).startswith(b"%")
    await node.stop()


async def test_a_group_that_does_not(tmp_path: Path) -> None:
    node = await Coordinator.start(tmp_path)
    requests = node.requests
    replies: list[Reply] = []
    requests.request(5, Body(argv=(b"SET", b"k", b"v")), replies.append)
    requests.read(5, Body(argv=(b"GET", b"k")), replies.append)
    requests.resume(5, b"i" * 16, 1, b"", replies.append)
    requests.list_sessions(5, 0, replies.append)
    requests.touch(5, 1)
    assert [reply.code for reply in replies] == [Code.NOTPRIMARY] * 4
    assert requests.where(5) == Where()
    await node.stop()


async def test_a_number_that_two_groups_have_is_nobodys(tmp_path: Path) -> None:
    node = await Coordinator.start(tmp_path)
    await until(lambda: node.groups.numbered[FIRST_GROUP].replica.leading)
    pool, requests = node.pool.pool, node.requests
    first = pool.tables.foundings[pool.discovery.called(FIRST_GROUP)[0]]
    second = first._replace(salt=first.salt + 1)
    pool.tables.note_founding(second)
    replies = asyncio.Queue[Reply]()
    requests.request(FIRST_GROUP, Body(argv=(b"SET", b"k", b"v")), replies.put_nowait)
    assert (await replies.get()).code is Code.OK
    pool.directory.note(second.group_id, GroupStatus(0, 1, (b"o" * 16,), 0.0))
    requests.request(FIRST_GROUP, Body(argv=(b"SET", b"k", b"w")), replies.put_nowait)
    requests.read(FIRST_GROUP, Body(argv=(b"GET", b"k")), replies.put_nowait)
    assert [(await replies.get()).code for _ in range(2)] == [Code.CONFLICT] * 2
    pool.tables.add_tombstone(second.group_id)
    requests.read(FIRST_GROUP, Body(argv=(b"GET", b"k")), replies.put_nowait)
    assert (await replies.get()).value == b"=v"
    await node.stop()
