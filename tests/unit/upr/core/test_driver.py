"""Where and when streams are requested: a driver in a small world without sockets and clock."""

import random
from collections.abc import Iterable
from struct import pack

import pytest

from millstream.errors import AccessError, StreamError, UsageError
from millstream.model.position import Position
from millstream.upr.core.consumer import BarrierReached, StreamEnded, StreamOpened
from millstream.upr.core.driver import (
    PAUSE_S_MAX,
    PAUSE_S_MIN,
    PROMPT_PAUSE_S_MAX,
    PROMPT_S,
    Awaited,
    Source,
    StreamDriver,
)
from millstream.upr.core.messages import Reached, decode_barrier, encode_barrier_reached
from millstream.wire.cluster_map import ClusterMap, NodeAddress
from millstream.wire.frames import stream_end
from millstream.wire.mcbp import Opcode, Packet, Status, StreamEndReason, cut_packets, response

SEED = NodeAddress("seed", 1)
NODES = tuple(NodeAddress("node", number) for number in range(3))


def map_of(owners: tuple[int, ...], revision: int = 1, uuid: str = "feed") -> ClusterMap:
    return ClusterMap(0, revision, NODES, owners, {}, uuid)


class World:
    """Nodes that move partitions, refuse, end streams and vanish, until they rest."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randint(1, 6)
        self.revision, self.owners = 1, tuple(self.rng.randrange(3) for _ in range(self.count))
        self.driver = StreamDriver("orders", SEED)
        self.driver.take_map(map_of(self.owners))
        self.driver.begin(None)
        self.is_calm = False
        self.barriers: set[int] = set()
        self.passed = set[int]()

    def upset(self) -> None:
        dice = self.rng.random()
        if dice < 0.3:
            self.revision += 1
            self.owners = tuple(self.rng.randrange(-1, 3) for _ in range(self.count))
        elif dice < 0.5 and self.driver.sources:
            self.driver.lose(self.rng.choice(list(self.driver.sources.values())))
        elif dice < 0.6:
            self.barriers.add(self.driver.awaited.add(self.driver.unfinished))
            for source in self.driver.sources.values():
                self.driver.send_cookies(source)

    def round(self) -> None:
        """Request what is homeless by the newest map, then let every node answer."""
        driver = self.driver
        driver.take_map(map_of(self.owners, self.revision))
        for node, numbers in driver.by_node(driver.homeless).items():
            source = driver.sources.get(node) or driver.open(node, b"name", has_extensions=True)
            for number in numbers:
                driver.request(source, number, Position(), ())
        assert PAUSE_S_MIN <= driver.next_pause_s() <= PAUSE_S_MAX
        for source in list(driver.sources.values()):
            self.exchange(source)

    def exchange(self, source: Source) -> None:
        packets, _ = cut_packets(source.core.take_bytes(), 100_000)
        for packet in packets:
            for event in source.core.receive_data(self.reply(source, packet)):
                if isinstance(event, StreamEnded | StreamOpened):
                    assert self.driver.sources[source.node] is source
                self.driver.on_event(source, event)
                self.driver.send_cookies(source)
                self.driver.check_invariants()
        if not source.partitions:
            self.driver.lose(source)

    def reply(self, source: Source, packet: Packet) -> bytes:
        number, is_kind = packet.vbucket, self.is_calm or self.rng.random() < 0.6
        match packet.opcode:
            case Opcode.DCP_STREAM_REQ if self.owners[number] != source.node.port or not is_kind:
                status = self.rng.choice((Status.NOT_MY_VBUCKET, Status.ETMPFAIL))
                return response(packet.opcode, status, packet.opaque)
            case Opcode.DCP_STREAM_REQ:
                opened = response(packet.opcode, 0, packet.opaque, value=pack(">QQ", 0xA, 0))
                if self.rng.random() < 0.5 and not self.is_calm:
                    return opened + stream_end(number, number, StreamEndReason.STATE_CHANGED)
                ends = self.is_calm or self.rng.random() < 0.1
                return opened + (stream_end(number, number, StreamEndReason.OK) if ends else b"")
            case Opcode.BARRIER:
                reached = {n: Reached(0xA, 0) for n in source.opened if is_kind}
                cookie, _ = decode_barrier(packet)
                return response(packet.opcode, 0, packet.opaque) + encode_barrier_reached(
                    cookie, packet.opaque, reached
                )
            case Opcode.BRANCH_LOG | Opcode.POSITIONS:
                return response(packet.opcode, Status.ETMPFAIL, packet.opaque)
        return response(packet.opcode, 0, packet.opaque)

    def run(self) -> None:
        for _ in range(self.rng.randint(1, 40)):
            self.upset()
            self.round()
            self.driver.check_invariants()
            self.passed |= self.driver.awaited.take_done().keys()
        self.is_calm, self.revision = True, self.revision + 1
        self.owners = tuple(self.rng.randrange(3) for _ in range(self.count))
        for source in list(self.driver.sources.values()):
            self.driver.lose(source)
        for _ in range(3):
            self.round()
        assert not self.driver.unfinished
        assert self.passed | self.driver.awaited.take_done().keys() == self.barriers


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_every_partition_is_read_to_its_end_whatever_nodes_do(first: int) -> None:
    for seed in range(first, first + 100):
        World(seed).run()


@pytest.fixture
def driver() -> StreamDriver:
    made = StreamDriver("orders", SEED)
    made.take_map(map_of((0, 1, 0, -1)))
    made.begin(None)
    return made


def opened(source: Source, number: int) -> StreamOpened:
    assert number in source.partitions
    return StreamOpened(number, Position(), (), None)


def test_partitions_are_read_at_the_nodes_of_the_map(driver: StreamDriver) -> None:
    assert driver.by_node(driver.homeless) == {NODES[0]: [0, 2], NODES[1]: [1]}
    driver.take_map(map_of((2, 2, 2, 2), revision=0))
    assert driver.map.owners[0] == 0, "an older map changes nothing"
    driver.take_map(map_of((2, 2, 2, 2), revision=2))
    assert driver.by_node(driver.homeless) == {NODES[2]: [0, 1, 2, 3]}
    alone = StreamDriver("orders", SEED)
    alone.take_map(ClusterMap(0, 1, NODES[:1], (0, 0), {}, "feed"))
    assert alone.by_node([0, 1]) == {SEED: [0, 1]}, "the address given is known to work"


def test_nodes_are_asked_for_the_map_that_are_connected_first(driver: StreamDriver) -> None:
    driver.open(NODES[2], b"name", has_extensions=True)
    assert driver.nodes_to_ask() == [NODES[2], NODES[0], NODES[1], SEED]


def test_another_bucket_and_other_partitions_are_refused(driver: StreamDriver) -> None:
    with pytest.raises(StreamError, match="deleted and created again"):
        driver.take_map(map_of((0,), revision=2, uuid="other"))
    for wanted, known in (([4], []), ([0], [4]), ([-1], [])):
        with pytest.raises(UsageError, match="partitions 0 to 3, not"):
            driver.begin(wanted, known)


def test_pauses_grow_until_a_stream_is_open(driver: StreamDriver) -> None:
    pauses: list[float] = []
    while sum(pauses) < PROMPT_S:
        pauses.append(driver.next_pause_s())
    assert pauses[:2] == [PAUSE_S_MIN, 2 * PAUSE_S_MIN]
    assert max(pauses) == PROMPT_PAUSE_S_MAX, "a partition may be promoted soon"
    later = [driver.next_pause_s() for _ in range(9)]
    assert later == [min(PROMPT_PAUSE_S_MAX * 2**n, PAUSE_S_MAX) for n in range(1, 10)]
    source = driver.open(NODES[0], b"name", has_extensions=True)
    driver.request(source, 0, Position(), ())
    driver.on_event(source, opened(source, 0))
    assert driver.next_pause_s() == PAUSE_S_MIN


def test_a_stream_that_ends_early_is_requested_again_and_a_lost_right_is_an_error(
    driver: StreamDriver,
) -> None:
    source = driver.open(NODES[0], b"name", has_extensions=True)
    driver.request(source, 0, Position(), ())
    why = driver.on_event(source, StreamEnded(0, Position(), StreamEndReason.CLOSED))
    assert "partition 0 of bucket 'orders' was ended by node:0" in why
    assert 0 in driver.homeless
    driver.check_invariants()
    with pytest.raises(AccessError, match="stream of partition 0"):
        driver.on_event(source, StreamEnded(0, Position(), StreamEndReason.LOST_PRIVILEGES))


def test_a_cookie_of_a_lost_source_proves_nothing(driver: StreamDriver) -> None:
    driver.begin([0])
    number = driver.awaited.add(driver.unfinished)
    source = driver.open(NODES[0], b"name", has_extensions=True)
    driver.request(source, 0, Position(), ())
    driver.on_event(source, opened(source, 0))
    driver.send_cookies(source)
    (cookie,) = driver.awaited._sent
    driver.lose(source)
    driver.on_event(source, BarrierReached(cookie, {0: Reached(0xA, 1)}))
    assert driver.awaited.take_done() == {}
    driver.check_invariants()
    again = driver.open(NODES[0], b"name", has_extensions=True)
    driver.request(again, 0, Position(), ())
    driver.on_event(again, StreamEnded(0, Position(), StreamEndReason.OK))
    assert driver.awaited.take_done() == {number: {}}
    assert not driver.unfinished


# -- barriers

HERE, THERE = object(), object()


def at(partitions: Iterable[int]) -> dict[int, Reached]:
    return {number: Reached(0xA, 10 * number) for number in partitions}


def test_a_barrier_waits_for_all_sources() -> None:
    awaited = Awaited()
    number = awaited.add([1, 2, 3])
    here, there = awaited.cookie_for(HERE, {1, 2}), awaited.cookie_for(THERE, {3})
    assert here is not None
    assert there is not None
    assert here != there
    assert awaited.cookie_for(HERE, {1, 2}) is None, "it is under way"
    awaited.on_reached(here, at({1, 2}))
    assert awaited.take_done() == {}
    awaited.on_reached(there, at({3}))
    assert awaited.take_done() == {number: at({1, 2, 3})}, "each source adds its partitions"
    assert awaited.take_done() == {}


def test_a_cookie_is_for_all_barriers_that_lack_something_there() -> None:
    awaited = Awaited()
    first = awaited.add([1, 2])
    early = awaited.cookie_for(HERE, {1, 2})
    second = awaited.add([2])
    late = awaited.cookie_for(HERE, {1, 2})
    assert early is not None
    assert late is not None
    awaited.on_reached(early, at({1, 2}))
    assert list(awaited.take_done()) == [first], (
        "what was sent before the second proves nothing for it"
    )
    awaited.on_reached(late, at({1, 2}))
    assert list(awaited.take_done()) == [second]


def test_who_is_not_named_is_asked_for_again() -> None:
    awaited = Awaited()
    number = awaited.add([1, 2])
    cookie = awaited.cookie_for(HERE, {1, 2})
    assert cookie is not None
    awaited.on_reached(cookie, at({1}))  # the stream of 2 had ended there
    assert awaited.cookie_for(HERE, {1}) is None
    again = awaited.cookie_for(THERE, {2})
    assert again is not None
    awaited.on_reached(again, at({2}))
    assert list(awaited.take_done()) == [number]


def test_a_lost_source_proves_nothing_and_what_has_ended_is_not_waited_for() -> None:
    awaited = Awaited()
    number = awaited.add([1, 2])
    cookie = awaited.cookie_for(HERE, {1, 2})
    assert cookie is not None
    awaited.on_lost(HERE)
    awaited.on_reached(cookie, at({1, 2}))
    assert awaited.take_done() == {}
    awaited.on_end(2)
    again = awaited.cookie_for(HERE, {1})
    assert again is not None
    awaited.on_reached(again, at({1}))
    assert list(awaited.take_done()) == [number]
    awaited.add([])
    assert len(awaited.take_done()) == 1, "nothing to wait for"
