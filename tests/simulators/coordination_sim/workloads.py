"""What clients of namespaces do: generators of requests.

Each yields a `Want`, and is told how it ended, `ok`, `fail` or `info`, and the answer; or a `Nap`.
What can be checked as a history is noted (`histories`); requests of all kinds are checked by what
they do to the state alone (`shadow`).

Invariants:
1. A value is written at most once in a history; so is what is pushed.
2. A workload ends once the faults are over and its last request has ended.
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
from simulators.namespace_requests import RandomRequests
from simulators.namespace_truth import COUNTER, PATHS, QUEUE, UNITS
from simulators.namespace_world import Words

if TYPE_CHECKING:
    from simulators.coordination_sim.namespace_clients import NamespaceClient

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
REQUESTS_OFTEN = 4.0
"""So much more often somebody requests something than others do."""
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
    """What a client wants and does not know yet."""

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
Workload = Callable[["NamespaceClient"], Doing]


def one(*words: str | bytes, changes: bool = True, is_vital: bool = False) -> Want:
    """Return a single request."""
    return Want((words,), changes, words, is_vital)


def group(*commands: Words) -> Want:
    """Return a transaction."""
    return Want((("MULTI",), *commands, ("EXEC",)), True, ("EXEC", *commands))


def _pauses(client: NamespaceClient, speed: float = 1.0) -> Doing:
    """Wait for the next thing to do; return whether there is any."""
    if client.world.calm:
        return False
    if client.rng.random() < NAP * (1 if client.world.conditions.sign_of_life == 1 else 5):
        yield Nap(client.rng.uniform(0.5, 2) * client.ttl_ms, is_silent=True)
    yield Nap(client.rng.expovariate(speed / client.namespace_clients.between_ms))
    while not client.namespace_clients.is_prepared and not client.world.calm:
        yield Nap(WAIT_MS)
    while not client.session and not client.world.calm:
        yield one("LOOKUP", ROOT, changes=False)
    return not client.world.calm and client.namespace_clients.is_prepared


def _do(client: NamespaceClient, function: str, argument: tuple[str, ...], want: Want) -> Doing:
    """Note that something is asked for, and ask; who calls notes how it ended."""
    place = client.namespace_clients.note(function, argument)
    ended, told = yield want
    return place, ended, told


def preparing(client: NamespaceClient) -> Doing:
    """Make the elements that all is about."""
    roots: list[Words] = [("CREATENAMESPACE", "/n"), ("CREATENAMESPACE", ROOT)]
    requests = (roots * (not client.namespace_clients.has_roots)) + [
        ("CREATE", "BINARY", path) for path in sorted(PATHS)
    ]
    requests += [("CREATE", "QUEUE", path) for path in (QUEUE, QUEUE_DONE, AWAITED)]
    requests += [("CREATE", "COUNTER", path) for path in (COUNTER, TICKETS)]
    requests += [("CREATE", "BINARY", path) for path in (LOCK, LEADER, SEQUENCE, *GUARDED)]
    for words in requests:
        told = None
        while told not in ("OK", "EXISTS"):
            _, told = yield one(*words)  # type: ignore[arg-type]
            if client.world.calm:
                return
            if client.namespace_clients.has_roots and told not in ("OK", "EXISTS"):
                yield Nap(WAIT_MS)
    client.namespace_clients.is_prepared = True


def requesting(client: NamespaceClient) -> Doing:
    """Want anything: locks, moves, semaphores, barriers, queues, counters, transactions."""
    requests = _RandomRequests(client)
    while (yield from _pauses(client, REQUESTS_OFTEN)):
        if client.rng.random() < 0.1:
            words: Words = client.rng.choice(_AGAIN)
        else:
            words = requests.invent(client, client.session)
        want = group(*words[1:]) if words[0] == "EXEC" else one(*words)  # type: ignore[arg-type]
        ended, told = yield want._replace(deadline_ms=client.rng.choice(DEADLINES_MS))
        if words[:2] == ("QUEUE", "TAKE") and ended == "ok" and isinstance(told, list):
            client.items += [item[0].encode() for item in told]
    for words in [("LOCK", "RELEASE", path) for path, _ in requests.held(client.session)]:
        yield one(*words)


class _RandomRequests(RandomRequests):
    def __init__(self, client: NamespaceClient) -> None:
        self.rng, self.focus = client.rng, client.focus
        self._shadow = client.namespace_clients.shadow

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


def locking(client: NamespaceClient) -> Doing:
    """Take a lock, write what only its holder may, release it or be silent."""
    while (yield from _pauses(client)):
        nowait = ("NOWAIT",) * (client.rng.random() < 0.5)
        take: Words = ("LOCK", "WRITE", LOCK, "TOKEN", *nowait)
        yield from _turn(client, LOCK, take, ("LOCK", "RELEASE", LOCK))


def sharing(client: NamespaceClient) -> Doing:
    """Take a unit of a semaphore, keep it for a while, and give it back."""
    while (yield from _pauses(client)):
        for words in (("CREATE", "BINARY", UNITS), ("SEMAPHORE", "INIT", "1", UNITS)):
            yield one(*words)
        _, told = yield one("SEMAPHORE", "ACQUIRE", UNITS)
        if told == "OK":
            yield Nap(client.rng.expovariate(1 / client.namespace_clients.between_ms))
            yield one("SEMAPHORE", "RELEASE", UNITS)


def electing(client: NamespaceClient) -> Doing:
    """Campaign, and do as a leader what a holder does; look who leads."""
    clients = client.namespace_clients
    while (yield from _pauses(client)):
        if client.rng.random() < 0.3:
            want = one("ELECT", "LEADER", LEADER, changes=False)
            place, ended, told = yield from _do(client, "leader", (LEADER,), want)
            seen = [told[0].rpartition("-")[2], told[1]] if told else None
            clients.noted(place, ended, seen)
        else:
            take: Words = ("ELECT", "CAMPAIGN", LEADER, clients.value())
            yield from _turn(client, LEADER, take, ("ELECT", "RESIGN", LEADER))


def _turn(client: NamespaceClient, path: str, take: Words, let_go: Words) -> Doing:
    rng, clients = client.rng, client.namespace_clients
    want = one(*take)  # type: ignore[arg-type]
    place, ended, told = yield from _do(client, "lock", (path, f"{client.session}"), want)
    session = f"{client.session}"
    clients.asked(place, (path, session))
    token = told[1] if isinstance(told, list) and told[0] == "OK" else None
    clients.noted(place, ended, token)
    for _ in range(rng.randrange(3) if token else 0):
        if rng.random() < 3 * NAP:
            yield Nap(1.5 * client.ttl_ms, is_silent=True)
        yield from _put(client, path, token)
    if token:
        yield Nap(rng.expovariate(1 / clients.between_ms))
    if token and rng.random() < 0.9 and f"{client.session}" == session:
        want = one(*let_go)  # type: ignore[arg-type]
        place, ended, told = yield from _do(client, "release", (path, session, token), want)
        clients.noted(place, ended, told == "OK")


def _put(client: NamespaceClient, path: str, token: str) -> Doing:
    value = client.namespace_clients.value()
    want = group(("PUT", path, value, "IFLOCK", token), ("GET", path, "CAS"))
    argument = path, f"{client.session}", token, value
    place, ended, told = yield from _do(client, "put", argument, want)
    client.namespace_clients.asked(place, (path, f"{client.session}", token, value))
    is_written = ended == "ok" and not isinstance(told, ErrorReply)
    version = told[1][0] if is_written else None
    client.namespace_clients.noted(place, ended, is_written, version)


def counting(client: NamespaceClient) -> Doing:
    """Count by one, and read."""
    while (yield from _pauses(client)):
        if client.rng.random() < 0.3:
            want = one("COUNTER", "GET", TICKETS, changes=False)
            done = yield from _do(client, "count", (TICKETS,), want)
        else:
            done = yield from _do(client, "next", (TICKETS,), one("COUNTER", "INC", TICKETS))
        client.namespace_clients.noted(*done)


def sequencing(client: NamespaceClient) -> Doing:
    """Make elements with names in sequence, which end with the session or are deleted."""
    name = f"{SEQUENCE}/n"
    while (yield from _pauses(client)):
        words = "CREATE", "BINARY", "EPHEMERAL", "SEQUENTIAL", name
        place, ended, told = yield from _do(client, "next", (SEQUENCE,), one(*words))
        number = int(told.removeprefix(name)) + 1 if ended == "ok" else None
        client.namespace_clients.noted(place, ended, number)
        if ended == "ok" and client.rng.random() < 0.5:
            yield one("DELETE", told)


def queueing(client: NamespaceClient) -> Doing:
    """Push, take and do what is in a queue, or give it back, or forget it."""
    while (yield from _pauses(client)):
        if client.rng.random() < 0.5:
            yield from _push(client, QUEUE_DONE)
        else:
            yield from _take(client, QUEUE_DONE)


def awaiting(client: NamespaceClient) -> Doing:
    """Push; or wait until there is something, and take it."""
    while (yield from _pauses(client)):
        if client.rng.random() < 0.3:
            yield from _push(client, AWAITED)
            continue
        ended, told = yield one("QUEUE", "WAIT", AWAITED)
        if ended == "ok" and told == "OK":
            yield from _take(client, AWAITED)


def _push(client: NamespaceClient, queue: str) -> Doing:
    value = client.namespace_clients.value()
    want = one("QUEUE", "PUSH", queue, value)
    place, ended, told = yield from _do(client, "push", (queue, value), want)
    client.namespace_clients.noted(place, ended, told[0] if ended == "ok" else None)


def _take(client: NamespaceClient, queue: str) -> Doing:
    rng, clients = client.rng, client.namespace_clients
    session = f"{client.session}"
    want = one("QUEUE", "TAKE", queue, f"{rng.randint(1, TAKEN_MAX)}")
    place, ended, told = yield from _do(client, "take", (queue, session), want)
    clients.noted(place, ended, told)
    for number, _, deliveries in told if ended == "ok" else ():
        chosen = rng.random()
        if chosen < 0.9 and f"{client.session}" == session:
            function = "ack" if chosen < 0.8 else "nack"
            argument = queue, session, number, f"{deliveries}"
            want = one("QUEUE", function.upper(), queue, number)
            place, ended, done = yield from _do(client, function, argument, want)
            clients.noted(place, ended, done == 1)


def keeping(client: NamespaceClient) -> Doing:
    """Subscribe for good, and acknowledge what is heard; be gone, and come back."""
    rng = client.rng
    keeper = client.keeper = Keeper(client, client.namespace_clients.shadow.told[ROOT.encode()])
    while (yield from _pauses(client, REQUESTS_OFTEN)):
        chosen = rng.random()
        if chosen < 0.6 and client.session == keeper.session and keeper.is_known:
            yield from keeper.acknowledge(one)
        elif chosen < 0.7:
            client.cut()
            yield Nap(rng.uniform(0, 1.5) * client.ttl_ms, is_silent=rng.random() < 0.5)
    while client.namespace_clients.is_prepared and not keeper.is_well:
        yield one("LOOKUP", ROOT, changes=False, is_vital=True)
        yield Nap(WAIT_MS)


def writing(client: NamespaceClient) -> Doing:
    """Write and read elements as registers."""
    rng, clients = client.rng, client.namespace_clients
    made, seen = set(), {}
    while (yield from _pauses(client)):
        path = clients.place(f"{ROOT}/register{rng.randrange(2)}-", OPERATIONS_MAX)
        if path not in made:
            ended, told = yield one("CREATE", "BINARY", path, "")
            if told not in ("OK", "EXISTS"):
                continue
            made.add(path)
        value, known = clients.value(), seen.get(path)
        chosen = rng.random()
        if known is None or chosen < 0.4:
            want = one("GET", path, "CAS", changes=False)
            place, ended, told = yield from _do(client, "get", (path,), want)
            clients.noted(place, ended, told[1] if ended == "ok" else None)
            seen[path] = told if ended == "ok" else known
        elif chosen < 0.6:
            done = yield from _do(client, "set", (path, value), one("PUT", path, value))
            clients.noted(*done)
        else:
            version, expected = known
            want = one("PUT", path, value, "CAS", version)
            place, ended, told = yield from _do(client, "cas", (path, expected, value), want)
            clients.noted(place, ended, told == "OK")


def transacting(client: NamespaceClient) -> Doing:
    """Write elements together if they are what was last seen, and read them together.

    They are one register: what is torn is a value that nobody wrote.
    """
    rng, clients = client.rng, client.namespace_clients
    made, seen = "", None
    while (yield from _pauses(client)):
        place = clients.place(f"{ROOT}/together", OPERATIONS_MAX)
        paths = [f"{place}/{part}" for part in PARTS]
        if made != place:
            ended, _ = yield group(*(("CREATE", "BINARY", "PARENTS", path) for path in paths))
            made, seen = (place if ended == "ok" else ""), None
        elif seen is None or rng.random() < 0.4:
            want = group(*(("GET", path, "CAS") for path in paths))
            at, ended, told = yield from _do(client, "get", (place,), want)
            if ended == "ok":
                values = sorted({value for _, value in told})
                seen, told = (told[0][0], values[0]), "|".join(values)
            clients.noted(at, ended, told)
        else:
            (version, expected), seen, value = seen, None, clients.value()
            puts = [("PUT", path, value) for path in paths]
            want = group(("CHECK", paths[0], "CAS", version), *puts)
            at, ended, told = yield from _do(client, "cas", (place, expected, value), want)
            clients.noted(at, ended, not isinstance(told, ErrorReply))


def ruling(client: NamespaceClient) -> Doing:
    """Change who may what."""
    rng = client.rng
    while (yield from _pauses(client, REQUESTS_OFTEN)):
        yield one("ACL", "SET", rng.choice(GUARDED), *change(rng))


def abiding(client: NamespaceClient) -> Doing:
    """Do, as a user, what may be allowed or not; change lists, too, where it is the owner."""
    rng, clients = client.rng, client.namespace_clients
    while (yield from _pauses(client)):
        chosen, path = rng.random(), rng.choice(GUARDED)
        if chosen < 0.4:
            yield one("PUT", path, clients.value())
        elif chosen < 0.6:
            yield group(*(("PUT", one_of_them, clients.value()) for one_of_them in GUARDED))
        elif chosen < 0.9:
            yield one("GET", path, changes=False)
        else:
            yield one("ACL", "SET", path, *change(rng))


def rest(client: NamespaceClient) -> Doing:
    """Look at what is left in the end; it has to be answered."""
    yield one("LOOKUP", "/", changes=False, is_vital=True)
    if not client.namespace_clients.is_prepared:
        return
    while not all(
        other.is_done
        for other in client.namespace_clients.namespace_clients
        if other is not client
    ):
        yield Nap(WAIT_MS)
    want = one("COUNTER", "GET", TICKETS, changes=False, is_vital=True)
    client.namespace_clients.noted(*(yield from _do(client, "count", (TICKETS,), want)))
    for queue in (QUEUE_DONE, AWAITED):
        told = [0, 1]
        while told[1]:
            yield Nap(WAIT_MS)
            _, told = yield one("QUEUE", "LEN", queue, changes=False, is_vital=True)
        want = one("QUEUE", "PEEK", queue, f"{REST_MAX}", changes=False, is_vital=True)
        client.namespace_clients.noted(*(yield from _do(client, "rest", (queue,), want)))


WORKLOADS: tuple[Workload, ...] = (
    requesting, requesting, requesting, requesting, locking, locking, electing, electing,
    counting, sequencing, queueing, queueing, awaiting, awaiting, keeping, writing, writing,
    transacting, ruling, ruling, abiding, abiding,
)  # fmt: skip
"""What there is to do; a run has `WORKLOADS_MAX` of these."""
WORKLOADS_MAX = 13
SHARERS = 3
"""Do `sharing` where synchronisation is requested most, beside the others."""
IN_RESP3 = (keeping,)
"""These hear what they have not asked for."""
OF_USERS = (abiding,)
