"""Messages come in order, each once, or the subscription ends and says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace import audience as audience_module
from millstream.coordination.core.namespace.audience import (
    PROGRESS_MS,
    QUEUED_BYTES_MAX,
    QUEUED_MAX,
    Audience,
    Subscriber,
    Subscription,
)
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.updates import Place, Scope, Update
from millstream.vsr.core.versions import Version

TREE = Place(1, Scope.TREE)
OTHER = Place(2, Scope.ELEMENT)
ALL = 2**40


def update(lsn: int, data: bytes = b"", path: bytes = b"/a") -> Update:
    return Update(lsn, 1, 1, 0, b"put", path, b"", b"BINARY", b"", data, False)


class World:
    def __init__(self) -> None:
        self.woken = 0
        self.audience = Audience()
        self.subscriber = Subscriber(self.wake, Asker())

    def wake(self) -> None:
        self.woken += 1

    def listen(
        self, *, after: int | None = None, kept: Sequence[Update] = (), with_data: bool = False
    ) -> None:
        self.audience.add(
            self.subscriber, b"/a", TREE, with_data=with_data, after_lsn=after, kept=kept
        )

    def entry(self, lsn: int, *updates: Update, place: Place = TREE) -> None:
        self.audience.on_entry(lsn, {place: updates} if updates else {})

    def told(self, bytes_max: int = ALL) -> list[tuple[str | None, int, int | None]]:
        found = []
        for message in self.subscriber.take(bytes_max):
            assert message.path == b"/a"
            text = json.loads(message.payload)
            found.append((text["op"], text["lsn"], text.get("part")))
        return found


def test_it_begins_now_and_misses_nothing_after() -> None:
    world = World()
    world.entry(1, update(1))
    world.listen()
    world.entry(2, update(2))
    world.entry(3)
    world.entry(4, update(4), place=OTHER)
    world.entry(5, update(5), update(5))
    assert world.told() == [("start", 1, None), ("put", 2, None), ("put", 5, 0), ("put", 5, 1)]
    assert world.woken == 1


def test_confirmations_name_the_history_if_it_is_known() -> None:
    world = World()
    world.audience.version_at = lambda lsn: Version(3, 2, lsn) if lsn else None
    world.entry(7, update(7))
    world.listen()
    said = world.subscriber.take(1 << 20)
    assert [json.loads(one.payload)["version"] for one in said] == ["3:2:7"]


def test_it_goes_on_from_an_lsn_with_what_was_kept() -> None:
    world = World()
    world.audience.reach(5)
    world.listen(after=2, kept=[update(2), update(3), update(4), update(4)])
    world.entry(6, update(6))
    assert world.told() == [("put", 3, None), ("put", 4, 0), ("put", 4, 1), ("put", 6, None)]


def test_a_member_that_is_behind_repeats_no_updates() -> None:
    world = World()
    world.listen(after=2)
    world.entry(1, update(1))
    world.entry(2, update(2))
    world.entry(3, update(3))
    assert world.told() == [("put", 3, None)]


def test_a_slow_subscriber_is_told_where_to_resume() -> None:
    world = World()
    world.listen()
    for lsn in range(1, QUEUED_MAX):
        world.entry(lsn, update(lsn))
    assert world.subscriber.waiting == QUEUED_MAX
    world.entry(QUEUED_MAX)
    world.entry(QUEUED_MAX + 1, update(QUEUED_MAX + 1))
    world.entry(QUEUED_MAX + 2, update(QUEUED_MAX + 2))
    assert world.audience.is_empty
    assert not world.subscriber.subscriptions
    assert world.told()[-2:] == [("put", QUEUED_MAX - 1, None), ("overrun", QUEUED_MAX, None)]


def test_bytes_count_too_and_an_entry_is_told_whole_or_not_at_all() -> None:
    world = World()
    world.listen(with_data=True)
    world.told()
    big = b"x" * (QUEUED_BYTES_MAX // 2)
    world.entry(1, update(1, big), update(1, big))
    world.entry(2, update(2))
    told = world.told()
    assert told == [("put", 1, 0), ("put", 1, 1), ("overrun", 1, None)]


def test_a_resume_that_is_too_long_ends_behind_a_whole_entry_and_can_be_taken_up() -> None:
    kept = [update(lsn) for lsn in range(1, 6000) for _ in range(2)]
    world, heard, after = World(), [], 0
    world.audience.reach(6000)
    for _ in range(3):
        world.listen(after=after, kept=kept)
        told = world.told()
        heard += [(lsn, part) for op, lsn, part in told if op == "put"]
        if told[-1][0] != "overrun":
            break
        after = told[-1][1]
    assert heard == [(lsn, part) for lsn in range(1, 6000) for part in (0, 1)]


def test_the_idle_hear_how_far_the_state_is() -> None:
    world = World()
    world.listen()
    world.audience.tick(0.0, 0)
    world.entry(1)
    world.audience.tick(PROGRESS_MS - 1, 1)
    assert world.told() == [("start", 0, None)]
    world.audience.tick(PROGRESS_MS, 1)
    assert world.told() == [("progress", 1, None)]
    world.entry(2, update(2))
    world.audience.tick(2 * PROGRESS_MS, 2)
    world.audience.tick(3 * PROGRESS_MS - 1, 2)
    assert world.told() == [("put", 2, None)]
    world.audience.tick(3 * PROGRESS_MS, 7)
    assert world.told() == [("progress", 7, None)]


def test_a_lost_right_to_read_ends_only_its_subscriptions() -> None:
    world = World()
    world.listen()
    other = Subscriber(lambda: None, Asker())
    world.audience.add(other, b"/x", TREE, with_data=False, after_lsn=0)

    def may(subscription: Subscription) -> bool:
        return subscription.subscriber is other

    world.audience.may_hear = may
    world.audience.deny([OTHER, TREE])
    world.entry(1, update(1))
    assert world.told() == [("start", 0, None), ("denied", 0, None)]
    assert [m.path for m in other.take(ALL)] == [b"/x"]


def test_removed_groups_are_forgotten() -> None:
    world = World()
    world.listen()
    world.entry(1, update(1))
    world.audience.forget([OTHER, TREE])
    assert world.audience.is_empty
    assert not world.subscriber.subscriptions
    assert world.told() == [("start", 0, None), ("put", 1, None)]


def test_a_state_that_jumps_ends_what_cannot_be_told() -> None:
    world = World()
    world.listen()
    world.entry(1, update(1))
    world.audience.skip()
    assert world.told() == [("start", 0, None), ("put", 1, None), ("overrun", 1, None)]
    assert world.audience.is_empty


def test_a_state_may_jump_back() -> None:
    world = World()
    world.listen()
    world.entry(9, update(9))
    world.audience.skip()
    world.told()
    world.audience.reach(4)
    world.listen()
    world.entry(5, update(5))
    assert world.told() == [("start", 4, None), ("put", 5, None)]


def test_an_ended_subscription_gets_no_messages() -> None:
    world = World()
    world.listen()
    world.entry(1, update(1))
    assert world.subscriber.end(b"/nothing") == []
    assert world.subscriber.end(b"/a") == [b"/a"]
    world.entry(2, update(2))
    assert world.told() == []
    world.listen()
    world.listen()
    assert len(world.subscriber) == 1
    assert world.told() == [("start", 2, None)]
    world.entry(3, update(3))
    assert world.subscriber.end() == [b"/a"]
    assert world.audience.is_empty
    assert world.told() == []


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 6),
    st.lists(st.sampled_from(["read", "cut", "nothing"]), max_size=40),
)
def test_resumed_subscriptions_get_the_same_updates(
    counts: list[int], room: int, acts: list[str]
) -> None:
    with mock.patch.object(audience_module, "QUEUED_MAX", room):
        assert _resumed(counts, acts) == [
            (lsn, part if count > 1 else None)
            for lsn, count in enumerate(counts, 1)
            for part in range(count)
        ]


def _resumed(counts: list[int], acts: list[str]) -> list[tuple[int, int | None]]:
    world, after = World(), 0
    heard: list[tuple[int, int | None]] = []
    kept: list[Update] = []
    world.listen(after=0)
    for lsn, count in enumerate(counts, 1):
        kept += [update(lsn)] * count
        world.entry(lsn, *[update(lsn)] * count)
        act = acts[lsn - 1] if lsn <= len(acts) else "nothing"
        if act == "cut":
            world.subscriber.end()
            world.listen(after=after, kept=kept)
        elif act == "read":
            after = _read(world, heard, kept, after)
    while not world.subscriber.subscriptions or world.subscriber.waiting:
        after = _read(world, heard, kept, after)
    return heard


def _read(
    world: World, heard: list[tuple[int, int | None]], kept: list[Update], after: int
) -> int:
    for op, lsn, part in world.told():
        assert op in ("put", "overrun")
        if op == "put":
            heard.append((lsn, part))
        after = max(after, lsn)
    if not world.subscriber.subscriptions:
        world.listen(after=after, kept=kept)
    return after
