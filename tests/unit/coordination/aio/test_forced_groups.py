"""A group of real nodes that lost its majority goes on from its survivor, and grows again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.core.pool import discovery
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.errors import ConditionError
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.replica import forced_groups as forcing
from millstream.vsr.core.replica.member import Status
from support.coordination.coordinators import WAIT_S, Nodes, admin, until
from support.coordination.namespace_node import addresses, namespace_client

FORCE = (b"GROUP", b"FORCE", b"1")
CONFIRMED = (*FORCE, b"CONFIRM", b"1")


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of these tests ask again after 1.4 s at most: silence need not be as long."""
    monkeypatch.setattr(forcing, "LISTEN_MS", 2000.0)
    monkeypatch.setattr(discovery, "FRESH_MS", 1500)


class Lost:
    """Three nodes with a namespace, of which two have died; `survivor` is left."""

    def __init__(self, nodes: Nodes, survivor: int, heard: Any) -> None:
        self.nodes, self.survivor, self.heard = nodes, survivor, heard
        self.dead = [number for number in range(3) if number != survivor]

    @property
    def node(self) -> Any:
        return self.nodes.running[self.survivor]

    @property
    def replica(self) -> Any:
        return self.nodes.group(self.survivor).replica

    def client(self) -> AsyncClient:
        return AsyncClient([addresses(self.nodes)[self.survivor]], deadline_s=WAIT_S)

    async def force(self, *command: bytes) -> bytes:
        """Ask the survivor to go on alone, until it has listened for long enough."""
        async with asyncio.timeout(WAIT_S):
            while True:
                answer = await admin(self.node, *command)
                if not answer.startswith((b"-NOTREADY", b"-CONFLICT")):
                    return answer
                await asyncio.sleep(0.02)  # nobody tells: asked again


async def lost(nodes: Nodes, *, is_primary: bool) -> Lost:
    async with namespace_client(*addresses(nodes)) as client:
        await client.create("/app/port", b"8080")
        async with client.subscribe("/app", "TREE") as changes:
            await client.put("/app/port", b"8081")
            heard = await anext(changes)
    leader = await nodes.leader()
    survivor = leader if is_primary else (leader + 1) % 3
    lsn = heard.lsn
    await until(lambda: nodes.group(survivor).replica.commit_lsn >= lsn)
    for number in range(3):
        if number != survivor:
            await nodes.stop(number)
    return Lost(nodes, survivor, heard)


@pytest.fixture(params=[True, False], ids=["primary", "backup"])
async def group(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Lost]:
    async with Nodes(tmp_path / "nodes") as nodes:
        yield await lost(nodes, is_primary=request.param)


async def test_a_survivor_backs_up_what_it_has_and_names_no_wrong_node(
    group: Lost, tmp_path: Path
) -> None:
    """Errors of administration never send to the node that was asked."""
    await until(lambda: not group.node.pool.pool.state.leads(group.replica.group_id))
    own = f"127.0.0.1:{group.nodes.coord_ports[group.survivor]}".encode()
    for command in (
        (b"SNAPSHOT", b"1"), (b"GROUP", b"REMOVE", b"1", group.node.node_id.hex().encode()),
        (b"GROUP", b"DELETE", b"1", b"CONFIRM", b"1"),
    ):  # fmt: skip
        answer = await admin(group.node, *command)
        assert answer.startswith(b"-NOTPRIMARY 1 "), answer
        assert own not in answer
    file = tmp_path / "backup"
    answer = await admin(group.node, b"BACKUP", b"1", str(file).encode())
    assert b"of one member alone" in answer
    restored = await admin(group.node, b"RESTORE", b"2", str(file).encode())
    assert b"of one member alone" in restored
    runner = await until(lambda: group.node.groups.numbered.get(2))
    await until(lambda: runner.replica.leading)
    found = runner.replica.machine.state.elements.find((b"app", b"port"))
    assert found is not None


