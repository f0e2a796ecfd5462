from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from millstream.kv.core.partition.states import Unserved
from millstream.kv.core.serving import HEARD_MS, NEVER_MS, ServingRights
from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.model.rows import Row
from millstream.upr.core.source import Peer

ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA
WINDOW = 500


@dataclass
class Copy:
    partition_id: int
    state: PartitionState = ACTIVE
    failover_log: tuple[FailoverEntry, ...] = (FailoverEntry(1, 0, 7),)
    unserved: Unserved = ""


def record(*rows: Row) -> DataRecord:
    since = MapKey(2, 1) if len(rows) > 1 else MapKey(0, 0)
    return DataRecord(MapKey(2, 1), "a", 7, rows, (), since)


class World:
    """Rights of node a, whose clock is `now`."""

    def __init__(self, *rows: Row, count: int = 1) -> None:
        self.copies = [Copy(p) for p in range(count)]
        self.records: dict[int, DataRecord] = dict.fromkeys(range(count), record(*rows))
        self.changed: list[int] = []
        self.news = 0
        self.rights = ServingRights(self.copies, self.changed.append)
        self.now = 1000

    def manage(self) -> World:
        self.rights.on_news = self._on_news
        self.rights.manage("a", self.records.get, self.now)
        return self

    def _on_news(self) -> None:
        self.news += 1

    def lease(self, until: int | None, *, is_admitted: bool = True) -> None:
        self.rights.set_lease(until, is_admitted=is_admitted, now_ms=self.now)

    def accept(self, peer: Peer, p: int = 0, stream: object = "s") -> None:
        self.rights.confirm(peer, p, stream, self.now)

    def answer(self, peer: Peer, sent: int) -> None:
        peer.sent_ms = max(sent, peer.sent_ms or sent)  # answers come in order
        self.rights.heard(peer, self.now)

    def at(self, now: int) -> Unserved:
        self.now = now
        self.rights.look(now)
        return self.copies[0].unserved


def test_an_unmanaged_bucket_always_serves() -> None:
    world = World(("a", "b"))
    assert world.rights.serves(0, 10**12) == (True, True)
    assert world.at(10**12) == ""
    world.copies[0].state = REPLICA
    assert not world.rights.right(0, 0).is_given


def test_a_lease_ends_at_its_time_and_may_be_extended() -> None:
    world = World(("a", "b")).manage()
    assert world.copies[0].unserved == "all"
    world.lease(2000, is_admitted=False)
    assert world.copies[0].unserved == "all", "nobody has admitted it"
    world.lease(2000)
    assert (world.copies[0].unserved, world.rights.next_change_ms) == ("", 2000)
    assert world.at(1999) == ""
    changed = len(world.changed)
    world.lease(2500)
    assert world.rights.next_change_ms == 2500
    assert len(world.changed) == changed, "nothing was looked at"
    assert world.at(2499) == ""
    assert world.at(2500) == "all"
    assert (world.rights.isolated, world.rights.next_change_ms) == ({0}, NEVER_MS)
    world.lease(None)
    world.lease(3000)
    assert world.copies[0].unserved == ""


def test_a_lease_that_is_withdrawn_ends_at_once() -> None:
    world = World(("a", "b")).manage()
    world.lease(5000)
    world.lease(None)
    assert world.copies[0].unserved == "all"


def test_contact_counts_from_when_the_answered_message_was_sent() -> None:
    world = World(("a", "b", "c")).manage()
    peer = Peer("b")
    world.accept(peer)
    assert world.copies[0].unserved == "all", "it has answered nothing yet"
    world.now = 1400
    world.answer(peer, 1000)
    assert world.copies[0].unserved == ""
    assert world.at(1499) == ""
    peer.sent_ms = 1450
    assert world.at(1500) == "", "b has answered meanwhile"
    assert world.at(1950) == "all"


def test_every_row_in_force_needs_its_majority() -> None:
    world = World(("a", "b"), ("d", "e", "f")).manage()
    peers = {name: Peer(name) for name in "bde"}
    for peer in peers.values():
        world.accept(peer)
    world.answer(peers["b"], 1000)
    world.answer(peers["d"], 1000)
    assert world.copies[0].unserved == "all"
    world.answer(peers["e"], 900)
    assert (world.copies[0].unserved, world.rights.next_change_ms) == ("", 900 + WINDOW)
    world.records[0] = record(("a", "b", "c"), ("a", "x", "y"))
    world.rights.records_changed([0], 1000)
    assert world.copies[0].unserved == "all"


def test_a_copy_that_is_alone_in_its_rows_serves_always() -> None:
    world = World(("a",)).manage()
    assert world.at(10**9) == ""
    assert world.rights.next_change_ms == NEVER_MS


def test_a_follower_that_stands_still_is_not_heard_though_its_stream_is_open() -> None:
    world = World(("a", "b")).manage()
    peer = Peer("b")
    world.accept(peer)
    assert not world.rights.hears("b", 0, world.now)
    world.answer(peer, world.now)
    assert world.rights.hears("b", 0, world.now + HEARD_MS)
    assert not world.rights.hears("b", 0, world.now + HEARD_MS + 1)
    assert not world.rights.hears("c", 0, world.now)


