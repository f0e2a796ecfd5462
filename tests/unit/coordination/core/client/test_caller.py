"""A client repeats what may be repeated, and is never wrong about what became of a call."""

from __future__ import annotations

import random

import pytest

from millstream.coordination.core.client.caller import (
    AGAIN_MAX_MS,
    ATTEMPT_MS,
    BACK_OFF_LONG_MS,
    BACK_OFF_MAX_MS,
    CALLS_MAX,
    FLIGHT_MAX,
    LONG_MS,
    MAP_MS,
    NODES_MAX,
    SOON_MS,
    Caller,
)
from millstream.coordination.core.client.events import (
    Call,
    Connect,
    Connected,
    Disconnect,
    Effect,
    ErrorReply,
    Event,
    Finish,
    Lost,
    Moving,
    Noticed,
    Outcome,
    Received,
    SessionLost,
    Tick,
    Transmit,
    Wake,
)
from millstream.coordination.core.client.wire import Replies, packed
from millstream.coordination.core.resp.session import RespSession
from millstream.vsr.core.effects import Code
from support.budget import budget
from support.coordination.coordination_backend import FrontClient, RegisterBackend

BEAT = [Transmit((b"SESSION", b"PING"))]
INFO = [Transmit((b"SESSION", b"INFO"))]
SESSION = {b"client_id": b"a-1", b"secret": b"s", b"ttl": 10_000, b"csn": 0}


class Script:
    """A caller, and what it wanted last."""

    def __init__(self, *addresses: str) -> None:
        self.caller = Caller(addresses or ("one:1", "two:2"), lambda: 0.5)
        self.now = 0.0
        self.finished: list[Finish] = []

    def step(self, event: Event) -> list[Effect]:
        effects = self.caller.step(self.now, event)
        self.finished += [effect for effect in effects if isinstance(effect, Finish)]
        return [effect for effect in effects if not isinstance(effect, Finish | Wake)]

    def sent(self, event: Event) -> list[tuple[bytes, ...]]:
        return [effect.argv for effect in self.step(event) if isinstance(effect, Transmit)]

    def call(self, ticket: int, *, is_change: bool = True, within: float = 5000) -> list[Effect]:
        return self.step(Call(ticket, (b"SET",), is_change, self.now + within))

    def ready(self) -> list[tuple[bytes, ...]]:
        """Connect, and have a session; return what is sent then."""
        self.step(Connected())
        self.step(Received({}))
        self.step(Received(ErrorReply("UNKNOWN_COMMAND VDS")))
        return self.sent(Received(SESSION))

    def beaten(self, ttl: int = 10_000) -> None:
        """Have the early sign of life sent and answered, which asks for the time-out."""
        assert self.pass_ms(SOON_MS) == BEAT
        assert self.step(Received(b"PONG")) == INFO
        assert self.step(Received({b"ttl": ttl})) == []

    def pass_ms(self, ms: float) -> list[Effect]:
        self.now += ms
        return self.step(Tick())


def test_from_nothing_to_an_answer() -> None:
    script = Script()
    assert script.call(7) == [Connect("one:1")]
    assert script.sent(Connected()) == [
        (b"HELLO", b"3"), (b"VDS",), (b"SESSION", b"OPEN", b"TTL", b"10000")
    ]  # fmt: skip
    script.step(Received({}))
    script.step(Received({}))
    assert script.sent(Received(SESSION)) == [(b"CSN", b"1", b"SET")]
    script.step(Received(b"OK"))
    assert script.finished == [Finish(7, Outcome.ANSWERED, b"OK")]


def test_an_error_that_is_final_is_the_answer() -> None:
    script = Script()
    script.call(1)
    script.ready()
    script.step(Received(ErrorReply("CAS_MISMATCH")))
    assert script.finished[0].outcome is Outcome.ANSWERED


