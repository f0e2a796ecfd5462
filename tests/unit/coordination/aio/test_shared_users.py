"""Users of a cluster: changed on any node, known on all of them."""

import asyncio
from pathlib import Path

import pytest

from millstream.access.users import UserStore
from millstream.coordination import Client
from millstream.coordination.aio import shared_users
from millstream.coordination.aio.coordinator import Coordinator
from millstream.coordination.aio.shared_users import USERS_PATH
from millstream.coordination.core.backend import UserChange
from millstream.errors import AccessError
from support.coordination.coordinators import Nodes, until

SECRET = "a secret of the nodes"


class NodesWithUsers(Nodes):
    """Each with a record of its own, and the cluster's secret."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.users = [
            UserStore(directory / f"{number}.json", node_secret=SECRET) for number in range(3)
        ]

    async def start(self, number: int) -> Coordinator:
        self.options = {"users": self.users[number], "secret": SECRET}
        return await super().start(number)

    async def change(self, number: int, change: UserChange | str) -> bytes:
        guard, answer = self.running[number]._guard, asyncio.get_running_loop().create_future()
        if isinstance(change, str):
            guard.delete_user(change, answer.set_result)
        else:
            guard.set_user(change, answer.set_result)
        found: bytes = await asyncio.wait_for(answer, 60)
        return found

    async def until_all(self, name: str, password: str) -> None:
        await until(lambda: all(one.check_password(name, password) for one in self.users))


async def test_a_change_at_one_node_reaches_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_users, "SHARED_S", 0.02)
    async with NodesWithUsers(tmp_path) as nodes:
        assert (await nodes.change(0, UserChange("bob", "pw"))).startswith(b"-CONFLICT")
        assert await nodes.change(0, UserChange("ada", "pw", ("admin",))) == b"+OK"
        await nodes.until_all("ada", "pw")
        first = UserChange("bob", "s3cret", groups=("staff",))
        replies = await asyncio.gather(
            nodes.change(1, first), nodes.change(2, UserChange("eve", "pw")),
            nodes.change(0, UserChange("ada", "other")),
        )  # fmt: skip
        assert replies == [b"+OK"] * 3
        for name, password in (("bob", "s3cret"), ("eve", "pw"), ("ada", "other")):
            await nodes.until_all(name, password)
        assert {one.get("bob").groups for one in nodes.users if one.get("bob")} == {("staff",)}
        assert await nodes.change(2, "bob") == b"+OK"
        assert (await nodes.change(2, "bob")).startswith(b"-ERROR_DOES_NOT_EXISTS")
        assert (await nodes.change(1, "ada")).startswith(b"-CONFLICT")
        await until(lambda: not any(one.get("bob") for one in nodes.users))

        nodes.users[2].put("joe", "pw", ["read:b"])  # as over HTTP, by another process
        nodes.running[2].user_changed("joe")
        await nodes.until_all("joe", "pw")

        address = f"127.0.0.1:{nodes.coord_ports[1]}"
        async with Client([address], user="joe", password="pw") as joe:
            for words in ((b"GET", USERS_PATH), (b"GET", USERS_PATH, b"STALEREAD")):
                with pytest.raises(AccessError):
                    await joe.execute(*words, is_change=False)
        async with Client([address], user="ada", password="other") as ada:
            kept = await ada.execute(b"GET", USERS_PATH, is_change=False)
        assert b"s3cret" not in kept
        assert b'"bob":null' in kept
    assert nodes.fatal == []


async def test_users_from_before_others_joined_are_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_users, "SHARED_S", 0.02)
    monkeypatch.setattr(shared_users, "SHARED_FAR_S", 0.05)
    nodes = NodesWithUsers(tmp_path)
    nodes.users[0].put("ada", "pw", ["admin"])
    nodes.users[0].put("bob", "s3cret", ["read:b"])
    nodes.users[1].put("ada", "other", ["admin"])
    nodes.users[1].put("eve", "pw", ["read:b"])
    async with nodes:
        await nodes.until_all("ada", "pw")
        await nodes.until_all("bob", "s3cret")
        assert [bool(one.get("eve")) for one in nodes.users] == [False, True, False]
    assert nodes.fatal == []


async def test_what_changed_while_a_node_was_alone_is_newer_than_what_was_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_users, "SHARED_S", 0.02)
    async with NodesWithUsers(tmp_path) as nodes:
        for name in ("ada", "bob", "joe"):
            await nodes.change(0, UserChange(name, "pw", ("admin",)))
        await nodes.until_all("joe", "pw")
        shared = nodes.running[0]._guard.shared
        assert shared is not None
        monkeypatch.setattr(shared, "is_shared", lambda: False)
        assert await nodes.change(0, UserChange("bob", "new")) == b"+OK"
        assert await nodes.change(0, "joe") == b"+OK"
        monkeypatch.undo()
        await nodes.until_all("bob", "new")
        await until(lambda: not any(one.get("joe") for one in nodes.users))
    assert nodes.fatal == []


async def test_users_that_others_have_changed_are_not_set_back_by_the_node_that_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_users, "SHARED_S", 0.02)
    async with NodesWithUsers(tmp_path) as nodes:
        for name in ("ada", "bob", "joe"):
            await nodes.change(0, UserChange(name, "pw", ("admin",)))
        await nodes.until_all("joe", "pw")
        assert await nodes.change(1, UserChange("bob", "new")) == b"+OK"
        assert await nodes.change(1, "joe") == b"+OK"
        nodes.users[0].put("eve", "pw", ["read:b"])  # unknown to the element
        await nodes.until_all("eve", "pw")
        await nodes.until_all("bob", "new")
        await until(lambda: not any(one.get("joe") for one in nodes.users))
    assert nodes.fatal == []
