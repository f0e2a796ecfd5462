"""Directories of real nodes that are set back to an older copy, or copied and started twice."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination.aio import coordinator
from millstream.coordination.aio.coordinator import Coordinator, Listening
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.coordination.core.pool.group_check import check_group
from millstream.data_directory.unchanged_disk import UnchangedDisk
from millstream.vsr.core.effects import Code
from millstream.vsr.core.replica.member import Status
from support.coordination.coordinators import Nodes, admin, bound, until
from support.kv.talking import done, follow

REFUSED = "takes part in nothing any more"


def copy_used(directory: Path, to: Path) -> None:
    """Copy a directory that is written to; what has gone meanwhile is not in the copy."""

    def copy(source: str, target: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copy2(source, target)

    shutil.copytree(directory, to, copy_function=copy)


def marks(nodes: list[Coordinator], node_id: bytes) -> list[int]:
    """Return which process of a node others know."""
    return [one.pool.pool.tables.node(node_id).incarnation for one in nodes]


def refused_at(node: Coordinator, other: bytes) -> Any:
    return node.pool.pool.incarnations.refused.get(other)


async def test_a_directory_that_was_set_back_does_not_vote_until_the_right_one_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with Nodes(tmp_path / "nodes") as nodes:
        leader = await nodes.leader()
        number = (leader + 1) % 3
        place, older, newer = (
            tmp_path / "nodes" / str(number),
            tmp_path / "older",
            tmp_path / "newer",
        )
        await nodes.stop(number)
        shutil.copytree(place, older)
        await nodes.start(number)
        lsn = (await nodes.ask(b"SET", b"key", b"acknowledged")).lsn
        await until(lambda: nodes.group(number).replica.commit_lsn >= lsn)
        await nodes.stop(number)
        place.rename(newer)
        shutil.copytree(older, place)
        node = await nodes.start(number)
        others = [one for one in nodes.running.values() if one is not node]
        await until(lambda: all(refused_at(other, node.node_id) for other in others))
        await until(lambda: node.pool.pool.incarnations.own_refusal and not node.groups.running)
        assert REFUSED in caplog.text
        assert f"claims to be node {node.node_id.hex()} is refused" in caplog.text
        assert b"set back" in await admin(node, b"STATUS")
        assert b"set back" in await admin(node, b"STATUS", b"1")
        assert b"set back" in await admin(others[0], b"NODES")
        assert (
            node.figures()["coord_nodes_refused"]
            == others[0].figures()["coord_nodes_refused"]
            == 1
        )
        del nodes.running[number]
        assert (await nodes.ask(b"SET", b"key", b"later")).code is Code.OK
        await node.stop()
        shutil.rmtree(place)
        newer.rename(place)
        node = await nodes.start(number)
        lsn = nodes.group(await nodes.leader()).replica.commit_lsn
        await until(lambda: nodes.group(number).replica.status is Status.NORMAL)
        await until(lambda: nodes.group(number).replica.commit_lsn >= lsn)
        assert not node.pool.pool.incarnations.own_refusal
        await until(lambda: not any(refused_at(other, node.node_id) for other in others))
        assert not nodes.fatal


async def test_a_copy_that_is_started_beside_its_original_is_refused_for_good(
    tmp_path: Path,
) -> None:
    async with Nodes(tmp_path / "nodes") as nodes:
        leader = await nodes.leader()
        number = (leader + 1) % 3
        original, place = nodes.running[number], tmp_path / "copy"
        copy_used(tmp_path / "nodes" / str(number), place)

        async def start() -> Coordinator:
            peer = bound()
            listening = Listening(peer=peer, host="127.0.0.1", peer_port=peer.getsockname()[1])
            return await Coordinator.start(place, listening)

        copy = await start()
        others = [one for one in nodes.running.values() if one is not original]
        await until(lambda: all(refused_at(other, copy.node_id) for other in others))
        await until(
            lambda: "copied" in copy.pool.pool.incarnations.own_refusal and not copy.groups.running
        )
        assert not original.pool.pool.incarnations.own_refusal
        assert nodes.group(number).replica.status is Status.NORMAL
        assert (await nodes.ask(b"SET", b"key", b"1")).code is Code.OK
        await copy.stop()
        await nodes.stop(number)
        copy = await start()
        assert copy.pool.pool.incarnations.own_refusal
        assert FIRST_GROUP not in copy.groups.numbered
        await nodes.start(number)
        lsn = (await nodes.ask(b"SET", b"key", b"2")).lsn
        await until(lambda: nodes.group(number).replica.commit_lsn >= lsn)
        await copy.stop()
        assert not nodes.fatal


async def test_a_directory_that_was_moved_to_another_address_is_taken(tmp_path: Path) -> None:
    async with Nodes(tmp_path / "nodes") as nodes:
        number = (await nodes.leader() + 1) % 3
        await nodes.stop(number)
        del nodes.ports[number]
        node = await nodes.start(number)
        lsn = (await nodes.ask(b"SET", b"key", b"1")).lsn
        await until(lambda: nodes.group(number).replica.commit_lsn >= lsn)
        assert not node.pool.pool.incarnations.own_refusal
        assert not any(refused_at(one, node.node_id) for one in nodes.running.values())


async def test_a_copy_made_while_the_node_worked_is_older_than_what_others_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start came in between: the node says now and then that its directory is newer."""
    monkeypatch.setattr(coordinator, "MARK_S", 0.1)
    async with Nodes(tmp_path / "nodes") as nodes:
        number = (await nodes.leader() + 1) % 3
        place, older = tmp_path / "nodes" / str(number), tmp_path / "older"
        copy_used(place, older)
        node_id = nodes.running[number].node_id
        others = [one for other, one in nodes.running.items() if other != number]
        for _ in range(2):  # the copy may have one mark that others do not know yet
            known = max(marks(others, node_id))
            await nodes.ask(b"SET", b"key", b"acknowledged")
            await until(lambda known=known: min(marks(others, node_id)) > known)
        await nodes.stop(number)
        shutil.rmtree(place)
        shutil.copytree(older, place)
        node = await nodes.start(number)
        await until(lambda: all(refused_at(other, node_id) for other in others))
        await until(lambda: node.pool.pool.incarnations.own_refusal and not node.groups.running)
        await nodes.running.pop(number).stop()
        assert not nodes.fatal