def test_a_lost_connection_resumes_and_repeats_the_number() -> None:
    script = Script()
    script.call(1)
    script.call(2, is_change=False)
    assert script.ready() == [(b"CSN", b"1", b"SET"), (b"SET",)]
    assert script.step(Lost()) == []
    assert script.pass_ms(BACK_OFF_MAX_MS) == [Connect("two:2")]
    assert script.sent(Connected())[2] == (b"SESSION", b"RESUME", b"a-1", b"s")
    script.step(Received({}))
    script.step(Received({}))
    resumed = {b"client_id": b"a-1", b"ttl": 10_000, b"csn": 5}
    assert script.sent(Received(resumed)) == [(b"CSN", b"1", b"SET"), (b"SET",)]
    script.step(Received(b"OK"))
    script.call(3)
    assert script.caller.step(script.now, Received(b"x")) == [
        Finish(2, Outcome.ANSWERED, b"x")
    ]  # fmt: skip
    script.step(Lost())
    script.pass_ms(BACK_OFF_MAX_MS)
    assert script.ready() == [(b"CSN", b"6", b"SET")]


def test_the_primary_that_is_named_is_asked_at_once() -> None:
    script = Script()
    script.call(1)
    script.ready()
    wanted = [Disconnect(), Connect("three:3")]
    assert script.step(Received(ErrorReply("NOTPRIMARY 1 0:1 three:3"))) == wanted


def test_names_that_lead_in_a_circle_are_not_followed_for_ever() -> None:
    script = Script()
    script.call(1)
    for _ in range(10):
        script.step(Connected())
        script.step(Received({}))
        script.step(Received({}))
        if script.step(Received(ErrorReply("NOTPRIMARY 1 0:1 one:1"))) == [Disconnect()]:
            return
    raise AssertionError("it never pauses")


def test_members_are_learned() -> None:
    script = Script("one:1")
    script.call(1)
    script.step(Connected())
    script.step(Received({}))
    script.step(Received({b"1": {b"members": [b"one:1", b"two:2", b"?"]}}))
    script.step(Lost())
    assert script.pass_ms(BACK_OFF_MAX_MS) == [Connect("two:2")]


@pytest.mark.parametrize("code", ["NOTPRIMARY 1 0:0 ?", "NOQUORUM", "BUSY", "BEHIND 0:0:1"])
def test_at_the_deadline_it_failed_if_every_attempt_was_refused(code: str) -> None:
    script = Script()
    script.call(1, within=500)
    script.ready()
    script.step(Received(ErrorReply(code)))
    script.pass_ms(500)
    assert [done[:2] for done in script.finished] == [(1, Outcome.FAILED)]
    assert script.finished[0].reply.code == code.split()[0]


@pytest.mark.parametrize("first", [Lost(), Received(ErrorReply("UNKNOWN")), Tick()])
def test_it_is_unknown_if_one_attempt_had_no_answer(first: Event) -> None:
    script = Script()
    script.call(1, within=500)
    script.call(2, is_change=False, within=500)
    script.ready()
    script.step(first)
    script.pass_ms(500)
    assert [done[:2] for done in script.finished] == [(1, Outcome.UNKNOWN), (2, Outcome.FAILED)]


def test_what_was_never_sent_failed() -> None:
    script = Script()
    script.call(1, within=500)
    script.pass_ms(500)
    assert script.finished == [Finish(1, Outcome.FAILED, None)]


@pytest.mark.parametrize("code", ["CSNGONE", "SESSIONEXPIRED"])
def test_what_a_group_does_not_know_any_more_is_unknown(code: str) -> None:
    script = Script()
    script.call(1)
    script.ready()
    script.step(Received(ErrorReply(code)))
    assert script.finished[0].outcome is Outcome.UNKNOWN