def test_a_stream_that_ends_ends_the_contact_unless_it_was_replaced() -> None:
    world = World(("a", "b")).manage()
    peer = Peer("b")
    world.accept(peer, stream="old")
    world.answer(peer, 1000)
    world.accept(peer, stream="new")
    world.rights.left("b", 0, "old", 1001)
    assert world.copies[0].unserved == ""
    world.rights.left("b", 0, "new", 1001)
    assert world.copies[0].unserved == "all"
    world.answer(peer, 1100)
    assert world.copies[0].unserved == "all", "answers on a connection without the stream"


def test_only_an_active_copy_is_isolated() -> None:
    world = World(("a", "b"), count=2)
    world.copies[1].state = REPLICA
    world.manage()
    assert world.rights.isolated == {0}
    world.copies[0].state, world.copies[1].state = REPLICA, ACTIVE
    for p in range(2):
        world.rights.refresh(p, world.now)
    assert world.rights.isolated == {1}
    assert [copy.unserved for copy in world.copies] == ["", "all"]


def test_a_copy_without_a_record_serves_nothing() -> None:
    world = World(("a",))
    world.records.clear()
    world.manage()
    world.lease(5000)
    assert world.copies[0].unserved == "all"
    assert not world.rights.right(0, world.now).is_given


def test_isolation_decides_what_is_served_without_a_right() -> None:
    world = World(("a", "b")).manage()
    for isolation, unserved, words in (
        ("read_only", "writes", "reads only"),
        ("serve", "", "all"),
        ("stop", "all", "nothing"),
    ):
        world.rights.set_rules(WINDOW, isolation, world.now)  # type: ignore[arg-type]
        assert world.copies[0].unserved == unserved
        assert world.rights.isolated_serve == words
        assert world.rights.isolated == {0}
        assert world.rights.serves(0, world.now)[1] == (unserved == "")


def test_who_watches_is_told_what_is_new_and_what_is_earlier() -> None:
    world = World(("a", "b"), count=3).manage()
    assert world.news == 1
    world.lease(2000)
    assert world.news == 2
    world.lease(3000)
    assert world.news == 2
    world.lease(2500)
    assert world.news == 3
    assert world.at(2500) == "all"
    assert world.news == 4


def test_a_following_copy_knows_how_long_it_is_quiet() -> None:
    world = World(("a", "b"), count=2)
    assert world.rights.quiet_ms(0, 5) is None
    world.rights.answered([0], 1000)
    assert world.rights.quiet_ms(0, 1300) == 300
    assert world.rights.quiet_ms(1, 1300) is None


Event = tuple[str, int, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "lease", "lose", "accept", "answer", "leave", "rows", "window"]),
        st.integers(0, 3),
        st.integers(0, 700),
    ),
    max_size=40,
)
NAMES = "bcde"
ROWS: list[tuple[Row, ...]] = [
    (("a", "b"),),
    (("a", "b", "c"),),
    (("a", "b", "c"), ("d", "a", None)),
    (("b", "c", "d"), ("a", "e")),
]


class Told:
    """What is known of followers, kept apart from the rights."""

    def __init__(self) -> None:
        self.lease: int | None = None
        self.window = WINDOW
        self.streams: dict[str, Peer] = {}
        self.rows = ROWS[0]

    def until(self) -> int:
        """Return when serving must have ended, at the latest."""
        ends = []
        for row in self.rows:
            sent = sorted(
                (
                    peer.sent_ms
                    for name, peer in self.streams.items()
                    if name in row and peer.sent_ms is not None
                ),
                reverse=True,
            )
            needed = len(row) // 2 + 1 - ("a" in row)
            if needed:
                ends.append(sent[needed - 1] + self.window if len(sent) >= needed else 0)
        return max(self.lease or 0, min(ends))


@given(EVENTS)
def test_a_copy_serves_until_its_lease_and_its_contact_have_ended_and_not_longer(
    events: list[Event],
) -> None:
    world, told = World(*ROWS[0]).manage(), Told()
    peers = {name: Peer(name) for name in NAMES}
    acts: dict[str, Callable[[str, int, int], None]] = {
        "wait": lambda *_: None,
        "lease": lambda _, __, ms: _lease(world, told, world.now + ms),
        "lose": lambda *_: _lease(world, told, None),
        "accept": lambda name, _, __: _accept(world, told, peers[name]),
        "answer": lambda name, _, ms: world.answer(peers[name], world.now - ms),
        "leave": lambda name, _, __: _leave(world, told, name),
        "rows": lambda _, number, __: _rows(world, told, ROWS[number]),
        "window": lambda _, __, ms: _window(world, told, 100 + ms),
    }
    for kind, number, ms in events:
        if kind == "wait":
            world.now += ms
            world.rights.look(world.now)
        acts[kind](NAMES[number], number, ms)
        may = world.now < told.until()
        assert world.copies[0].unserved == ("" if may else "all")
        assert world.rights.right(0, world.now).is_given == may
        assert world.rights.isolated == (set() if may else {0})
        if may:
            assert world.rights.next_change_ms <= told.until()


def _lease(world: World, told: Told, until: int | None) -> None:
    told.lease = until
    world.lease(until)


def _accept(world: World, told: Told, peer: Peer) -> None:
    told.streams[peer.name] = peer
    world.accept(peer)


def _leave(world: World, told: Told, name: str) -> None:
    told.streams.pop(name, None)
    world.rights.left(name, 0, "s", world.now)


def _rows(world: World, told: Told, rows: tuple[Row, ...]) -> None:
    told.rows = rows
    world.records[0] = record(*rows)
    world.rights.records_changed([0], world.now)


def _window(world: World, told: Told, window: int) -> None:
    told.window = window
    world.rights.set_rules(window, "stop", world.now)
