"""The request loop, freezing and lists, in Python and compiled: one history, one outcome."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import accelerated
from millstream.errors import RemoteProtocolError
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.session import session as session_module
from millstream.kv.core.session.session import DEFERRED_MAX
from millstream.model.limits import KEY_BYTES_MAX, REQUESTS_PER_WAKEUP_MAX
from millstream.model.partitions import partition_of
from millstream.storage.core.new_keys import KeyPage
from millstream.upr.core.source import Hold
from millstream.wire.frames import seqno_of
from millstream.wire.mcbp import Feature, Opcode, request
from support.budget import budget
from support.kv.log_double import NOW, SECOND
from support.kv.session_double import HostDouble, new_session

pytestmark = pytest.mark.skipif(not accelerated.is_installed(), reason=accelerated.state())

KEYS = [
    b"a",
    b"b",
    b"key-3",
    b"_sync",
    b"_design/d",
    b"",
    b"k" * KEY_BYTES_MAX,
    b"k" * (KEY_BYTES_MAX + 1),
]
FEATURES = (Feature.MUTATION_SEQNO, Feature.JSON, Feature.XERROR)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    accelerated.use_compiled(True)


def hello(features: Iterable[Feature]) -> bytes:
    return b"".join(feature.to_bytes(2, "big") for feature in features)


class World:
    """A bucket; sessions on the kv port, the memcached port, kv with features; what is seen."""

    def __init__(self) -> None:
        self.host = HostDouble()
        self.sessions = [
            new_session(self.host),
            new_session(self.host, hashes_keys=True),
            new_session(self.host),
        ]
        self.sessions[2].receive(request(Opcode.HELLO, value=hello(FEATURES)), NOW)
        self.partitions: list[Partition] = self.host.buckets["b"].partitions
        self.holds: list[tuple[Partition, Hold]] = []
        self.now_ns = NOW
        self.seen: list[Any] = []
        self.hurried = 0
        self.host.buckets["b"].hurry = self.hurry

    def hurry(self) -> None:
        self.hurried += 1

    def feed(self, number: int, data: bytes, times: int, cuts: list[int]) -> None:
        """Bytes come in pieces; what a wake-up left is asked for as the shell does it."""
        session, at = self.sessions[number], 0
        data *= times
        for cut in [*cuts, len(data)]:
            self._receive(number, data[at : at + cut])
            at += cut
        for _ in range(len(data) // 24):
            if session.has_request and not session.is_clogged:
                self._receive(number, b"")
        self.seen.append(self.state_of(number))

    def _receive(self, number: int, data: bytes) -> None:
        session = self.sessions[number]
        if session.is_closing:
            return
        try:
            self.seen.append(session.receive(data, self.now_ns))
        except RemoteProtocolError as error:
            self.seen.append((error.code, session.take_output()))
            session.is_closing = True

    def state_of(self, number: int) -> object:
        session = self.sessions[number]
        if session.is_closing:
            return None
        return (
            (session.pending_bytes, session.has_request, session.needs_care, session.has_changes),
            (session.waits_for_disk, session.is_clogged, session.is_waiting),
            (len(self.host.changed), self.hurried, self.host.buckets["b"].reads[0]),
            [
                (reply[0].partition_id, *reply[1:]) if isinstance(reply, tuple) else reply
                for reply in session._deferred
            ],
        )

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)

    def tell(self) -> None:
        """The next turn of the loop."""
        self.host.buckets["b"].is_told_soon = bool(self.now_ns & 1)

    def hold(self, number: int) -> None:
        partition = self.partitions[number]
        hold = partition.open_hold()
        assert hold is not None
        self.holds.append((partition, hold))

    def release(self) -> None:
        if self.holds:
            partition, hold = self.holds.pop(0)
            partition.release_hold(hold)

    def flush(self, *, is_durable: bool) -> None:
        for partition in self.partitions:
            self.seen.append(tuple(partition.freeze()))
            if is_durable:
                partition.persisted(partition.queue.frozen_seqno)
        for session in self.sessions:
            session.on_persisted(self.now_ns)
            self.seen.append(session.take_output() if session.out else b"")

    def follow(self, number: int, *, is_known: bool) -> None:
        """There is another copy, which has all there is up to now, or has left."""
        partition = self.partitions[number]
        if partition.acknowledged is None:
            partition.acknowledged = Acknowledged(partition)
            partition.acknowledged.set_rows((("a", "b"),), "a")
        if is_known:
            high = partition.high_seqno
            partition.acknowledged.join("b", self)
            partition.acknowledged.acknowledge("b", self, high, high)
        else:
            partition.acknowledged.leave("b", self)

    def page(self, low: bytes, high: bytes, purge_seqno: int) -> None:
        """A list asks for what the log does not have."""
        for partition in self.partitions:
            queue = partition.queue
            found = KeyPage(low, high, 3, descending=bool(purge_seqno))
            queue.add_unflushed_keys(found, purge_seqno)
            self.seen.append(found.keys)

    def shrink(self) -> None:
        """The queue may hold nothing: what is persisted goes."""
        for partition in self.partitions:
            partition.queue.collect(0)

    def evict(self) -> None:
        """Everything durable leaves memory; the log says that there is nothing."""
        for partition in self.partitions:
            partition.queue.collect(0)
            ring, floor = partition.residents.ring, partition.queue.floor
            for at in reversed(range(len(ring))):
                if seqno_of(ring[at].frame) <= floor:
                    partition.residents.evict(at)

    def forget(self) -> None:
        """Not everything is in memory; the log has nothing."""
        for partition in self.partitions:
            partition.residents.is_complete = False

    def end(self) -> list[Any]:
        for partition in self.partitions:
            queue = partition.queue
            self.seen.append(
                (
                    {k: (e.key, e.frame, e.side, e.is_used) for k, e in partition.table.items()},
                    [e.key for e in partition.residents.ring],
                    partition.residents.memory.table_bytes,
                    {n: (b.frames, b.previous) for n, b in queue.blocks.items()},
                    {n: (b.least, b.greatest) for n, b in queue.blocks.items()},
                    {n: [e.key for e in b.entries] for n, b in queue.blocks.items()},
                    (queue.high_seqno, queue.frozen_seqno, queue.floor, queue.frame_bytes),
                    (partition.last_cas, queue.holds.kept, queue.counters),
                )
            )
        return self.seen


Action = tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]


def outcome(actions: list[Action], *, compiled: bool) -> list[Any]:
    assert accelerated.use_compiled(compiled)
    world = World()
    for act, arguments, options in actions:
        act(world, *arguments, **options)
    return world.end()


def check(actions: list[Action]) -> None:
    compiled = outcome(actions, compiled=True)
    for number, (mine, theirs) in enumerate(
        zip(outcome(actions, compiled=False), compiled, strict=True)
    ):
        assert mine == theirs, f"the compiled twin differs, at observation {number}"


keys = st.sampled_from([*KEYS[:3], *KEYS[:3], *KEYS])
values = st.sampled_from([b"", b"v", b"12", b'{"a":1}', b"x" * 100, b"y" * 3000])
expiries = st.sampled_from([0, 0, 0, 5, 30 * 86400, 30 * 86400 + 1, NOW // SECOND + 20, 2**32 - 1])
cas = st.sampled_from([0, 0, 0, 0, 0, 1])
opaques = st.integers(0, 2**32 - 1)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    key = draw(keys)
    fields: dict[str, Any] = {"key": key, "opaque": draw(opaques), "cas": draw(cas)}
    fields["vbucket"] = (
        partition_of(key, 4) if draw(st.integers(0, 9)) else draw(st.integers(0, 9))
    )
    opcode = draw(st.sampled_from([Opcode.SET] * 5 + [Opcode.GET] * 5 + QUIET * 2 + OTHERS))
    extras = draw(st.binary(min_size=4, max_size=4)) + draw(expiries).to_bytes(4, "big")
    if opcode in (Opcode.SET, Opcode.SETQ):
        fields["extras"] = extras if draw(st.integers(0, 15)) else draw(st.binary(max_size=9))
        fields["value"] = draw(values)
        fields["datatype"] = draw(st.sampled_from([0, 0, 0, 1, 2, 5]))
        fields["framing"] = draw(st.sampled_from([b""] * 9 + FRAMINGS))
    elif opcode in READS:
        fields["cas"] = 0
        if not draw(st.integers(0, 15)):
            fields[draw(st.sampled_from(["extras", "value"]))] = b"more"
    elif opcode in (Opcode.INCREMENT, Opcode.DECREMENT):
        fields["extras"] = bytes(7) + b"\1" + bytes(7) + b"\5" + bytes(4)
    elif opcode in (Opcode.TOUCH, Opcode.GAT, Opcode.GET_LOCKED):
        fields["extras"] = draw(expiries).to_bytes(4, "big")
    elif opcode == Opcode.HELLO:
        granted = draw(st.lists(st.sampled_from(FEATURES), unique=True))
        fields["value"] = hello(granted)
    elif opcode in (Opcode.ADD, Opcode.REPLACE):
        fields.update(extras=extras, value=draw(values))
    elif opcode in (Opcode.APPEND, Opcode.PREPEND):
        fields["value"] = draw(values)
    return request(opcode, **fields)


FRAMINGS = [
    b"\x11\1", b"\x11\2", b"\x11\2", b"\x11\3", b"\x11\4", b"\x13\2\0\5", b"\x11", b"\x10\x10",
]  # fmt: skip
READS = (Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ)
QUIET = [Opcode.SETQ, *READS[1:], Opcode.DELETE, Opcode.DELETEQ]
OTHERS = [
    Opcode.DELETE, Opcode.INCREMENT, Opcode.DECREMENT, Opcode.ADD, Opcode.REPLACE, Opcode.APPEND,
    Opcode.PREPEND, Opcode.TOUCH, Opcode.GAT, Opcode.GET_LOCKED, Opcode.HELLO, Opcode.NOOP,
]  # fmt: skip


@st.composite
def feeds(draw: st.DrawFn) -> Action:
    data = b"".join(draw(st.lists(requests(), min_size=1, max_size=6)))
    kind, times = draw(st.integers(0, 19)), 1
    if kind == 0:  # spoiled
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(min_size=1, max_size=4)) + data[at + 1 :]
    elif kind == 1:  # more than one wake-up may answer
        times = REQUESTS_PER_WAKEUP_MAX // 2 + 7
    elif kind == 2:
        data += draw(st.sampled_from([b"\x80\x07".ljust(24, b"\0"), b"x" * 24]))
    cuts = draw(st.lists(st.integers(0, 60), max_size=4))
    return World.feed, (draw(st.integers(0, 2)), data, times, cuts), {}


EVENTS = [World.release, World.tell, World.shrink, World.evict]
steps = st.sampled_from([-3, 0.1, 1, 5, 7])
actions = st.lists(
    st.one_of(
        feeds(), feeds(), feeds(),
        st.tuples(st.just(World.wait), st.tuples(steps), st.just({})),
        st.tuples(st.just(World.hold), st.tuples(st.integers(0, 3)), st.just({})),
        st.tuples(
            st.sampled_from(EVENTS), st.just(()), st.just({})
        ),
        st.tuples(
            st.just(World.page), st.tuples(keys, keys, st.sampled_from([0, 0, 1, 3])), st.just({})
        ),
        st.tuples(
            st.just(World.flush), st.just(()), st.fixed_dictionaries({"is_durable": st.booleans()})
        ),
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=budget(120))
@given(actions)
def test_they_answer_and_leave_behind_the_same(actions: list[Action]) -> None:
    check(actions)


@settings(max_examples=budget(30))
@given(actions)
def test_so_they_do_where_not_everything_is_in_memory(actions: list[Action]) -> None:
    check([(World.forget, (), {}), *actions])


def test_so_they_do_when_the_bytes_are_cut_anywhere() -> None:
    data = b"".join(
        request(opcode, key=key, vbucket=partition_of(key, 4), **fields)  # type: ignore[arg-type]
        for key in (b"a", b"b")
        for opcode, fields in (
            (Opcode.SET, {"extras": bytes(8), "value": b"value"}),
            (Opcode.GET, {}),
            (Opcode.DELETE, {}),
            (Opcode.GET, {}),
        )
    )
    for cut in range(len(data)):
        check([(World.feed, (0, data, 1, [cut]), {})])
    check([(World.feed, (0, data, 1, [1] * len(data)), {})])


durable_sets = st.builds(
    lambda key, value, expiry, level, cas, datatype, opaque: request(
        Opcode.SET, key=key, vbucket=partition_of(key, 4), value=value,
        extras=b"flag" + expiry.to_bytes(4, "big"), framing=bytes([0x11, level]), cas=cas,
        datatype=datatype, opaque=opaque,
    ),
    keys, values, expiries, st.sampled_from([2, 3, 3, 1]), cas, st.sampled_from([0, 0, 1]),
    opaques,
)  # fmt: skip


@settings(max_examples=budget(60))
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just(World.feed),
                st.tuples(
                    st.integers(0, 2),
                    st.lists(st.one_of(durable_sets, durable_sets, requests())).map(b"".join),
                    st.just(1),
                    st.lists(st.integers(0, 200), max_size=2),
                ),
                st.just({}),
            ),
            st.tuples(
                st.just(World.flush),
                st.just(()),
                st.fixed_dictionaries({"is_durable": st.booleans()}),
            ),
            st.tuples(st.just(World.tell), st.just(()), st.just({})),
            st.tuples(
                st.just(World.follow),
                st.tuples(st.integers(0, 3)),
                st.fixed_dictionaries({"is_known": st.booleans()}),
            ),
        ),
        max_size=12,
    )
)
def test_so_they_do_with_writes_that_wait_for_disk_or_copies(actions: list[Action]) -> None:
    check(actions)


def test_so_they_do_when_more_writes_wait_than_may() -> None:
    one = request(
        Opcode.SET, key=b"b", vbucket=partition_of(b"b", 4), extras=bytes(8), framing=b"\x11\3"
    )
    get = request(Opcode.GET, key=b"a", vbucket=partition_of(b"a", 4))
    times = REQUESTS_PER_WAKEUP_MAX
    many: list[Action] = [(World.feed, (0, one, times, []), {})] * (DEFERRED_MAX // times + 1)
    flush: Action = (World.flush, (), {"is_durable": True})
    check([*many, flush, (World.feed, (0, get, 2, []), {})])
    large = request(Opcode.SET, key=b"a", vbucket=partition_of(b"a", 4), extras=bytes(8),
                    value=bytes(1 << 20))  # fmt: skip
    for times in (4, 6):  # as many bytes as may wait, and more
        clogged: list[Action] = [
            (World.feed, (0, get, times, []), {}),
            (World.feed, (0, one, 2, []), {}),
        ]
        check([(World.feed, (0, large + one, 1, []), {}), *clogged, flush, *clogged])


def test_requests_after_one_that_was_cut_take_the_compiled_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipeline comes in pieces that end within a request: each piece was answered in Python."""
    one = request(Opcode.SET, key=b"a", vbucket=partition_of(b"a", 4), extras=bytes(8))
    session = new_session(HostDouble())
    data = one * 100
    session.receive(data[:-5], NOW)
    monkeypatch.setattr(session_module, "PLAIN_WAYS", None)  # Python's way
    assert len(session.receive(data[-5:] + data, NOW)) == 24 * 101


