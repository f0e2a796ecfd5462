"""The coordination of nodes on real files and sockets: alone, three, stopped and restarted."""

from __future__ import annotations

import asyncio
import errno
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.coordination.aio import coordinator, groups, peers
from millstream.coordination.aio.coordinator import Coordinator, Listening
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.coordination.core.pool.messages import Address
from millstream.errors import CorruptionError
from millstream.vsr.core.disk.durable_steps import SUPERBLOCK
from millstream.vsr.core.effects import Code
from millstream.vsr.core.replica import requested_changes as changing
from millstream.vsr.core.replica.reads import STALE_WAIT_MS
from support.coordination.coordinators import Nodes, ask, bound, until


async def leading(directory: Path) -> Coordinator:
    node = await Coordinator.start(directory)
    await until(lambda: node.groups.numbered[FIRST_GROUP].replica.leading)
    return node


async def test_a_node_alone_is_a_group_of_one_and_stays_it(tmp_path: Path) -> None:
    node = await leading(tmp_path)
    group = node.groups.numbered[FIRST_GROUP]
    assert (await ask(group, b"SET", b"key", b"value")).code is Code.OK
    assert node.figures()["coord_groups_leading"] == 1
    node_id = node.node_id
    await node.stop()
    node = await leading(tmp_path)
    assert node.node_id == node_id
    assert (await ask(node.groups.numbered[FIRST_GROUP], b"GET", b"key")).value == b"=value"
    await node.stop()


async def test_a_start_reports_that_files_are_read(tmp_path: Path) -> None:
    node = await leading(tmp_path)
    files = len(list((tmp_path / next(iter(node.groups.running)).hex()).iterdir()))
    await node.stop()
    told: list[int] = []
    node = await Coordinator.start(tmp_path, on_progress=lambda: told.append(1))
    assert len(told) >= 2 * files
    await node.stop()


async def test_a_node_that_joins_others_founds_no_group(tmp_path: Path) -> None:
    for _ in range(2):
        node = await Coordinator.start(tmp_path, join=(Address("127.0.0.1", 1),))
        assert node.groups.running == {}
        await node.stop()


async def test_a_first_start_that_was_cut_short_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise OSError(errno.EIO, "the disk failed")

    errors: list[BaseException] = []
    with monkeypatch.context() as patched:
        patched.setattr(groups, "format_group", cut)
        with pytest.raises(OSError, match="the disk failed"):
            await Coordinator.start(tmp_path, on_fatal=errors.append)
    assert len(errors) == 1
    node = await leading(tmp_path)
    await node.stop()


async def test_lost_promises_are_said_at_the_start(tmp_path: Path) -> None:
    node = await leading(tmp_path)
    [group_id] = node.groups.running
    await node.stop()
    (tmp_path / group_id.hex() / SUPERBLOCK).write_bytes(bytes(1000))
    with pytest.raises(CorruptionError) as caught:
        await Coordinator.start(tmp_path)
    assert caught.value.code == "promises_lost"


async def test_three_nodes_agree_and_survive_their_primary(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        assert (await nodes.ask(b"SET", b"key", b"1")).value == b"+OK"
        first = await nodes.leader()
        await nodes.stop(first)
        assert (await nodes.ask(b"GET", b"key")).value == b"=1"
        await nodes.ask(b"SET", b"key", b"2")
        node = await nodes.start(first)
        lsn = nodes.group(await nodes.leader()).replica.commit_lsn
        await until(lambda: node.groups.numbered[FIRST_GROUP].replica.commit_lsn >= lsn)
        second = await nodes.leader()
        await nodes.stop(second)
        assert (await nodes.ask(b"GET", b"key")).value == b"=2"
        assert not nodes.fatal


async def test_members_that_stood_still_keep_their_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the primary sent waits unread meanwhile: a pause is not the primary's silence."""
    loop = asyncio.get_running_loop()
    read_s, paused_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: read_s() + paused_s)
    async with Nodes(tmp_path) as nodes:
        await nodes.ask(b"SET", b"key", b"1")
        replicas = [nodes.group(number).replica for number in range(3)]
        before = [(replica.view, replica.leading) for replica in replicas]
        for number in range(5):
            paused_s += 5.0
            reply = await ask(nodes.group(await nodes.leader()), b"SET", b"key", b"%d" % number)
            assert reply.code is Code.OK
        assert [(replica.view, replica.leading) for replica in replicas] == before


