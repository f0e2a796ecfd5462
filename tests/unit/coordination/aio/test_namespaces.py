"""Namespaces in two groups of one pool, found from any node, also from one without a group."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from millstream.coordination.aio import namespaces
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.aio.client_requests import ClientRequests
from millstream.coordination.aio.namespaces import UNKNOWN_S_MAX
from millstream.coordination.core.namespace.state.run import Asker
from millstream.vsr.core.effects import Reply
from millstream.vsr.core.entries import Body
from support.coordination.coordinators import WAIT_S, Nodes, until
from support.coordination.namespace_node import addresses
from support.kv.talking import done, follow, once


async def two_groups(nodes: Nodes) -> None:
    """Found a second group, of the last node alone."""
    last = nodes.running[2].node_id.hex().encode()
    await nodes.admin(b"GROUP", b"CREATE", b"2", last)
    await until(lambda: 2 in nodes.running[2].groups.numbered)
    await until(lambda: nodes.running[2].groups.numbered[2].replica.leading)
    await until(lambda: all(node.pool.pool.discovery.called(2) for node in nodes.running.values()))


async def users_see_their_namespaces_only(nodes: Nodes) -> None:
    """Who may not read a namespace does not hear of it from a node that has it."""
    await done(nodes, "ACL", "SET", "/here", "OWNER", "ann", "MODE", "700")
    ann, eve = Asker(principal=b"ann"), Asker(principal=b"eve")
    here = nodes.running[0].requests
    await until(lambda: b"/here" not in here.vds((b"VDS", b"/"), eve))
    assert b"/here" in here.vds((b"VDS", b"/"), ann)
    assert here.vds((b"VDS", b"/here"), eve).startswith(b"-ERROR_DOES_NOT_EXISTS")
    assert here.vds((b"VDS", b"/here"), ann).startswith(b"%")
    # The first node has no member of the second group: it answers who knows the name.
    assert b"/there" not in here.vds((b"VDS", b"/"), ann)
    assert here.vds((b"VDS", b"/there"), ann).startswith(b"%")


async def test_names_are_unique_over_groups_and_found_from_any_node(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await two_groups(nodes)
        await done(nodes, "CREATENAMESPACE", "/here", "one")
        await done(nodes, "CREATENAMESPACE", "/there", "two", "GROUP", "2")
        for group in ("1", "2"):
            assert await follow(nodes, "CREATENAMESPACE", "/there", "GROUP", group) == b"EXISTS"
            assert await follow(nodes, "CREATENAMESPACE", "/here", "GROUP", group) == b"EXISTS"
        assert await follow(nodes, "GET", "/here") == b"one"
        assert await follow(nodes, "GET", "/there") == b"two"
        await done(nodes, "CREATE", "BINARY", "/there/a", "x")
        assert await follow(nodes, "GET", "/there/a") == b"x"
        absent = await follow(nodes, "GET", "/nowhere/a")
        assert absent.startswith("ERROR_DOES_NOT_EXISTS")
        assert await follow(nodes, "GROUP", "2", "LIST", "/") == [None, [b"there"]]
        pools = [node.pool.pool for node in nodes.running.values()]
        await until(lambda: all(pool.board.group_with(b"there") == 2 for pool in pools))
        for node in nodes.running.values():
            assert b"/here" in node.requests.vds((b"VDS", b"/"))
            assert node.requests.vds((b"VDS", b"/there/a")).startswith(b"%")
            assert node.requests.vds((b"VDS", b"/gone")).startswith(b"-ERROR_DOES_NOT_EXISTS")
        await users_see_their_namespaces_only(nodes)
        assert (await follow(nodes, "DELETENAMESPACE", "/there")).startswith("NOTEMPTY")
        assert (await nodes.admin(b"GROUP", b"DELETE", b"2", b"CONFIRM", b"2"))[1].startswith(
            b"-NOTEMPTY"
        )
        await done(nodes, "DELETENAMESPACE", "/there", "FORCE")
        assert (await follow(nodes, "GET", "/there")).startswith("ERROR_DOES_NOT_EXISTS")
        await done(nodes, "FORCE", "CREATENAMESPACE", "/there", "GROUP", "2")
        await done(nodes, "CREATE", "BINARY", "/there/a")
        async with AsyncClient(addresses(nodes), deadline_s=WAIT_S) as holder:
            await holder.lock("/there/a").acquire()
            assert (await follow(nodes, "PUT", "/there/a", "x")).startswith("LOCKED")
            await done(nodes, "FORCE", "PUT", "/there/a", "x")
            assert await follow(nodes, "FORCE", "GET", "/there/a") == b"x"
            assert (await follow(nodes, "DELETENAMESPACE", "/there", "FORCE")).startswith("LOCKED")
            await done(nodes, "FORCE", "DELETENAMESPACE", "/there", "FORCE")
        assert (await follow(nodes, "GET", "/there")).startswith("ERROR_DOES_NOT_EXISTS")
        assert await follow(nodes, "FORCE", "CONFIG", "GET", "GLOBAL", "GLOBAL.VDS.*") != {}
        await done(nodes, "FORCE", "DELETENAMESPACE", "/here")
        assert nodes.fatal == []


async def test_without_a_word_the_smallest_group_gets_it(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await two_groups(nodes)
        await done(nodes, "CREATENAMESPACE", "/a")
        leader = nodes.running[await nodes.leader()].pool.pool
        first = leader.discovery.called(1)[0]
        await until(lambda: (seen := leader.directory.get(first)) and seen.elements)
        await done(nodes, "CREATENAMESPACE", "/b")
        assert await follow(nodes, "GROUP", "2", "LIST", "/") == [None, [b"b"]]
        unknown = await follow(nodes, "CREATENAMESPACE", "/c", "GROUP", "9")
        assert unknown.startswith("ERROR_DOES_NOT_EXISTS")
        misplaced = await follow(nodes, "GROUP", "2", "CREATENAMESPACE", "/c")
        assert misplaced.startswith("BADARG")


async def test_settings_of_all_groups_are_known_to_all_nodes(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        said = ("CONFIG", "SET", "GLOBAL", "GLOBAL.AUTH.ISSUER", "me")
        await done(nodes, *said)
        pools, key = [node.pool.pool for node in nodes.running.values()], b"GLOBAL.AUTH.ISSUER"
        await until(lambda: all(pool.board.setting(key) == b"me" for pool in pools))
        shown = await follow(nodes, "CONFIG", "GET", "GLOBAL", "GLOBAL.AUTH.I*")
        assert shown == [b"GLOBAL.AUTH.ISSUER", b"me"]
        misplaced = await follow(nodes, "GROUP", "2", "CONFIG", "GET", "GLOBAL", "*")
        assert misplaced.startswith("BADARG")


@pytest.mark.slow
@pytest.mark.parametrize("is_early", [True, False])
async def test_a_new_leader_continues_what_the_last_one_began(
    tmp_path: Path, is_early: bool
) -> None:
    """The node that leads is stopped while it creates; each name is there once, or nowhere."""
    async with Nodes(tmp_path) as nodes:
        await two_groups(nodes)
        group = nodes.running[await nodes.leader()].pool.pool.discovery.called(1)[0]
        answers: dict[str, object] = {}

        async def create(root: str) -> None:
            answers[root] = await follow(nodes, "CREATENAMESPACE", root, "GROUP", "2")

        roots = [f"/n{number}" for number in range(20)]
        making = [asyncio.ensure_future(create(root)) for root in roots]
        await until(lambda: is_early or len(answers) > 3)
        while (gone := await nodes.leader()) == 2:  # it is the other group, too: that has to stay
            moved = await nodes.admin(
                b"GROUP", b"MOVE-PRIMARY", b"1", nodes.running[0].node_id.hex().encode()
            )
            assert moved[1] == b"+OK"
        await nodes.stop(gone)
        await asyncio.gather(*making)
        assert all(answer in (b"OK", b"EXISTS") for answer in answers.values()), answers
        for root in roots:
            assert await follow(nodes, "LOOKUP", root) == b"OK"
            assert await follow(nodes, "CREATENAMESPACE", root, "GROUP", "1") == b"EXISTS"
        listed = await once(nodes.coord_ports[2], "GROUP", "2", "LIST", "/")
        assert listed == [None, sorted(root[1:].encode() for root in roots)]
        left = nodes.running[await nodes.leader()].pool.pool
        assert left.discovery.called(1) == [group]


async def told(requests: ClientRequests, path: bytes) -> bytes:
    """Return what VDS says of a path once the node knows it, or has waited for it."""
    known = asyncio.Event()
    requests.when_known(path, known.set)
    await asyncio.wait_for(known.wait(), WAIT_S)
    return requests.vds((b"VDS", path))


async def test_a_created_namespace_is_found_at_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "UNKNOWN_S_MAX", WAIT_S)
    async with Nodes(tmp_path) as nodes:
        await two_groups(nodes)
        names = count()

        async def is_told(group: str, number: int) -> None:
            leader, root = nodes.running[number], f"/n{next(names)}"
            await done(nodes, "CREATENAMESPACE", root, "GROUP", group)
            assert leader.requests.vds((b"VDS", root.encode())).startswith(b"%"), "at once"
            for node in nodes.running.values():
                assert (await told(node.requests, root.encode())).startswith(b"%")
            await done(nodes, "DELETENAMESPACE", root)
            assert not leader.requests.vds((b"VDS", root.encode())).startswith(b"%"), "at once"

        for group in ("1", "2", "1", "2"):
            await nodes.while_one_leads(partial(is_told, group))


async def test_a_namespace_that_nobody_knows_is_waited_for_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Nodes(tmp_path) as nodes:
        loop = asyncio.get_running_loop()
        leader = nodes.running[await nodes.leader()]
        assert (await told(leader.requests, b"/nowhere")).startswith(b"-ERROR_DOES_NOT_EXISTS")
        other = next(node for node in nodes.running.values() if node is not leader)
        # Whoever leads the system group by now, this node is not sure of it.
        monkeypatch.setattr(other.namespaces, "_system", lambda: None)
        since_s = loop.time()
        assert (await told(other.requests, b"/nowhere")).startswith(b"-ERROR_DOES_NOT_EXISTS")
        assert loop.time() - since_s >= UNKNOWN_S_MAX
        monkeypatch.setattr(namespaces, "AWAITED_MAX", 1)
        calls: list[int] = []
        other.requests.when_known(b"/a", lambda: calls.append(1))
        other.requests.when_known(b"/b", lambda: calls.append(2))
        assert calls == [2], "there are too many already"
        other.namespaces.close()
        assert calls == [2, 1]


async def test_a_backup_that_does_not_know_a_new_namespace_yet_sends_its_readers_to_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Nodes(tmp_path) as nodes:
        await two_groups(nodes)
        await done(nodes, "CREATENAMESPACE", "/old", "GROUP", "2")
        other = next(
            node for number, node in nodes.running.items()
            if number != 2 and not node.groups.numbered[1].replica.leading
        )  # fmt: skip
        replies: list[Reply] = []

        def read(path: bytes) -> None:
            other.requests.read(1, Body(argv=(b"GET", path)), replies.append, seen=0)

        with monkeypatch.context() as patient:
            patient.setattr(namespaces, "UNKNOWN_S_MAX", WAIT_S)
            read(b"/new/a")
            await done(nodes, "CREATENAMESPACE", "/new", "GROUP", "2")
            await until(lambda: replies)
        assert replies.pop().value.startswith(b"-NOTPRIMARY 2 ")
        read(b"/never/a")
        await until(lambda: replies)
        assert replies.pop().value.startswith(b"-ERROR_DOES_NOT_EXISTS")
