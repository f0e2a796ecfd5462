"""A replica is made of parts, each of those below it; upcalls reach them in one order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.effects import Code, Reply, Request
from millstream.vsr.core.entries import Body
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.parts import PartTypes
from millstream.vsr.core.replica.replica import Replica
from support.coordination.coordination_group import Group

BOTTOM_UP = (
    "execution", "storage", "repairs", "normal", "reads", "views", "recovery", "learners",
    "reconfiguration", "changes", "formats", "sessions", "snapshots", "transfer", "throttling",
    "forced", "reporting",
)  # fmt: skip


def test_a_part_knows_the_state_and_parts_below_it() -> None:
    parts = Replica(GroupState(), lambda: 0.5).parts
    below: list[Any] = [parts.state, parts]
    for name in BOTTOM_UP:
        part = getattr(parts, name)
        known = [one for one in vars(part).values() if type(one).__module__.startswith("millst")]
        of_parts = [one for one in known if one in [getattr(parts, n) for n in BOTTOM_UP]]
        assert all(one in below for one in of_parts), name
        assert part.state is parts.state
        below.append(part)


@pytest.mark.parametrize(
    ("upcall", "heard"),
    [
        ("committed", ["normal", "reads", "learners", "changes", "snapshots"]),
        ("give_up", ["reconfiguration", "views"]),
    ],
)
def test_an_event_reaches_the_parts_from_below(
    upcall: str, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Replica(GroupState(), lambda: 0.5).parts
    order: list[str] = []
    for name in heard:
        note: Callable[[], None] = partial(order.append, name)
        monkeypatch.setattr(getattr(parts, name), upcall, note)
    getattr(parts, upcall)()
    assert order == heard


def test_a_former_primary_answers_waiting_requests_and_fetches_the_next_epoch() -> None:
    group = Group(3)
    leader = group.leader
    replica = group.replicas[leader]
    group.holds_disk = {0, 1, 2}
    group.step(leader, Request(1, Body(argv=(b"SET", b"k", b"v"))))
    replica.parts.stand_down()
    codes = [effect.code for effect in replica.state.effects if isinstance(effect, Reply)]
    assert codes == [Code.UNKNOWN]
    assert not replica.leading


def test_another_class_can_stand_in_for_a_part() -> None:
    class Deaf(NormalCase):
        def on_request(self, request: Request) -> None:
            self.state.reply(request.ticket, Code.BUSY)

    class Refusing(Replica):
        part_types = PartTypes(normal=Deaf)

    replica = Refusing(GroupState(), lambda: 0.5)
    effects = replica.step(0, 0, Request(1, Body(argv=(b"SET", b"k", b"v"))))
    assert [effect.code for effect in effects if isinstance(effect, Reply)] == [Code.BUSY]
