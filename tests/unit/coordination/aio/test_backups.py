"""`coordination.aio.backups`: a group's state goes to a file and begins another group."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.aio import backups
from millstream.vsr.core.effects import Code
from millstream.vsr.core.values import items
from support.coordination.coordinators import Nodes, admin, ask, until

REGISTERS = {b"a": b"1", b"b": b"2" * 100_000}


async def backed_up(nodes: Nodes, file: Path) -> Any:
    for key, value in REGISTERS.items():
        assert (await nodes.ask(b"SET", key, value)).code is Code.OK
    return await admin(nodes.running[0], b"BACKUP", b"1", str(file).encode())


async def test_a_restored_group_has_the_state_and_grows_on(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    async with Nodes(tmp_path / "nodes", 1) as nodes:
        lsn = await backed_up(nodes, file)
        assert lsn.startswith(b":")
        node = nodes.running[0]
        assert (await nodes.ask(b"SET", b"a", b"later")).code is Code.OK
        assert await admin(node, b"RESTORE", b"9", str(file).encode()) == lsn
        runner = await until(lambda: node.groups.numbered.get(9))
        await until(lambda: runner.replica.leading)
        for key, value in REGISTERS.items():
            assert (await ask(runner, b"GET", key)).value == b"=" + value
        _, before = items((await ask(runner, b"GET", b"a", b"META")).value)
        changed = await ask(runner, b"SET", b"a", b"now")
        assert changed.lsn > int(lsn[1:])
        _, after = items((await ask(runner, b"GET", b"a", b"META")).value)
        assert json.loads(b"[" + after[1:].replace(b":", b",") + b"]") > json.loads(
            b"[" + before[1:].replace(b":", b",") + b"]"
        )
        await nodes.stop(0)
        node = await nodes.start(0)
        runner = await until(lambda: node.groups.numbered.get(9))
        await until(lambda: runner.replica.leading)
        assert (await ask(runner, b"GET", b"a")).value == b"=now"


async def test_a_group_of_which_all_members_are_lost_is_restored_on_a_new_node_under_its_number(
    tmp_path: Path,
) -> None:
    """Also group 1, which has the names of all namespaces: they can be made and found again."""
    file = tmp_path / "backup"
    async with Nodes(tmp_path / "lost", 1) as nodes:
        async with AsyncClient([f"127.0.0.1:{nodes.coord_ports[0]}"]) as client:
            await client.create_namespace("/app")
            await client.create("/app/port", b"8080")
        assert (await admin(nodes.running[0], b"BACKUP", b"1", str(file).encode()))[:1] == b":"
    async with Nodes(tmp_path / "new", 1) as nodes:
        node = nodes.running[0]
        assert await admin(node, b"GROUP", b"DELETE", b"1", b"CONFIRM", b"1") == b"+OK"
        assert (await admin(node, b"RESTORE", b"1", str(file).encode()))[:1] == b":"
        async with AsyncClient([f"127.0.0.1:{nodes.coord_ports[0]}"]) as client:
            assert (await client.get("/app/port"))[0] == b"8080"
            await client.create_namespace("/more")
            await client.create("/more/x", b"1")
            assert (await client.get("/more/x"))[0] == b"1"


async def test_a_restored_group_is_given_to_new_members(tmp_path: Path) -> None:
    async with Nodes(tmp_path / "nodes", 3) as nodes:
        for key, value in REGISTERS.items():
            assert (await nodes.ask(b"SET", key, value)).code is Code.OK
        made: list[tuple[int, Path, bytes]] = []

        async def back_up(number: int) -> None:
            file = tmp_path / f"backup {len(made)}"
            lsn = await admin(nodes.running[number], b"BACKUP", b"1", str(file).encode())
            made.append((number, file, lsn))
            assert lsn.startswith(b":"), lsn

        await nodes.while_one_leads(back_up)
        number, file, lsn = made[-1]
        leader = nodes.running[number]
        assert await admin(leader, b"RESTORE", b"9", str(file).encode()) == lsn
        first = await until(lambda: leader.groups.numbered.get(9))
        await until(lambda: first.replica.leading and first.replica.commit_lsn > int(lsn[1:]))
        await nodes.known(9)
        others = [
            one.node_id.hex().encode() for one in nodes.running.values() if one is not leader
        ]
        _, answer = await nodes.admin(b"GROUP", b"ADD", b"9", *others)
        assert not answer.startswith(b"-"), answer
        for one in nodes.running.values():
            runner = await until(lambda one=one: one.groups.numbered.get(9))
            await until(lambda runner=runner: runner.replica.machine.registers.values.get(b"a"))
            found = {key: runner.replica.machine.registers.values.get(key)[0] for key in REGISTERS}
            assert found == REGISTERS


async def test_failures_to_write_or_read_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    async with Nodes(tmp_path / "nodes", 1) as nodes:
        await backed_up(nodes, file)
        node = nodes.running[0]
        content = file.read_bytes()
        again = await admin(node, b"BACKUP", b"1", str(file).encode())
        assert again.startswith(b"-ERR")
        assert file.read_bytes() == content
        precious = tmp_path / "precious"
        precious.write_bytes(b"precious")
        (tmp_path / "second.new").symlink_to(precious)
        second = str(tmp_path / "second").encode()
        assert (await admin(node, b"BACKUP", b"1", second)).startswith(b":")
        assert (tmp_path / "second").read_bytes().startswith(content[:8])
        (tmp_path / "third").symlink_to(tmp_path / "dangling")
        third = str(tmp_path / "third").encode()
        assert (await admin(node, b"BACKUP", b"1", third)).startswith(b"-ERR")
        assert precious.read_bytes() == b"precious"
        assert sorted(one.name for one in tmp_path.iterdir()) == [  # noqa: ASYNC240
            "backup", "nodes", "precious", "second", "second.new", "third",
        ]  # fmt: skip
        nowhere = str(tmp_path / "no" / "where").encode()
        assert (await admin(node, b"BACKUP", b"1", nowhere)).startswith(b"-ERR")
        assert (await admin(node, b"BACKUP", b"1", b"relative")).startswith(b"-BADARG")
        assert (await admin(node, b"RESTORE", b"9", nowhere)).startswith(b"-ERR")
        assert (await admin(node, b"RESTORE", b"9", b"relative")).startswith(b"-BADARG")
        os.mkfifo(tmp_path / "pipe")
        for never in (str(tmp_path / "pipe").encode(), b"/dev/zero"):
            asked = admin(node, b"RESTORE", b"9", never)
            assert (await asyncio.wait_for(asked, 60)).startswith(b"-ERR")
        for name in (b"/tmp/a\0b", b"/tmp/a\xff", b""):
            for command in ((b"BACKUP", b"1"), (b"RESTORE", b"9")):
                assert (await admin(node, *command, name)).startswith(b"-BADARG")
        file.write_bytes(content[:-1])
        assert b"no backup" in await admin(node, b"RESTORE", b"9", str(file).encode())
        assert 9 not in node.groups.numbered
        assert not node.pool.pool.tables.numbered(9)


async def test_every_failure_of_a_file_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(backups, "read_backup", fails)
    file = tmp_path / "backup"
    file.write_bytes(b"")
    async with Nodes(tmp_path / "nodes", 1) as nodes:
        answer = await admin(nodes.running[0], b"RESTORE", b"9", str(file).encode())
        assert answer.startswith(b"-ERR restoring a group failed")
        assert (await admin(nodes.running[0], b"STATUS")).startswith(b"%")
