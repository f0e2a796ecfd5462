"""The file service on sockets, with a node's groups behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from millstream.access.users import UserStore
from millstream.coordination.aio.ninep_server import CONNECTIONS_MAX, NinepServer
from millstream.coordination.core.ninep.fids import ATTACHES_MAX, FIDS_MAX
from millstream.coordination.core.ninep.packets import Kind
from support.coordination.coordinators import Nodes, until
from support.coordination.ninep_client import NinepClient, Refused

READ, WRITE, UNLOCK = 0, 1, 2
BLOCK = 1
SUCCESS, BLOCKED, ERROR = 0, 1, 2


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[Nodes]:
    """One node with a namespace `/app`."""
    async with Nodes(directory, size=1) as nodes:
        async with NinepClient(nodes.ninep_ports[0]) as files:
            await files.ask(Kind.Tmkdir, 0, b"app", 0o755, 0)
        yield nodes


class GuardDouble:
    asks = True


class ConnectionDouble:
    def __init__(self, *, is_stranger: bool) -> None:
        self.is_stranger = is_stranger
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


async def test_the_oldest_stranger_goes_for_a_newcomer() -> None:
    server = NinepServer("127.0.0.1:1", GuardDouble())  # type: ignore[arg-type]
    some = [ConnectionDouble(is_stranger=n > 0) for n in range(CONNECTIONS_MAX)]
    for one in some:
        assert server.enter(one)  # type: ignore[arg-type]
    assert server.enter(ConnectionDouble(is_stranger=True))  # type: ignore[arg-type]
    assert [n for n, one in enumerate(some) if one.is_cut] == [1]
    for one in some:
        one.is_stranger = False
    server.leave(next(one for one in server._connections if one.is_stranger))
    assert server.enter(ConnectionDouble(is_stranger=False))  # type: ignore[arg-type]
    assert not server.enter(ConnectionDouble(is_stranger=True))  # type: ignore[arg-type]


async def test_elements_are_directories(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes, NinepClient(nodes.ninep_ports[0], "/app") as files:
        for number in range(300):
            await files.ask(Kind.Tmkdir, 0, b"%03d" % number, 0o755, 0)
        listed = await files.ls("/", count=2000)
        assert [name for name in listed if not name.startswith(".")] == [
            f"{number:03}" for number in range(300)
        ]
        assert len({number for number, _ in list(listed.values())[2:]}) == len(listed) - 2
        with pytest.raises(Refused, match="17"):
            await files.ask(Kind.Tmkdir, 0, b"007", 0o755, 0)
        with pytest.raises(Refused, match="2"):
            await files.walk("nothing")


async def test_data_is_written_and_read(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes, NinepClient(nodes.ninep_ports[0], "/app") as files:
        await files.ask(Kind.Tmkdir, 0, b"key", 0o755, 0)
        await files.put("key/.data", b"hello")
        assert await files.cat("key/.data") == b"hello"
        before = await files.cat("key/.version")
        fid = await files.open("key/.data", 0o1001)
        await files.ask(Kind.Twrite, fid, 0, b"one ")
        await files.ask(Kind.Twrite, fid, 4, b"two")
        with pytest.raises(Refused, match="22"):
            await files.ask(Kind.Twrite, fid, 100, b"beyond the end")
        assert await files.cat("key/.data") == b"one two"
        assert await files.cat("key/.version") != before
        walked = await files.walk("key/.data")
        attributes = await files.ask(Kind.Tgetattr, walked, 0x7FF)
        assert attributes[7] == 7
        await files.ask(Kind.Tsetattr, walked, 8, 0, 0, 0, 0, 0, 0, 0, 0)
        assert await files.cat("key/.data") == b""


async def test_writes_sent_at_once_are_done_in_order(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes, NinepClient(nodes.ninep_ports[0], "/app") as files:
        await files.ask(Kind.Tmkdir, 0, b"key", 0o755, 0)
        fid = await files.open("key/.data", 1)
        tags = [files.send(Kind.Twrite, fid, at, b"%d" % at) for at in range(10)]
        for tag in tags:
            assert await files.reply(tag) == (1,)
        assert await files.cat("key/.data") == b"0123456789"


async def test_elements_move_and_keep_their_number(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes, NinepClient(nodes.ninep_ports[0], "/app") as files:
        (qid,) = await files.ask(Kind.Tmkdir, 0, b"a", 0o755, 0)
        await files.ask(Kind.Tmkdir, 0, b"b", 0o755, 0)
        inside = await files.walk("b")
        await files.ask(Kind.Trenameat, 0, b"a", inside, b"c")
        held = await files.walk("b/c")
        assert (await files.ls("b"))["c"][0] == qid.path
        await files.ask(Kind.Trename, held, 0, b"d")
        assert (await files.ask(Kind.Tgetattr, held, 0x7FF))[1].path == qid.path
        with pytest.raises(Refused, match="17"):
            await files.ask(Kind.Trenameat, 0, b"d", 0, b"b")
        with pytest.raises(Refused, match="21"):
            await files.ask(Kind.Tunlinkat, 0, b"d", 0)
        await files.ask(Kind.Tunlinkat, 0, b"d", 0x200)
        await files.ask(Kind.Tremove, inside)
        assert not [name for name in await files.ls("/") if not name.startswith(".")]


async def test_commands_are_written_to_ctl(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes, NinepClient(nodes.ninep_ports[0], "/app") as files:
        assert await files.ctl("/", "create counter unsigned hits") == b"OK\n"
        await files.put("hits/.value", b"+5\n", 1)
        await files.put("hits/.value", b"-2\n", 1)
        assert await files.cat("hits/.value") == b"3\n"
        await files.put("hits/.value", b"0\n", 1)
        assert await files.cat("hits/.data") == b"0\n"
        assert await files.ctl("/", "create queue jobs") == b"OK\n"
        await files.ctl("jobs", "queue push 'one two' three")
        assert await files.ctl("jobs", "queue pop 2") == b"one two\nthree\n"
        for line in ("get /other", "session close", "create", "nonsense", "'"):
            with pytest.raises(Refused, match=r"13|22"):
                await files.ctl("/", line)
        await files.put("jobs/.config", b"LIMIT.ITEMS 5\n", 1)
        assert b"LIMIT.ITEMS 5\n" in await files.cat("jobs/.config")
        await files.put("jobs/.acl", b"mode 0700\n", 1)
        assert b"mode 0700\n" in await files.cat("jobs/.acl")
        with pytest.raises(Refused, match="2"):
            await files.walk("jobs/.value")


async def test_names_are_escaped(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes, NinepClient(nodes.ninep_ports[0], "/app") as files:
        await files.ctl("/", "create binary .data")
        await files.ctl("/", "create binary 100%")
        assert {"%2Edata", "100%25"} <= (await files.ls("/")).keys()
        await files.put("%2Edata/.data", b"x")
        for name in ("100%", "%2edata", "%41"):
            with pytest.raises(Refused, match="2"):
                await files.walk(name)


async def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(node(tmp_path))
        port = nodes.ninep_ports[0]
        one = await stack.enter_async_context(NinepClient(port, "/app"))
        two = await stack.enter_async_context(NinepClient(port, "/app"))
        await one.ask(Kind.Tmkdir, 0, b"key", 0o755, 0)
        mine, yours = await one.open("key/.data"), await two.walk("key/.data")
        assert await one.lock(mine, WRITE) == SUCCESS
        assert await two.lock(yours, WRITE) == BLOCKED
        assert (await two.ask(Kind.Tgetlock, yours, WRITE, 0, 0, 1, b""))[0] == WRITE
        assert (await two.ask(Kind.Tlock, yours, WRITE, 0, 5, 1, 1, b"")) == (ERROR,)
        with pytest.raises(Refused, match="16"):
            await two.put("key/.data", b"not now")
        waiting = two.send(Kind.Tlock, yours, WRITE, BLOCK, 0, 0, 1, b"")
        await until_waiting(one, mine)
        assert not two.has_reply(waiting)
        assert await one.lock(mine, UNLOCK) == SUCCESS
        assert await two.reply(waiting) == (SUCCESS,)
        await two.ask(Kind.Tclunk, yours)
        assert await one.lock(mine, READ) == SUCCESS


async def until_waiting(files: NinepClient, fid: int, count: int = 1) -> None:
    """Wait until so many wait for the lock of `/app/key`."""
    async with asyncio.timeout(60):
        while True:
            shown = await files.ctl("key", "lock info")
            waiting = shown.partition(b"waiting ")[2].split(b"\n")[0]
            if waiting.count(b'"') == 2 * count:
                return


async def test_a_flush_and_a_cut_give_up_what_is_waited_for(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(node(tmp_path))
        port = nodes.ninep_ports[0]
        one = await stack.enter_async_context(NinepClient(port, "/app"))
        await one.ask(Kind.Tmkdir, 0, b"key", 0o755, 0)
        mine = await one.walk("key/.data")
        assert await one.lock(mine, WRITE) == SUCCESS
        two = await stack.enter_async_context(NinepClient(port, "/app"))
        yours = await two.walk("key/.data")
        waiting = two.send(Kind.Tlock, yours, WRITE, BLOCK, 0, 0, 1, b"")
        await until_waiting(one, mine)
        assert await two.ask(Kind.Tflush, waiting) == ()
        assert not two.has_reply(waiting)
        await until_waiting(one, mine, 0)
        two.send(Kind.Tlock, yours, WRITE, BLOCK, 0, 0, 1, b"")
        await until_waiting(one, mine)
        await two.close()
        await until_waiting(one, mine, 0)


async def test_the_session_ends_with_the_connection(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes:
        one = NinepClient(nodes.ninep_ports[0], "/app")
        async with one, NinepClient(nodes.ninep_ports[0], "/app") as two:
            await one.ctl("/", "create binary ephemeral here")
            assert "here" in await two.ls("/")
            await one.close()
            async with asyncio.timeout(60):
                while "here" in await two.ls("/"):
                    pass
        await until(lambda: not nodes.running[0].files.connections)


async def test_the_older_dialect(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes:
        files = NinepClient(nodes.ninep_ports[0], "/app", b"9P2000.u")
        await files.connect()
        assert files.greeting == (files.msize, b"9P2000")
        files.version = b"9P2000"
        await files.attach(0, b"/app")
        for name in (b"one", b"two"):
            fid = await files.walk("/")
            await files.ask(Kind.Tcreate, fid, name, 0x800001ED, 0)
        await files.put("one/.data", b"old style", 0x11)
        assert await files.cat("one/.data") == b"old style"
        directory = await files.read_fid(await files.open("/"))
        assert directory.count(b"one") == directory.count(b"two") == 1
        fid = await files.walk("one")
        (stat,) = await files.ask(Kind.Tstat, fid)
        same = bytearray(b"\xff" * len(stat))
        changed = bytes(same[:41]) + b"\x03\x00six" + 6 * b"\0"
        await files.ask(Kind.Twstat, fid, changed)
        assert await files.cat("six/.data") == b"old style"
        with pytest.raises(Refused, match="ERROR_DOES_NOT_EXISTS"):
            await files.walk("one")
        await files.close()


async def test_hostile_clients_are_cut_off(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x07\0\0\0\xfe\0\0"):
            reader, writer = await asyncio.open_connection("127.0.0.1", nodes.ninep_ports[0])
            writer.write(data)
            async with asyncio.timeout(60):
                with suppress(ConnectionError):
                    said = await reader.read()
                    assert not said or b"this port speaks 9P" in said
            writer.close()
        async with NinepClient(nodes.ninep_ports[0], "/app") as files:
            for fid in range(1, ATTACHES_MAX):
                await files.attach(fid, b"/app")
            with pytest.raises(Refused, match="122"):
                await files.attach(ATTACHES_MAX, b"/app")
            with pytest.raises(Refused, match="9"):
                await files.ask(Kind.Tclunk, 99)
            with pytest.raises(Refused, match="95"):
                await files.ask(Kind.Txattrwalk, 0, 99, b"user.x")


async def test_fids_run_out(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes, NinepClient(nodes.ninep_ports[0], "/app") as files:
        tags = [files.send(Kind.Twalk, 0, fid, ()) for fid in range(1, FIDS_MAX)]
        for tag in tags:
            await files.reply(tag)
        with pytest.raises(Refused, match="24"):
            await files.ask(Kind.Twalk, 0, FIDS_MAX + 5, ())
        await files.ask(Kind.Tclunk, 7)
        await files.ask(Kind.Twalk, 0, FIDS_MAX + 5, ())


async def test_users_log_in(tmp_path: Path) -> None:
    users = UserStore()
    await asyncio.to_thread(users.ensure_admin, "ada", "secret")
    async with Nodes(tmp_path, size=1, users=users) as nodes:
        files = NinepClient(nodes.ninep_ports[0])
        await files.connect()
        with pytest.raises(Refused, match="13"):
            await files.attach(0, b"/", b"ada")
        for secret in (b"wrong", b"secret"):
            await files.ask(Kind.Tauth, 5, b"ada", b"/", 0)
            await files.ask(Kind.Twrite, 5, 0, secret)
            if secret == b"wrong":
                with pytest.raises(Refused, match="13"):
                    await files.attach(0, b"/", b"ada", 5)
                await files.ask(Kind.Tclunk, 5)
        await files.attach(0, b"/", b"ada", 5)
        await files.ask(Kind.Tmkdir, 0, b"mine", 0o755, 0)
        assert b"owner ada" in await files.cat("mine/.acl")
        await files.close()
    async with node(tmp_path / "open") as nodes, NinepClient(nodes.ninep_ports[0]) as files:
        with pytest.raises(Refused, match="2"):
            await files.ask(Kind.Tauth, 5, b"ada", b"/", 0)


async def test_the_primary_is_followed(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        other = next(number for number in range(3) if number != nodes.primary())
        async with NinepClient(nodes.ninep_ports[other]) as files:
            await files.ask(Kind.Tmkdir, 0, b"app", 0o755, 0)
            await files.put("app/.ctl", b"create binary key", 1)
            await files.put("app/key/.data", b"from a backup")
        async with NinepClient(nodes.ninep_ports[await nodes.leader()], "/app/key") as files:
            assert await files.cat(".data") == b"from a backup"


async def test_a_node_that_stops_ends_the_sessions_of_those_who_are_connected(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as nodes:
        port = nodes.ninep_ports[0]
        connected = [NinepClient(port, "/app"), NinepClient(port, "/app")]
        for files in connected:
            await files.connect()
            await files.attach(0, b"/app")
            await files.ls("/")
    left = [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    assert not left
    for files in connected:
        await files.close()
