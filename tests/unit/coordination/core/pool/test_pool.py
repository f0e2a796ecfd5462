"""`coordination.core.pool.pool`: whole nodes on a false network, through schedules and
restarts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.coordination.core.pool.effects import (
    Admin,
    AdminReply,
    Answered,
    FormatGroup,
    Heard,
    KeepNode,
    NodeStart,
    OpenGroup,
    Refusal,
)
from millstream.coordination.core.pool.file_format import (
    Hosted,
    Phase,
    decode_node_file,
    encode_node_file,
)
from millstream.coordination.core.pool.heartbeats import TICK_MS
from millstream.coordination.core.pool.messages import (
    Address,
    Deleted,
    Founding,
    PoolEnvelope,
    Sighting,
)
from millstream.coordination.core.pool.pool import DEFERRED_MAX, Pool
from millstream.errors import CorruptionError
from millstream.vsr.core.effects import DiskDone, SetTimer, Timer
from support.coordination.pool_driver import Node, World, asked, joined

HERE, COORD = Address("here", 1), Address("here", 2)
ME = b"m" * 16


def start(content: bytes | None = None, node_id: bytes = ME, **more: object) -> NodeStart:
    fields = {"incarnation": 1, "here": (), "peer": HERE, "coord": COORD, **more}
    return NodeStart(content, node_id, **fields)  # type: ignore[arg-type]


def test_nothing_is_said_or_done_before_what_changed_is_durable() -> None:
    pool = Pool(lambda: 0.5)
    (keep,) = pool.step(0, start())
    assert isinstance(keep, KeepNode)
    assert pool.step(1, Timer()) == [SetTimer(TICK_MS)]
    after = pool.step(2, DiskDone(keep.op))
    assert any(isinstance(effect, OpenGroup | FormatGroup) for effect in after)


@pytest.mark.parametrize("join", [(), (Address("other", 1),)])
def test_a_start_that_changes_nothing_writes_nothing(join: tuple[Address, ...]) -> None:
    """So it needs no space, whatever the node says of itself from now on."""
    (keep,) = Pool(lambda: 0.5).step(0, start())
    assert isinstance(keep, KeepNode)
    founded = decode_node_file(keep.content)
    opened = tuple(one._replace(phase=Phase.OPEN) for one in founded.hosted)
    again = start(encode_node_file(founded._replace(hosted=opened)), incarnation=2, join=join)
    effects = Pool(lambda: 0.5).step(0, again)
    assert not any(isinstance(effect, KeepNode) for effect in effects)
    assert sum(isinstance(effect, OpenGroup) for effect in effects) == 1


def test_messages_and_commands_that_wait_for_the_disk_are_bounded() -> None:
    pool = Pool(lambda: 0.5)
    (keep,) = pool.step(0, start())
    assert isinstance(keep, KeepNode)
    for number in range(DEFERRED_MAX):
        pool.step(
            1, Heard(PoolEnvelope(b"x" * 16, 1, Deleted(b"%016d" % number, is_answer=False)))
        )
    (refused,) = pool.step(1, Admin(7, (b"JOIN", b"there", b"1")))
    assert isinstance(refused, AdminReply)
    assert refused.value.startswith(b"-BUSY")


def test_a_node_whose_disk_is_full_answers_what_needs_none_and_refuses_the_rest() -> None:
    world = joined(2)
    one, two = world.nodes

    def write(node: Node) -> None:
        if node is two:
            World.write(world, node)

    world.write = write  # type: ignore[method-assign]
    begun, waits = (world.admin(one, "JOIN nowhere 1") for _ in range(2))
    listed = asked(world, one, "NODES", for_ms=0)
    assert listed is not None
    assert listed.startswith(b"*")
    status = world.admin(one, "STATUS")
    (node, question) = world.questions.pop()
    world.step(node, Answered(question.ticket, Refusal("ERR", "it is being closed")))
    assert world.answers[status].startswith(b"%")
    since_ms = world.now_ms
    world.run(since_ms + 9000)
    assert {begun, waits}.isdisjoint(world.answers)
    world.run(since_ms + 12_000)
    full = b"-BUSY the node's disk is full: make room"
    assert (world.answers[begun], world.answers[waits]) == (full, full)
    assert world.now_ms - two.running.state.heard_ms[one.id] < 2 * TICK_MS
    del world.write
    world.run(world.now_ms + 3000)
    assert not one.running.state.deferred


def test_a_first_start_founds_a_group_of_one_and_a_second_opens_it() -> None:
    world = World(1, 1)
    (node,) = world.nodes
    world.start(node)
    world.run(1000)
    (group_id,) = node.open
    assert node.running.tables.number_of(group_id) == 1
    world.crash(node)
    world.start(node)
    world.run(2000)
    assert list(node.open) == [group_id]
    assert node.formatted_ever == {group_id: 1}


def test_a_node_that_is_to_join_founds_nothing() -> None:
    pool = Pool(lambda: 0.5)
    (keep,) = pool.step(0, start(join=(Address("other", 1),)))
    assert isinstance(keep, KeepNode)
    effects = pool.step(1, DiskDone(keep.op))
    assert not any(isinstance(effect, OpenGroup) for effect in effects)
    assert pool.tables.foundings == {}


def test_a_file_of_another_node_or_none_beside_groups_is_refused() -> None:
    pool = Pool(lambda: 0.5)
    (keep,) = pool.step(0, start())
    assert isinstance(keep, KeepNode)
    with pytest.raises(CorruptionError, match="another node"):
        Pool(lambda: 0.5).step(0, start(keep.content, b"o" * 16))
    with pytest.raises(CorruptionError, match="gone"):
        Pool(lambda: 0.5).step(0, start(here=(b"g" * 16,)))


def test_a_hosted_group_that_nobody_knows_does_not_keep_a_node_from_starting() -> None:
    (keep,) = Pool(lambda: 0.5).step(0, start())
    assert isinstance(keep, KeepNode)
    stray = Hosted(b"h" * 16, Phase.FORMED, is_founder=True)
    content = encode_node_file(decode_node_file(keep.content)._replace(hosted=(stray,)))
    pool = Pool(lambda: 0.5)
    assert not any(isinstance(effect, KeepNode) for effect in pool.step(0, start(content)))
    pool.step(1000, Timer())
    assert stray.group_id not in pool.hosted


def test_addresses_are_those_of_nodes_in_the_pool() -> None:
    world = World(1, 2)
    one, two = world.nodes
    world.start(one)
    world.start(two, join=(one.address,))
    world.run(3000)
    assert one.running.address_of(two.id) == two.address
    assert one.running.address_of(b"?" * 16) is None


def test_a_record_of_a_deleted_group_founds_nothing_after_a_restart() -> None:
    world = joined(2)
    other, node = world.nodes
    founding = Founding(9, (node.id,), True, 1)
    deleted = Deleted(founding.group_id, is_answer=False)
    world.step(node, Heard(PoolEnvelope(other.id, 1, deleted)))
    world.run(world.now_ms + 1000)
    world.crash(node)
    world.start(node)
    world.run(world.now_ms + 1000)
    node.running.groups.take_founding(founding)
    assert founding.group_id not in node.running.hosted


def test_that_a_group_was_forked_is_kept_and_told_to_its_old_members_after_a_restart() -> None:
    world = joined(2)
    one, two = world.nodes
    group_id = next(iter(one.open))
    fork = Sighting(group_id, 3 << 16, 1, (b"x" * 16,), 0)
    pool = two.running
    pool.directory.hear((fork,), pool.tables.foundings, world.now_ms)
    world.crash(one)
    asked(world, two, "NODES")
    world.crash(two)
    world.start(two)
    seen = two.running.directory.get(group_id)
    assert seen is not None
    assert seen[:3] == (3 << 16, 0, (b"x" * 16,))
    world.start(one)
    world.run(world.now_ms + 3000)
    assert one.running.directory.forks() == two.running.directory.forks()


def _forget_the_record(pool: Pool) -> None:
    (group_id,) = pool.hosted
    del pool.tables.foundings[group_id]
    pool.tables._number_them()


def _bring_back_what_is_deleted(pool: Pool) -> None:
    (group_id,) = pool.tables.foundings
    pool.tables.tombstones[group_id] = None


def _forget_the_write(pool: Pool) -> None:
    pool.step(9000, Admin(1, (b"JOIN", b"there", b"1")))
    pool._keeping = 0


def _undo_an_opening(pool: Pool) -> None:
    (group_id,) = pool.hosted
    pool.hosted[group_id] = pool.hosted[group_id]._replace(phase=Phase.FORMED)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (_forget_the_record, "no founding record"),
        (_bring_back_what_is_deleted, "a deleted group is there"),
        (_forget_the_write, "effects wait for no write"),
        (_undo_an_opening, "it is not open"),
    ],
)
def test_a_broken_invariant_is_found(damage: Callable[[Pool], None], found: str) -> None:
    world = joined(1)
    pool = world.nodes[0].running
    pool.check_invariants()
    damage(pool)
    with pytest.raises(AssertionError, match=found):
        pool.check_invariants()