async def test_dead_nodes_are_not_added_and_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "WARM_MS", 1000.0)
    async with Nodes(tmp_path) as nodes:
        await nodes.ask(b"SET", b"key", b"1")
        dead = []
        for number in (3, 4):
            node = await nodes.start(number)
            dead.append(node.node_id)
        for number, node_id in zip((3, 4), dead, strict=True):
            await until(
                lambda node_id=node_id: all(
                    one.pool.pool.tables.node(node_id) for one in nodes.running.values()
                )
            )
            await nodes.stop(number)
        ids = [one.hex().encode() for one in dead]
        before = nodes.group(0).replica.configuration
        leader, answer = await nodes.admin(
            b"GROUP", b"ADD", b"1", *ids, final=b"-NOTREADY"
        )  # fmt: skip
        assert answer.startswith(b"-NOTREADY"), answer
        assert all(node_id in answer for node_id in ids)
        assert leader.groups.numbered[FIRST_GROUP].replica.configuration == before
        assert (await nodes.ask(b"SET", b"key", b"2")).code is Code.OK


async def test_all_nodes_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        for number in range(20):
            await nodes.ask(b"SET", b"key", b"%d" % number)
        for number in range(3):
            await nodes.stop(number)
        for number in range(3):
            await nodes.start(number)
        assert (await nodes.ask(b"GET", b"key")).value == b"=19"


async def test_no_quorum_no_answer(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await nodes.ask(b"SET", b"key", b"1")
        primary = await nodes.leader()
        for number in {0, 1, 2} - {primary}:
            await nodes.stop(number)
        reply = await ask(nodes.group(primary), b"SET", b"key", b"2")
        assert reply.code in (Code.UNKNOWN, Code.NOQUORUM, Code.NOTPRIMARY)
        await nodes.start((primary + 1) % 3)
        await nodes.ask(b"SET", b"key", b"3")
        assert (await nodes.ask(b"GET", b"key")).value == b"=3"


async def test_a_node_whose_member_was_replaced_raises_no_alarm(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        replaced = (await nodes.leader() + 1) % 3
        await nodes.start(3)
        ids = [nodes.running[number].node_id for number in (replaced, 3)]
        pools = [node.pool.pool for node in nodes.running.values()]
        await until(lambda: all(len(pool.tables.nodes) == 4 for pool in pools))
        _, answer = await nodes.admin(
            b"GROUP", b"REPLACE", b"1", *(one.hex().encode() for one in ids)
        )
        assert answer.startswith(b"*"), answer
        report = nodes.group(replaced).replica.report
        await until(lambda: report().role == "retired")
        figures = nodes.running[replaced].figures()
        assert (figures["coord_groups_impaired"], figures["coord_fault_tolerance"]) == (0, 0)
        await until(lambda: nodes.running[3].figures()["coord_fault_tolerance"] == 1)


async def test_a_node_whose_member_was_replaced_names_the_primary_to_its_clients(
    tmp_path: Path,
) -> None:
    async with Nodes(tmp_path) as nodes:
        replaced = await nodes.leader()
        await nodes.start(3)
        node, ids = nodes.running[replaced], [nodes.running[n].node_id for n in (replaced, 3)]
        pools = [one.pool.pool for one in nodes.running.values()]
        await until(lambda: all(len(pool.tables.nodes) == 4 for pool in pools))
        await nodes.admin(b"GROUP", b"REPLACE", b"1", *(one.hex().encode() for one in ids))
        await until(lambda: nodes.group(replaced).replica.report().role == "retired")
        await until(lambda: node.requests.where(FIRST_GROUP).address)
        addresses = {b"127.0.0.1:%d" % p for n, p in nodes.coord_ports.items() if n != replaced}
        reader, writer = await asyncio.open_connection("127.0.0.1", nodes.coord_ports[replaced])
        for command in (b"GET k", b"GET k STALEREAD", b"SET k v", b"SUBSCRIBE /a/b"):
            writer.write(command + b"\r\n")
            async with asyncio.timeout(STALE_WAIT_MS / 1000 / 2):  # at once
                answer = (await reader.readline()).split()
            assert answer[:2] == [b"-NOTPRIMARY", b"1"], answer
            assert answer[3] in addresses
        begun = node.requests.subscribe(FIRST_GROUP, *[None] * 3)  # type: ignore[arg-type]
        assert begun.code is Code.NOTPRIMARY, "it would hear nothing"
        writer.close()


@pytest.mark.parametrize("port", ["clients", "nodes"])
async def test_a_connection_without_a_handshake_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    for module in (coordinator, peers):
        monkeypatch.setattr(module, "LOGIN_S_MAX", 0.05)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening = bound()
    place = listening.getsockname()
    if port == "clients":
        ends = Listening(coord=listening, tls=tls)
    else:
        ends = Listening(peer=listening, peer_tls=(tls, tls))
    node = await Coordinator.start(tmp_path, ends)
    reader, writer = await asyncio.open_connection(*place)
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    await node.stop()