def test_a_lost_session_is_told_and_what_was_only_refused_goes_on_in_a_new_one() -> None:
    script = Script()
    script.call(1)
    script.call(2)
    script.ready()
    script.step(Received(ErrorReply("BUSY")))
    script.step(Received(b"OK"))
    effects = script.step(Lost())
    assert effects == []
    script.call(3)
    script.pass_ms(BACK_OFF_MAX_MS)
    script.step(Connected())
    script.step(Received({}))
    script.step(Received({}))
    assert SessionLost() in script.step(Received(ErrorReply("SESSIONEXPIRED")))
    script.pass_ms(BACK_OFF_MAX_MS)
    assert script.ready() == [(b"CSN", b"1", b"SET"), (b"CSN", b"2", b"SET")]
    assert [done[:2] for done in script.finished] == [(2, Outcome.ANSWERED)]


@pytest.mark.parametrize("place", [0, 2])
def test_who_is_not_let_in_hears_it(place: int) -> None:
    script = Script()
    script.call(1)
    script.step(Connected())
    for _ in range(place):
        script.step(Received({}))
    script.step(Received(ErrorReply("NOAUTH no")))
    assert [done[:2] for done in script.finished] == [(1, Outcome.FAILED)]
    assert script.finished[0].reply.code == "NOAUTH"


def test_a_server_of_something_else() -> None:
    script = Script()
    script.call(1)
    script.step(Connected())
    for reply in ({}, {}, b"OK"):
        script.step(Received(reply))
    assert [done[:2] for done in script.finished] == [(1, Outcome.FAILED)]


def test_a_node_that_says_nothing_is_left() -> None:
    script = Script()
    script.call(1)
    assert Disconnect() in script.pass_ms(ATTEMPT_MS)
    assert script.pass_ms(BACK_OFF_MAX_MS) == [Connect("two:2")]
    script.ready()
    script.now += ATTEMPT_MS - 1
    assert script.step(Tick()) == BEAT
    assert Disconnect() in script.pass_ms(1)


def test_when_it_wakes_the_time_of_an_attempt_is_over() -> None:
    script = Script()
    script.now = 7477.1730421342445  # with what is added taken away again, it is a bit less
    assert script.now + ATTEMPT_MS - script.now < ATTEMPT_MS
    script.call(1)
    script.now += ATTEMPT_MS
    assert Disconnect() in script.step(Tick())


def test_attempts_become_rarer() -> None:
    script = Script()
    script.call(1, within=10 * LONG_MS)
    pauses = []
    while script.now < 2 * LONG_MS:
        script.step(Lost())
        before = script.now
        while not script.pass_ms(1.0):
            pass
        pauses.append(script.now - before)
    assert pauses[0] < pauses[1] < pauses[2] <= max(pauses[:100]) <= BACK_OFF_MAX_MS
    assert BACK_OFF_MAX_MS < pauses[-1] <= BACK_OFF_LONG_MS


def test_an_idle_client_shows_that_it_is_there() -> None:
    script = Script()
    script.call(1)
    script.ready()
    script.step(Received(b"OK"))
    script.beaten()
    assert script.pass_ms(3000) == [Transmit((b"VDS",))]
    assert script.step(Received({})) == []
    assert script.pass_ms(1000) == BEAT
    assert script.step(Received(b"PONG")) == INFO
    assert script.step(Received(ErrorReply("SESSIONMOVED"))) == [], "PING is told, too"
    script.pass_ms(1000)
    script.step(Received({}))
    script.pass_ms(3000)
    assert SessionLost() in script.step(Received(ErrorReply("SESSIONEXPIRED")))


def test_members_that_come_later_are_learned() -> None:
    script = Script("one:1")
    script.call(1)
    script.ready()
    script.step(Received(b"OK"))
    script.beaten()
    assert script.pass_ms(MAP_MS) == [Transmit((b"VDS",))]
    script.step(Received({b"1": {b"members": [b"one:1", b"two:2"]}}))
    script.step(Lost())
    assert script.pass_ms(BACK_OFF_MAX_MS) == [Connect("two:2")]


