"""What clients of namespaces do, one thing after another: generators of what is wanted.

Each yields a `Want`, and is told how it ended, `ok`, `fail` or `info`, and the answer; or a `Nap`.
What can be checked as a history is noted (`histories`); wishes of all kinds are checked by what
they do to the state alone (`shadow`).

Invariants:
1. A value is written at most once in a history; so is what is pushed.
2. A chore ends once the weather is over, and what it wanted last is known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.coordination.core.client.events import (
    ErrorReply,
)
from simulators.coordination_sim.keepers import Keeper
from simulators.coordination_sim.rights import GUARDED, change
from simulators.namespace_requests import Wishes
from simulators.namespace_truth import COUNTER, PATHS, QUEUE, UNITS
from simulators.namespace_world import Words

if TYPE_CHECKING:
    from simulators.coordination_sim.namespace_clients import Guest

ROOT = "/h"
LOCK, TICKETS, QUEUE_DONE, SEQUENCE = "/h/lock", "/h/tickets", "/h/queue", "/h/sequence"
LEADER, AWAITED = "/h/leader", "/h/awaited"
NAP = 0.01
"""So many times somebody is silent for longer than its session may be."""
OPERATIONS_MAX = 300
"""On one register, or one set of elements that are written together."""
TAKEN_MAX = 3
REST_MAX = 100_000
WAIT_MS = 100.0
WISHES = 4.0
"""So much more often somebody wishes something than others do."""
DEADLINES_MS = (1000.0, 3000.0, 20_000.0)
PARTS = ("a", "b", "c")


class Want(NamedTuple):
    """Requests that are sent together, of which the last one counts; `words`: what it comes to."""

    requests: tuple[Words, ...]
    changes: bool
    words: Words
    is_vital: bool = False
    """It has to be answered, however long it takes."""
    deadline_ms: float = 20_000.0


@dataclass(eq=False)
class Ask:
    """What a guest wants and does not know yet."""

    want: Want
    op: int
    csn: int = 0
    in_doubt: bool = False
    attempt: int = 0
    is_sent: bool = False


class Nap(NamedTuple):
    """Wait; `is_silent`: without a sign of life."""

    ms: float
    is_silent: bool = False


Doing = Generator[Want | Nap, Any, Any]
Chore = Callable[["Guest"], Doing]


def one(*words: str | bytes, changes: bool = True, is_vital: bool = False) -> Want:
    """Return a single request."""
    return Want((words,), changes, words, is_vital)


def group(*commands: Words) -> Want:
    """Return a transaction."""
    return Want((("MULTI",), *commands, ("EXEC",)), True, ("EXEC", *commands))


def _pauses(guest: Guest, speed: float = 1.0) -> Doing:
    """Wait for the next thing to do; return whether there is any."""
    if guest.world.calm:
        return False
    if guest.rng.random() < NAP * (1 if guest.world.weather.sign_of_life == 1 else 5):
        yield Nap(guest.rng.uniform(0.5, 2) * guest.ttl_ms, is_silent=True)
    yield Nap(guest.rng.expovariate(speed / guest.guests.between_ms))
    while not guest.guests.is_prepared and not guest.world.calm:
        yield Nap(WAIT_MS)
    while not guest.session and not guest.world.calm:
        yield one("LOOKUP", ROOT, changes=False)
    return not guest.world.calm and guest.guests.is_prepared


def _do(guest: Guest, function: str, argument: tuple[str, ...], want: Want) -> Doing:
    """Note that something is asked for, and ask; who calls notes how it ended."""
    place = guest.guests.note(function, argument)
    ended, told = yield want
    return place, ended, told


def preparing(guest: Guest) -> Doing:
    """Make the elements that all is about."""
    roots: list[Words] = [("CREATENAMESPACE", "/n"), ("CREATENAMESPACE", ROOT)]
    wishes = (roots * (not guest.guests.has_roots)) + [
        ("CREATE", "BINARY", path) for path in sorted(PATHS)
    ]
    wishes += [("CREATE", "QUEUE", path) for path in (QUEUE, QUEUE_DONE, AWAITED)]
    wishes += [("CREATE", "COUNTER", path) for path in (COUNTER, TICKETS)]
    wishes += [("CREATE", "BINARY", path) for path in (LOCK, LEADER, SEQUENCE, *GUARDED)]
    for words in wishes:
        told = None
        while told not in ("OK", "EXISTS"):
            _, told = yield one(*words)  # type: ignore[arg-type]
            if guest.world.calm:
                return
            if guest.guests.has_roots and told not in ("OK", "EXISTS"):
                yield Nap(WAIT_MS)
    guest.guests.is_prepared = True


def wishing(guest: Guest) -> Doing:
    """Want anything: locks, moves, semaphores, barriers, queues, counters, transactions."""
    wishes = _Wishes(guest)
    while (yield from _pauses(guest, WISHES)):
        if guest.rng.random() < 0.1:
            words: Words = guest.rng.choice(_AGAIN)
        else:
            words = wishes.invent(guest, guest.session)
        want = group(*words[1:]) if words[0] == "EXEC" else one(*words)  # type: ignore[arg-type]
        ended, told = yield want._replace(deadline_ms=guest.rng.choice(DEADLINES_MS))
        if words[:2] == ("QUEUE", "TAKE") and ended == "ok" and isinstance(told, list):
            guest.items += [item[0].encode() for item in told]
    for words in [("LOCK", "RELEASE", path) for path, _ in wishes.held(guest.session)]:
        yield one(*words)


class _Wishes(Wishes):
    def __init__(self, guest: Guest) -> None:
        self.rng, self.focus = guest.rng, guest.focus
        self._shadow = guest.guests.shadow

    @property
    def state(self) -> Any:
        return self._shadow.state.state


_AGAIN: tuple[Words, ...] = (
    *(("CREATE", "BINARY", path) for path in sorted(PATHS)),
    ("CREATE", "QUEUE", QUEUE), ("CREATE", "COUNTER", COUNTER),
    ("CONFIG", "SET", "GROUP", "GROUP.HEARTBEAT", "50 ms"),
    ("CONFIG", "SET", "GROUP", "GROUP.HEARTBEAT", "200 ms"),
    ("CONFIG", "UNSET", "GROUP", "GROUP.HEARTBEAT"),
    ("CONFIG", "SET", "GROUP", "GROUP.VIEW.TIMEOUT", "500-700 ms"),
    ("CONFIG", "SET", "GROUP", "GROUP.VIEW.TIMEOUT", "800-1200 ms"),
    ("CONFIG", "UNSET", "GROUP", "GROUP.VIEW.TIMEOUT"),
)  # fmt: skip


def locking(guest: Guest) -> Doing:
    """Take a lock, write what only its holder may, release it or be silent."""
    while (yield from _pauses(guest)):
        nowait = ("NOWAIT",) * (guest.rng.random() < 0.5)
        take: Words = ("LOCK", "WRITE", LOCK, "TOKEN", *nowait)
        yield from _turn(guest, LOCK, take, ("LOCK", "RELEASE", LOCK))


def sharing(guest: Guest) -> Doing:
    """Take a unit of a semaphore, keep it for a while, and give it back."""
    while (yield from _pauses(guest)):
        for words in (("CREATE", "BINARY", UNITS), ("SEMAPHORE", "INIT", "1", UNITS)):
            yield one(*words)
        _, told = yield one("SEMAPHORE", "ACQUIRE", UNITS)
        if told == "OK":
            yield Nap(guest.rng.expovariate(1 / guest.guests.between_ms))
            yield one("SEMAPHORE", "RELEASE", UNITS)


def electing(guest: Guest) -> Doing:
    """Campaign, and do as a leader what a holder does; look who leads."""
    guests = guest.guests
    while (yield from _pauses(guest)):
        if guest.rng.random() < 0.3:
            want = one("ELECT", "LEADER", LEADER, changes=False)
            place, ended, told = yield from _do(guest, "leader", (LEADER,), want)
            seen = [told[0].rpartition("-")[2], told[1]] if told else None
            guests.noted(place, ended, seen)
        else:
            take: Words = ("ELECT", "CAMPAIGN", LEADER, guests.value())
            yield from _turn(guest, LEADER, take, ("ELECT", "RESIGN", LEADER))


def _turn(guest: Guest, path: str, take: Words, let_go: Words) -> Doing:
    rng, guests = guest.rng, guest.guests
    want = one(*take)  # type: ignore[arg-type]
    place, ended, told = yield from _do(guest, "lock", (path, f"{guest.session}"), want)
    session = f"{guest.session}"
    guests.asked(place, (path, session))
    token = told[1] if isinstance(told, list) and told[0] == "OK" else None
    guests.noted(place, ended, token)
    for _ in range(rng.randrange(3) if token else 0):
        if rng.random() < 3 * NAP:
            yield Nap(1.5 * guest.ttl_ms, is_silent=True)
        yield from _put(guest, path, token)
    if token:
        yield Nap(rng.expovariate(1 / guests.between_ms))
    if token and rng.random() < 0.9 and f"{guest.session}" == session:
        want = one(*let_go)  # type: ignore[arg-type]
        place, ended, told = yield from _do(guest, "release", (path, session, token), want)
        guests.noted(place, ended, told == "OK")


def _put(guest: Guest, path: str, token: str) -> Doing:
    value = guest.guests.value()
    want = group(("PUT", path, value, "IFLOCK", token), ("GET", path, "CAS"))
    argument = path, f"{guest.session}", token, value
    place, ended, told = yield from _do(guest, "put", argument, want)
    guest.guests.asked(place, (path, f"{guest.session}", token, value))
    is_written = ended == "ok" and not isinstance(told, ErrorReply)
    version = told[1][0] if is_written else None
    guest.guests.noted(place, ended, is_written, version)


def counting(guest: Guest) -> Doing:
    """Count by one, and read."""
    while (yield from _pauses(guest)):
        if guest.rng.random() < 0.3:
            want = one("COUNTER", "GET", TICKETS, changes=False)
            done = yield from _do(guest, "count", (TICKETS,), want)
        else:
            done = yield from _do(guest, "next", (TICKETS,), one("COUNTER", "INC", TICKETS))
        guest.guests.noted(*done)


def sequencing(guest: Guest) -> Doing:
    """Make elements with names in sequence, which end with the session or are deleted."""
    name = f"{SEQUENCE}/n"
    while (yield from _pauses(guest)):
        words = "CREATE", "BINARY", "EPHEMERAL", "SEQUENTIAL", name
        place, ended, told = yield from _do(guest, "next", (SEQUENCE,), one(*words))
        number = int(told.removeprefix(name)) + 1 if ended == "ok" else None
        guest.guests.noted(place, ended, number)
        if ended == "ok" and guest.rng.random() < 0.5:
            yield one("DELETE", told)


def queueing(guest: Guest) -> Doing:
    """Push, take and do what is in a queue, or give it back, or forget it."""
    while (yield from _pauses(guest)):
        if guest.rng.random() < 0.5:
            yield from _push(guest, QUEUE_DONE)
        else:
            yield from _take(guest, QUEUE_DONE)


def awaiting(guest: Guest) -> Doing:
    """Push; or wait until there is something, and take it."""
    while (yield from _pauses(guest)):
        if guest.rng.random() < 0.3:
            yield from _push(guest, AWAITED)
            continue
        ended, told = yield one("QUEUE", "WAIT", AWAITED)
        if ended == "ok" and told == "OK":
            yield from _take(guest, AWAITED)


def _push(guest: Guest, queue: str) -> Doing:
    value = guest.guests.value()
    want = one("QUEUE", "PUSH", queue, value)
    place, ended, told = yield from _do(guest, "push", (queue, value), want)
    guest.guests.noted(place, ended, told[0] if ended == "ok" else None)


def _take(guest: Guest, queue: str) -> Doing:
    rng, guests = guest.rng, guest.guests
    session = f"{guest.session}"
    want = one("QUEUE", "TAKE", queue, f"{rng.randint(1, TAKEN_MAX)}")
    place, ended, told = yield from _do(guest, "take", (queue, session), want)
    guests.noted(place, ended, told)
    for number, _, deliveries in told if ended == "ok" else ():
        chosen = rng.random()
        if chosen < 0.9 and f"{guest.session}" == session:
            function = "ack" if chosen < 0.8 else "nack"
            argument = queue, session, number, f"{deliveries}"
            want = one("QUEUE", function.upper(), queue, number)
            place, ended, done = yield from _do(guest, function, argument, want)
            guests.noted(place, ended, done == 1)


def keeping(guest: Guest) -> Doing:
    """Subscribe for good, and acknowledge what is heard; be gone, and come back."""
    rng = guest.rng
    keeper = guest.keeper = Keeper(guest, guest.guests.shadow.told[ROOT.encode()])
    while (yield from _pauses(guest, WISHES)):
        chosen = rng.random()
        if chosen < 0.6 and guest.session == keeper.session and keeper.is_known:
            yield from keeper.acknowledge(one)
        elif chosen < 0.7:
            guest.cut()
            yield Nap(rng.uniform(0, 1.5) * guest.ttl_ms, is_silent=rng.random() < 0.5)
    while guest.guests.is_prepared and not keeper.is_well:
        yield one("LOOKUP", ROOT, changes=False, is_vital=True)
        yield Nap(WAIT_MS)


def writing(guest: Guest) -> Doing:
    """Write and read elements as registers."""
    rng, guests = guest.rng, guest.guests
    made, seen = set(), {}
    while (yield from _pauses(guest)):
        path = guests.place(f"{ROOT}/register{rng.randrange(2)}-", OPERATIONS_MAX)
        if path not in made:
            ended, told = yield one("CREATE", "BINARY", path, "")
            if told not in ("OK", "EXISTS"):
                continue
            made.add(path)
        value, known = guests.value(), seen.get(path)
        chosen = rng.random()
        if known is None or chosen < 0.4:
            want = one("GET", path, "CAS", changes=False)
            place, ended, told = yield from _do(guest, "get", (path,), want)
            guests.noted(place, ended, told[1] if ended == "ok" else None)
            seen[path] = told if ended == "ok" else known
        elif chosen < 0.6:
            done = yield from _do(guest, "set", (path, value), one("PUT", path, value))
            guests.noted(*done)
        else:
            version, expected = known
            want = one("PUT", path, value, "CAS", version)
            place, ended, told = yield from _do(guest, "cas", (path, expected, value), want)
            guests.noted(place, ended, told == "OK")


def transacting(guest: Guest) -> Doing:
    """Write elements together if they are what was last seen, and read them together.

    They are one register: what is torn is a value that nobody wrote.
    """
    rng, guests = guest.rng, guest.guests
    made, seen = "", None
    while (yield from _pauses(guest)):
        place = guests.place(f"{ROOT}/together", OPERATIONS_MAX)
        paths = [f"{place}/{part}" for part in PARTS]
        if made != place:
            ended, _ = yield group(*(("CREATE", "BINARY", "PARENTS", path) for path in paths))
            made, seen = (place if ended == "ok" else ""), None
        elif seen is None or rng.random() < 0.4:
            want = group(*(("GET", path, "CAS") for path in paths))
            at, ended, told = yield from _do(guest, "get", (place,), want)
            if ended == "ok":
                values = sorted({value for _, value in told})
                seen, told = (told[0][0], values[0]), "|".join(values)
            guests.noted(at, ended, told)
        else:
            (version, expected), seen, value = seen, None, guests.value()
            puts = [("PUT", path, value) for path in paths]
            want = group(("CHECK", paths[0], "CAS", version), *puts)
            at, ended, told = yield from _do(guest, "cas", (place, expected, value), want)
            guests.noted(at, ended, not isinstance(told, ErrorReply))


def ruling(guest: Guest) -> Doing:
    """Change who may what."""
    rng = guest.rng
    while (yield from _pauses(guest, WISHES)):
        yield one("ACL", "SET", rng.choice(GUARDED), *change(rng))


def abiding(guest: Guest) -> Doing:
    """Do, as a user, what may be allowed or not; change lists, too, where it is the owner."""
    rng, guests = guest.rng, guest.guests
    while (yield from _pauses(guest)):
        chosen, path = rng.random(), rng.choice(GUARDED)
        if chosen < 0.4:
            yield one("PUT", path, guests.value())
        elif chosen < 0.6:
            yield group(*(("PUT", one_of_them, guests.value()) for one_of_them in GUARDED))
        elif chosen < 0.9:
            yield one("GET", path, changes=False)
        else:
            yield one("ACL", "SET", path, *change(rng))


def rest(guest: Guest) -> Doing:
    """Look at what is left in the end; it has to be answered."""
    yield one("LOOKUP", "/", changes=False, is_vital=True)
    if not guest.guests.is_prepared:
        return
    while not all(other.is_done for other in guest.guests.guests if other is not guest):
        yield Nap(WAIT_MS)
    want = one("COUNTER", "GET", TICKETS, changes=False, is_vital=True)
    guest.guests.noted(*(yield from _do(guest, "count", (TICKETS,), want)))
    for queue in (QUEUE_DONE, AWAITED):
        told = [0, 1]
        while told[1]:
            yield Nap(WAIT_MS)
            _, told = yield one("QUEUE", "LEN", queue, changes=False, is_vital=True)
        want = one("QUEUE", "PEEK", queue, f"{REST_MAX}", changes=False, is_vital=True)
        guest.guests.noted(*(yield from _do(guest, "rest", (queue,), want)))


CHORES: tuple[Chore, ...] = (
    wishing, wishing, wishing, wishing, locking, locking, electing, electing, counting, sequencing,
    queueing, queueing, awaiting, awaiting, keeping, writing, writing, transacting,
    ruling, ruling, abiding, abiding,
)  # fmt: skip
"""What there is to do; a run has `CHORES_MAX` of these."""
CHORES_MAX = 13
SHARERS = 3
"""Do `sharing` where synchronisation is wished most, beside the others."""
IN_RESP3 = (keeping,)
"""These hear what they have not asked for."""
OF_USERS = (abiding,)