@pytest.mark.parametrize("what", ["folder", "coord"])
async def test_files_of_a_group_that_were_set_back_alone_are_told_from_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """In a pool of one node, and however young the copy is."""
    async with Nodes(tmp_path / "nodes", 1) as nodes:
        (group_id,) = nodes.running[0].groups.running
        coord = tmp_path / "nodes" / "0"
        place = coord / group_id.hex() if what == "folder" else coord
        await nodes.ask(b"SET", b"key", b"before")
        copy_used(place, tmp_path / "older")  # while it works, as a snapshot of a disk
        await nodes.ask(b"SET", b"key", b"acknowledged")
        await nodes.stop(0)
        place.rename(tmp_path / "newer")
        shutil.copytree(tmp_path / "older", place)
        node = await nodes.start(0)
        await until(lambda: group_id in node.pool.set_back)
        assert not node.groups.running
        assert "is an older copy of itself" in caplog.text
        assert b"is an older copy of itself" in await admin(node, b"STATUS", b"1")
        assert node.figures()["coord_groups_stuck"] == 1
        await nodes.stop(0)
        check = check_group(UnchangedDisk(coord / group_id.hex()), group_id.hex(), None,
                            UnchangedDisk(coord.with_name("0.reached")))  # fmt: skip
        assert "is an older copy of itself" in check.damage
        shutil.rmtree(place)
        (tmp_path / "newer").rename(place)
        await nodes.start(0)
        await until(lambda: nodes.running[0].groups.numbered[FIRST_GROUP].replica.leading)
        assert (await nodes.ask(b"GET", b"key")).value == b"=acknowledged"
        assert not nodes.fatal


async def test_a_client_that_saw_more_than_a_member_has_gets_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole data directory was set back: only clients can know."""
    data = tmp_path / "data"
    async with Nodes(data, 1) as nodes:
        await done(nodes, "CREATENAMESPACE", "/app")
        await done(nodes, "CREATE", "BINARY", "/app/x")
        await nodes.stop(0)
        shutil.copytree(data, tmp_path / "older")
        await nodes.start(0)
        for number in range(20):
            await done(nodes, "PUT", "/app/x", f"{number}")
        version, _ = await follow(nodes, "GET", "/app/x", "CAS")
        await nodes.stop(0)
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "older", data)
        node = await nodes.start(0)
        await nodes.leader()
        lsn = version.decode().rpartition(":")[2]
        for words in (
            ("SEEN", version, "GET", "/app/x", "STALEREAD"), ("SUBSCRIBE", "/app/x", "FROM", lsn),
        ):  # fmt: skip
            assert (await follow(nodes, *words)).startswith("HISTORY_LOST ")
        assert "was set back to an older copy" in caplog.text
        assert b"was set back" in await admin(node, b"STATUS", b"1")
        for number in range(20):
            await done(nodes, "PUT", "/app/x", f"other {number}")
        said = await follow(nodes, "PUT", "/app/x", "mine", "CAS", version)
        assert said.startswith("CAS_MISMATCH"), "versions are not given twice"


async def test_a_member_of_three_whose_folder_was_set_back_votes_for_nothing(
    tmp_path: Path,
) -> None:
    async with Nodes(tmp_path / "nodes") as nodes:
        number = (await nodes.leader() + 1) % 3
        (group_id,) = nodes.running[number].groups.running
        place = tmp_path / "nodes" / str(number) / group_id.hex()
        await nodes.stop(number)
        shutil.copytree(place, tmp_path / "older")
        await nodes.start(number)
        lsn = (await nodes.ask(b"SET", b"key", b"acknowledged")).lsn
        await until(lambda: nodes.group(number).replica.commit_lsn >= lsn)
        await nodes.stop(number)
        place.rename(tmp_path / "newer")
        shutil.copytree(tmp_path / "older", place)
        node = await nodes.start(number)
        await until(lambda: group_id in node.pool.set_back)
        assert not node.pool.pool.incarnations.own_refusal, "its other groups go on"
        assert (await nodes.ask(b"SET", b"key", b"later")).code is Code.OK
        assert not nodes.fatal