async def test_a_survivor_goes_on_and_plain_paths_and_names_work(group: Lost) -> None:
    """Nothing changes unconfirmed; watchers of what may be lost are told so."""
    epoch = group.replica.epoch
    for words in ((b"CONFIRM",), (b"CONFIRM", b"2"), (b"YES", b"1")):
        assert (await admin(group.node, *FORCE, *words)).startswith(b"-BADARG")
    assert b"may_be_lost" in await group.force(*FORCE)
    assert group.replica.epoch == epoch
    answer = await group.force(*CONFIRMED)
    assert b"may_be_lost" in answer, answer
    assert group.replica.leading
    assert generation(group.replica.epoch) > 0
    async with group.client() as client:
        data, _ = await client.get("/app/port")
        assert data == b"8081"
        await client.create_namespace("/more")
        await client.create("/more/x", b"1")
        assert (await client.get("/more/x"))[0] == b"1"
        for number in range(10):
            await client.put("/app/port", b"%d" % number)
        fork_lsn = group.replica.configuration.closed_lsn
        assert fork_lsn >= group.heard.lsn
        async with client.subscribe("/app", "TREE", after=group.heard.lsn) as changes:
            assert (await anext(changes)).lsn > group.heard.lsn
        for come_from in (fork_lsn + 5, group.replica.commit_lsn + 1000):
            changes = client.subscribe("/app", "TREE", after=come_from)
            with pytest.raises(ConditionError, match="HISTORY_LOST"):
                await changes.__aenter__()


@pytest.mark.slow
@pytest.mark.parametrize("group", [True], indirect=True)
async def test_old_members_that_come_back_are_refused_and_new_nodes_are_taken(
    group: Lost,
) -> None:
    await group.force(*CONFIRMED)
    for number in group.dead:
        await group.nodes.start(number)
    for number in group.dead:
        old = group.nodes.group(number).replica
        await until(lambda old=old: old.status is Status.RETIRED)
        assert not old.leading
        said = "forced to go on without this member"
        await until(lambda old=old, said=said: said in old.report().trouble)
    assert group.replica.leading
    group.nodes.size = 5
    added = [await group.nodes.start(number) for number in (3, 4)]
    ids = [node.node_id.hex().encode() for node in added]
    nodes = group.node.pool.pool.tables
    await until(lambda: all(nodes.node(node.node_id) is not None for node in added))
    await group.nodes.known(FIRST_GROUP)
    _, answer = await group.nodes.admin(b"GROUP", b"ADD", b"1", *ids)
    assert not answer.startswith(b"-"), answer
    for node in added:
        runner = await until(lambda node=node: node.groups.numbered.get(FIRST_GROUP))
        await until(lambda runner=runner: runner.replica.status is Status.NORMAL)
    for number in group.dead:
        assert await admin(group.nodes.running[number], b"LEAVE") == b"+OK"


@pytest.mark.slow
@pytest.mark.parametrize("group", [True], indirect=True)
async def test_old_members_hear_of_the_fork_from_any_node_and_do_not_split_the_group(
    group: Lost,
) -> None:
    """The survivor is away when they come back: they are a majority of what the group was."""
    await group.force(*CONFIRMED)
    group.nodes.ports[0] = group.nodes.ports[group.survivor]  # the one to join from now on
    numbers = [number for number in (3, 4, 5) if number not in (group.survivor, *group.dead)][:2]
    added = [await group.nodes.start(number) for number in numbers]
    nodes = group.node.pool.pool.tables
    await until(lambda: all(nodes.node(node.node_id) is not None for node in added))
    ids = [node.node_id.hex().encode() for node in added]
    _, answer = await group.nodes.admin(b"GROUP", b"ADD", b"1", *ids)
    assert not answer.startswith(b"-"), answer
    await until(
        lambda: all(
            FIRST_GROUP in node.groups.numbered
            and node.groups.numbered[FIRST_GROUP].replica.status is Status.NORMAL
            for node in added
        )
    )
    await group.nodes.stop(group.survivor)
    await until(lambda: any(node.groups.numbered[FIRST_GROUP].replica.leading for node in added))
    back = [await group.nodes.start(number) for number in group.dead]
    for node in back:
        replica = node.groups.numbered[FIRST_GROUP].replica
        await until(lambda replica=replica: replica.status is Status.RETIRED)
        assert generation(replica.epoch) == 0
    leading = [
        n for n in group.nodes.running.values() if n.groups.numbered[FIRST_GROUP].replica.leading
    ]
    assert len(leading) == 1
    assert leading[0] in added