def test_so_they_do_when_large_values_fill_a_wakeup() -> None:
    one: dict[str, Any] = {"key": b"a", "vbucket": partition_of(b"a", 4)}
    data = request(Opcode.SET, extras=bytes(8), value=b"v" * 1024 * 5, **one)
    data += request(Opcode.GET, **one) * (REQUESTS_PER_WAKEUP_MAX // 4)
    check([(World.feed, (0, data, 1, []), {})])


def test_so_they_do_in_the_second_when_a_document_expires() -> None:
    one: dict[str, Any] = {"key": b"a", "vbucket": partition_of(b"a", 4)}
    actions: list[Action] = [
        (World.feed, (0, request(Opcode.SET, extras=bytes(7) + b"\5", **one), 1, []), {})
    ]
    for _ in range(6):
        actions += [
            (World.wait, (1,), {}),
            (World.feed, (0, request(Opcode.GET, **one), 1, []), {}),
        ]
    check(actions)


def test_so_they_do_over_many_changes() -> None:
    """Blocks fill up, counters take seqnos between, flushes and holds come at any time."""
    dice, actions = random.Random(1), list[Action]()
    for _ in range(300):
        data = b""
        for _ in range(dice.randrange(90)):
            key = b"%d" % dice.randrange(400)
            one: dict[str, Any] = {"key": key, "vbucket": partition_of(key, 4)}
            if dice.randrange(60) == 0:
                data += request(Opcode.INCREMENT, extras=bytes(20), **one)
            elif dice.randrange(30) == 0:
                data += request(Opcode.DELETE, **one)
            else:
                value = b"v" * dice.randrange(30)
                data += request(Opcode.SET, extras=bytes(8), value=value, **one)
        actions.append((World.feed, (0, data, 1, []), {}))
        act = dice.randrange(20)
        if act < 6:
            actions.append((World.flush, (), {"is_durable": dice.random() < 0.8}))
        elif act < 8:
            actions.append((World.hold, (dice.randrange(4),), {}))
        elif act < 10:
            actions.append((World.release, (), {}))
        elif act < 14:
            low, high = sorted(b"%d" % dice.randrange(400) for _ in range(2))
            actions.append((World.page, (low, high, 0), {}))
        elif act == 10:
            actions.append((World.shrink, (), {}))
    check(actions)