def test_so_many_and_no_more() -> None:
    script = Script()
    for ticket in range(CALLS_MAX + 1):
        script.call(ticket)
    assert [done[:2] for done in script.finished] == [(CALLS_MAX, Outcome.FAILED)]
    assert len(script.ready()) == FLIGHT_MAX
    assert len(script.sent(Received(b"OK"))) == 1


# ---- against connections that break, and nodes that refuse


class Cluster:
    """Three nodes of one group, of which one leads; each connection may break at each place."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.group = RegisterBackend()
        self.attached: list[dict[tuple[int, int], RespSession]] = [{}, {}, {}]
        self.leader = 0
        self.caller = Caller(["n:0", "n:1", "n:2"], self.chance.random)
        self.node = 0
        self.client: FrontClient | None = None
        self.reader = Replies()
        self.is_connecting = False
        self.requests: list[bytes] = []
        self.wake = float("inf")
        self.finished: dict[int, Finish] = {}

    def step(self, event: Event) -> None:
        for effect in self.caller.step(self.now, event):
            match effect:
                case Connect(address):
                    self.node, self.is_connecting = int(address[2:]), True
                case Disconnect():
                    self.hang_up()
                case Transmit(argv):
                    self.requests.append(packed(argv))
                case Wake(at_ms):
                    self.wake = at_ms
                case Finish(ticket):
                    assert ticket not in self.finished
                    self.finished[ticket] = effect
                case _:
                    pass

    def hang_up(self) -> None:
        if self.client:
            self.client.resp.close()
        self.client, self.is_connecting, self.requests = None, False, []

    def turn(self, is_calm: bool) -> None:
        self.now += self.chance.choice((0.1, 1, 20))
        if self.now >= self.wake:
            self.wake = float("inf")
            self.step(Tick())
        if not is_calm and self.chance.random() < 0.1:
            self.leader = self.chance.randrange(3)
        if not is_calm and self.chance.random() < 0.05 and (self.client or self.is_connecting):
            self.hang_up()
            self.step(Lost())
        elif self.is_connecting:
            self.is_connecting = False
            self.client = FrontClient(self.group, attached=self.attached[self.node])
            self.reader = Replies()
            self.step(Connected())
        elif self.client and self.requests:
            self.deliver(self.client, self.requests.pop(0), is_calm)

    def deliver(self, client: FrontClient, request: bytes, is_calm: bool) -> None:
        codes = (Code.OK,) * 8 + (Code.BUSY, Code.NOQUORUM, Code.UNKNOWN)
        self.group.code = Code.OK if is_calm else self.chance.choice(codes)
        self.group.address = f"n:{self.leader}"
        if self.node != self.leader:
            self.group.code = Code.NOTPRIMARY
        client.resp.feed(request)
        client.resp.advance()
        if not is_calm and self.chance.random() < 0.1:
            self.hang_up()
            self.step(Lost())
            return
        for reply in self.reader.feed(client.resp.take_output()):
            if self.client is client:
                self.step(Received(reply))


@pytest.mark.parametrize("seed", range(budget(60)))
def test_never_wrong_about_a_call(seed: int) -> None:
    cluster = Cluster(seed)
    number = 30
    for ticket in range(number):
        key, within = b"k%d" % ticket, cluster.chance.choice((200, 3000))
        if cluster.chance.random() < 0.1:
            cluster.group.sessions.clear()  # silent for too long, says the group
        cluster.step(Call(ticket, (b"SET", key, b"v"), True, cluster.now + within))
        for _ in range(10):
            cluster.turn(is_calm=False)
    for _ in range(5000):
        cluster.turn(is_calm=True)
        if len(cluster.finished) == number:
            break
    done = [body.argv[1] for body in cluster.group.executed]
    assert len(set(done)) == len(done), "something was done twice"
    for ticket in range(number):
        outcome = cluster.finished[ticket].outcome
        assert outcome is Outcome.UNKNOWN or (b"k%d" % ticket in done) == (
            outcome is Outcome.ANSWERED
        ), cluster.finished[ticket]


@pytest.mark.parametrize("code", ["BUSY", "NOQUORUM"])
def test_a_node_that_is_full_is_left_for_another(code: str) -> None:
    caller = Caller(("one:1", "two:2"), lambda: 0.5)
    caller.step(0, Call(1, (b"SET", b"k", b"v"), is_change=True, deadline_ms=10_000))
    caller.step(1, Connected())
    effects = caller.step(2, Received(ErrorReply(f"{code} too many connections")))
    assert Disconnect() in effects
    assert not any(isinstance(effect, Finish) for effect in effects)
    assert Connect("two:2") in caller.step(1000, Tick())


def test_a_hint_counts_even_where_all_places_are_taken() -> None:
    caller = Caller([f"h{number}:1" for number in range(NODES_MAX)], lambda: 0.5)
    caller.step(0, Call(1, (b"SET", b"k", b"v"), is_change=True, deadline_ms=10_000))
    caller.step(1, Connected())
    caller.step(1, Received({}))
    caller.step(1, Received({}))
    effects = caller.step(2, Received(ErrorReply("NOTPRIMARY 1 0:0 new:7")))
    assert Connect("new:7") in effects


# ---- slow lines


def test_who_gives_a_sign_is_waited_for() -> None:
    script = Script()
    script.call(1, within=50_000)
    script.ready()
    for _ in range(20):
        assert Disconnect() not in script.pass_ms(ATTEMPT_MS * 0.9)
        assert script.sent(Moving()) == []
    script.step(Received(b"OK"))
    assert script.finished == [Finish(1, Outcome.ANSWERED, b"OK")]
    script.call(2)
    assert script.pass_ms(ATTEMPT_MS)[0] == Disconnect()


def test_a_long_reply_does_not_cost_the_session() -> None:
    script = Script()
    script.call(1, is_change=False, within=50_000)
    script.ready()
    sent: list[Effect] = []
    for _ in range(11):
        sent += script.pass_ms(ATTEMPT_MS * 0.9)
        sent += script.step(Moving())
    assert sent.count(Transmit((b"SESSION", b"PING"))) == 3


def test_a_time_out_that_was_set_is_learned_and_kept() -> None:
    script = Script()
    script.call(1)
    script.ready()
    script.step(Received(b"OK"))
    script.beaten(ttl=1500)
    assert script.caller.time_out_ms == 1500
    assert script.pass_ms(499) == []
    assert script.pass_ms(1) == BEAT
    script.step(Received(b"PONG"))
    script.step(Received({b"ttl": 10_000}))
    assert script.pass_ms(3000) == [Transmit((b"VDS",))], "it holds nothing of that any more"


def test_who_may_hold_something_new_asks_for_its_time_out() -> None:
    script = Script()
    script.call(1)
    script.ready()
    script.step(Received(b"OK"))
    script.beaten()
    for name, effects in ((b"SET", []), (b"lock", BEAT), (b"CREATE", BEAT)):
        script.step(Call(2, (name, b"/a"), True, script.now + 5000))
        script.step(Received(b"OK"))
        assert script.pass_ms(SOON_MS) == effects, name
        for reply in (b"PONG", {b"ttl": 10_000})[: 2 * len(effects)]:
            script.step(Received(reply))


def waiting() -> Script:
    """Return a caller with a call that was told PENDING."""
    script = Script()
    script.step(Call(1, (b"LOCK",), True, float("inf"), may_wait=True))
    assert script.ready() == [(b"CSN", b"1", b"LOCK")]
    assert script.step(Received([b"PENDING", b"/a", b"LOCKED"])) == []
    assert script.pass_ms(SOON_MS) == [*BEAT, Transmit((b"CSN", b"1", b"LOCK"))]
    assert script.step(Received(b"PONG")) == INFO
    for reply in ([b"PENDING", b"/a", b"LOCKED"], {b"ttl": 10_000}):
        assert script.step(Received(reply)) == []
    return script


def test_what_waits_is_asked_for_again_with_its_number() -> None:
    script = waiting()
    for _ in range(3):
        assert Transmit((b"CSN", b"1", b"LOCK")) in script.pass_ms(AGAIN_MAX_MS)
        script.step(Received(b"PENDING"))
    assert script.sent(Noticed()) == [(b"CSN", b"1", b"LOCK")], "at once"
    script.step(Received(b"OK"))
    assert script.finished == [Finish(1, Outcome.ANSWERED, b"OK")]
    assert script.sent(Noticed()) == []


def test_what_waits_ends_with_its_session() -> None:
    script = waiting()
    script.step(Lost())
    script.pass_ms(BACK_OFF_MAX_MS)
    script.step(Connected())
    script.step(Received({}))
    script.step(Received({}))
    assert SessionLost() in script.step(Received(ErrorReply("SESSIONEXPIRED")))
    (finish,) = script.finished
    assert (finish.outcome, finish.reply.code) == (Outcome.UNKNOWN, "SESSIONEXPIRED")
    assert script.caller.heard_ms is None


def test_since_when_the_primary_has_heard_it() -> None:
    script = Script()
    script.call(1)
    script.ready()
    script.step(Received(b"OK"))
    assert script.caller.heard_ms == 0
    script.pass_ms(script.caller.time_out_ms / 3)
    sent, script.now = script.now, script.now + 100
    while script.caller.heard_ms == 0:
        script.step(Received(b"PONG"))
    assert script.caller.heard_ms == sent, "not when the answer came"


def test_what_goes_before_a_call_goes_before_it_each_time() -> None:
    script = Script()
    ahead = ((b"MULTI",), (b"PUT",))
    script.step(Call(1, (b"EXEC",), True, 5000.0, before=ahead))
    assert script.ready() == [*ahead, (b"CSN", b"1", b"EXEC")]
    for reply in (b"OK", b"QUEUED"):
        assert script.step(Received(reply)) == []
    script.step(Lost())
    script.pass_ms(BACK_OFF_MAX_MS)
    assert script.ready() == [*ahead, (b"CSN", b"1", b"EXEC")]


def test_a_group_that_is_named_is_named_each_time() -> None:
    caller = Caller(["one:1"], lambda: 0.5, group=2)
    caller.step(0.0, Call(1, (b"PUT",), True, 5000.0))
    effects = caller.step(0.0, Connected())
    assert Transmit((b"GROUP", b"2", b"SESSION", b"OPEN", b"TTL", b"10000")) in effects
    assert Transmit((b"VDS",)) in effects


@pytest.mark.parametrize(
    ("words", "prefix"),
    [
        ((b"PUT",), (b"GROUP", b"2")), ((b"FORCE", b"PUT"), (b"GROUP", b"2")),
        ((b"DELETENAMESPACE", b"/a"), ()), ((b"FORCE", b"DELETENAMESPACE", b"/a"), ()),
        ((b"FORCE",), (b"GROUP", b"2")),
    ],
)  # fmt: skip
def test_no_group_is_named_where_the_system_group_is_meant(
    words: tuple[bytes, ...], prefix: tuple[bytes, ...]
) -> None:
    caller = Caller(["one:1"], lambda: 0.5, group=2)
    caller.step(0.0, Call(1, words, True, 5000.0))
    caller.step(0.0, Connected())
    caller.step(0.0, Received({}))
    caller.step(0.0, Received(ErrorReply("UNKNOWN_COMMAND VDS")))
    effects = caller.step(0.0, Received(SESSION))
    assert Transmit((*prefix, b"CSN", b"1", *words)) in effects
