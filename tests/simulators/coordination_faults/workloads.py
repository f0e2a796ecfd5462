"""Clients of namespaces: locks, counters, queues, names in sequence, transactions, watching.

Each works on one thing that it makes if it is not there, and writes down what `histories` checks.

Invariants:
1. A value is written at most once in a history; so is what is pushed.
2. Who does not know what became of what it asked for goes on as another process; if its session is
   gone, as another session.

Elsewhere: registers (`clients`), how they ask (`callers`), what is right (`histories`).
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from simulators.coordination_faults.callers import ATTEMPT_S_MAX, Asker, Shared
from simulators.coordination_faults.talk import Connection, Refused

__all__ = ["NAMESPACE", "WORKLOADS", "Counting", "Queueing"]

NAMESPACE: Final = "/faults"
HELD_S_MAX = 0.1
TAKEN_MAX = 3
HEARD_MAX = 20
"""Messages that a watcher takes before it looks whether all have to stop."""
REST_MAX = 100_000
_PARTS = ("a", "b", "c")
"""Elements that transactions write together."""


class _Worker(Asker):
    """One that works below `NAMESPACE`; its session ends soon when it is silent."""

    session_ms = "2000"
    name_of: ClassVar[str]
    """What it works on."""

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(shared, seed)
        self._is_made = False

    @property
    def key(self) -> str:
        return f"{NAMESPACE}/{self.name_of}"

    @property
    def session(self) -> str:
        """The session that the next request is of."""
        return self._session[0] if self._session else ""

    def _operate(self) -> None:
        if not self._is_made:
            self._is_made = all(self._is_done(words) for words in self._making())
        elif self._session or self._is_done(("LOOKUP", self.key)):
            self._work()

    def _is_done(self, words: Sequence[str]) -> bool:
        ended, told = self._ask(words, is_change=words[0] != "LOOKUP")
        return ended == "ok" and told in ("OK", "EXISTS")

    def _making(self) -> list[tuple[str, ...]]:
        return [("CREATENAMESPACE", NAMESPACE), ("CREATE", *self._kind(), self.key)]

    def _kind(self) -> tuple[str, ...]:
        return ("BINARY",)

    @abstractmethod
    def _work(self) -> None:
        """Do one thing."""

    def _do(
        self,
        function: str,
        argument: tuple[str, ...],
        *requests: Sequence[str],
        changes: bool = True,
    ) -> tuple[str, Any]:
        """Note that it is asked for, and ask; who calls notes how it ended."""
        self.shared.note("invoke", self.process, function, argument)
        return self._ask(*requests, is_change=changes)


class Locking(_Worker):
    """Takes a lock, writes below it what only its holder may, releases it or is silent."""

    name_of = "lock"

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(shared, seed)
        self._awaits = False

    def _work(self) -> None:
        if (token := self._lock()) is None:
            return
        for _ in range(self.rng.randrange(3)):
            self._put(token)
            self.shared.stop.wait(self.rng.uniform(0, HELD_S_MAX))
        if self.rng.random() < 0.9:
            self._release(token)

    def _lock(self) -> str | None:
        words = ["LOCK", "WRITE", self.key, "TOKEN"]
        if not self._awaits and self.rng.random() < 0.5:
            words.append("NOWAIT")
        session = self.session
        ended, told = self._do("lock", (self.key, session), words)
        token = None
        if ended == "ok":
            token = told[1] if isinstance(told, list) and told[0] == "OK" else None
            told = token
        self._awaits = ended == "ok" and token is None and "NOWAIT" not in words
        self._end(ended, told)
        return token

    def _put(self, token: str) -> None:
        """Write under the token; a transaction, which tells of which version it was."""
        value = self.shared.value()
        ended, told = self._do(
            "put", (self.key, self.session, token, value), ("MULTI",),
            ("PUT", self.key, value, "IFLOCK", token), ("GET", self.key, "CAS"), ("EXEC",),
        )  # fmt: skip
        version = None
        if ended == "ok":
            is_written = not isinstance(told, Refused)
            version = told[1][0] if is_written else None
            told = is_written
        self._end(ended, told, version)

    def _release(self, token: str) -> None:
        argument = self.key, self.session, token
        ended, told = self._do("release", argument, ("LOCK", "RELEASE", self.key))
        self._end(ended, told == "OK" if ended == "ok" else told)


class Counting(_Worker):
    """Counts by one, and reads."""

    name_of = "counter"

    def _kind(self) -> tuple[str, ...]:
        return ("COUNTER",)

    def _work(self) -> None:
        if self.rng.random() < 0.3:
            self.count()
        else:
            self._end(*self._do("next", (self.key,), ("COUNTER", "INC", self.key)))

    def count(self) -> None:
        """Read it."""
        words = "COUNTER", "GET", self.key
        self._end(*self._do("count", (self.key,), words, changes=False))


class Sequencing(_Worker):
    """Makes elements with names in sequence, which end with it or which it deletes."""

    name_of = "sequence"

    def _work(self) -> None:
        words = "CREATE", "BINARY", "EPHEMERAL", "SEQUENTIAL", f"{self.key}/n"
        ended, told = self._do("next", (self.key,), words)
        if ended == "ok":
            path, told = told, int(told.removeprefix(f"{self.key}/n")) + 1
            self._end(ended, told)
            if self.rng.random() < 0.5:
                self._ask(("DELETE", path), is_change=True)
        else:
            self._end(ended, told)


class Queueing(_Worker):
    """Pushes, takes and does what is in a queue, or gives it back, or forgets it."""

    name_of = "queue"

    def _kind(self) -> tuple[str, ...]:
        return ("QUEUE",)

    def _work(self) -> None:
        if self.rng.random() < 0.5:
            value = self.shared.value()
            ended, told = self._do("push", (self.key, value), ("QUEUE", "PUSH", self.key, value))
            self._end(ended, told[0] if ended == "ok" else told)
            return
        words = "QUEUE", "TAKE", self.key, f"{self.rng.randint(1, TAKEN_MAX)}"
        session = self.session
        ended, told = self._do("take", (self.key, session), words)
        self._end(ended, told)
        for number, _, deliveries in told if ended == "ok" else ():
            chosen = self.rng.random()
            if chosen < 0.9 and self.session == session:
                self._finish("ack" if chosen < 0.8 else "nack", number, deliveries)

    def _finish(self, function: str, number: str, deliveries: int) -> None:
        argument = self.key, self.session, number, f"{deliveries}"
        words = "QUEUE", function.upper(), self.key, number
        ended, told = self._do(function, argument, words)
        self._end(ended, told == 1 if ended == "ok" else told)

    def rest(self, wait_s: float) -> bool:
        """Note what is left once nobody has taken anything; False if that does not come about."""
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            ended, told = self._ask(("QUEUE", "LEN", self.key), is_change=False)
            if ended == "ok" and isinstance(told, Refused):
                return True  # it was never made
            if ended == "ok" and told[1] == 0:
                words = "QUEUE", "PEEK", self.key, f"{REST_MAX}"
                ended, told = self._do("rest", (self.key,), words, changes=False)
                self._end(ended, told)
                return ended == "ok"
            self.shared.stop.wait(0.1)
        return False


class Transacting(_Worker):
    """Writes some elements together if they are what it last saw, and reads them together.

    They are one register: what is torn is a value that nobody wrote.
    """

    name_of = "transaction"

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(shared, seed)
        self._made = ""
        self._seen: tuple[str, str, str] | None = None

    def _making(self) -> list[tuple[str, ...]]:
        return [("CREATENAMESPACE", NAMESPACE), ("CREATE", "BINARY", self.key)]

    def _work(self) -> None:
        place = self.shared.place(self.key)
        if self._made != place:
            words = [("CREATE", "BINARY", "PARENTS", f"{place}/{part}") for part in _PARTS]
            if self._ask(("MULTI",), *words, ("EXEC",), is_change=True)[0] == "ok":
                self._made, self._seen = place, None
        elif self._seen is None or self.rng.random() < 0.5:
            self._read(place)
        else:
            self._write(place)

    def _read(self, place: str) -> None:
        words = [("GET", f"{place}/{part}", "CAS") for part in _PARTS]
        ended, told = self._do("get", (place,), ("MULTI",), *words, ("EXEC",), changes=False)
        version = None
        if ended == "ok":
            versions, values = zip(*told, strict=True)
            if len({*versions}) == len({*values}) == 1 and values[0]:
                version = versions[0]
            told = values[0] if len({*values}) == 1 else "|".join(values)
            self._seen = place, told, versions[0]
        self._end(ended, told, version)

    def _write(self, place: str) -> None:
        assert self._seen is not None
        _, expected, version = self._seen
        self._seen = None
        value = self.shared.value()
        words = [("PUT", f"{place}/{part}", value) for part in _PARTS]
        ended, told = self._do(
            "cas", (place, expected, value),
            ("MULTI",), ("CHECK", f"{place}/{_PARTS[0]}", "CAS", version), *words, ("EXEC",),
        )  # fmt: skip
        self._end(ended, not isinstance(told, Refused) if ended == "ok" else told)


class Writing(_Worker):
    """Writes what others watch, in a transaction, which tells of which version it was."""

    name_of = "watched"

    def _work(self) -> None:
        value = self.shared.value()
        words = ("MULTI",), ("PUT", self.key, value), ("GET", self.key, "CAS"), ("EXEC",)
        ended, told = self._do("write", (self.key, value), *words)
        version = told[1][0] if ended == "ok" else None
        self._end(ended, None if ended == "ok" else told, version)


class Watching(_Worker):
    """Watches it, at any node; goes on at another one where the connection is lost."""

    name_of = "watched"
    has_session = False

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(shared, seed)
        self._line: Connection | None = None
        self._subscription, self._lsn = "", -1

    def _operate(self) -> None:
        if self._is_made:
            self._work()
        else:
            super()._operate()

    def _work(self) -> None:
        try:
            line = self._line or self._subscribed()
            for _ in range(HEARD_MAX):
                self._hear(json.loads(line.hear()[2]))
        except Refused as refused:
            self.shared.counts[f"refused {refused.code}"] += 1
            if refused.code == "HISTORY_LOST":
                self._lsn = -1
            self._leave()
        except OSError:
            self._leave()

    def _subscribed(self) -> Connection:
        address = self.rng.choice(self.shared.addresses())
        self._line = line = Connection(address, ATTEMPT_S_MAX)
        if self.shared.login:
            line.call("AUTH", *self.shared.login)
        resume = () if self._lsn < 0 else ("FROM", f"{self._lsn}")
        line.call("SUBSCRIBE", self.key, "MODE", "DATA", *resume)
        return line

    def _hear(self, event: dict[str, Any]) -> None:
        lsn = event["lsn"]
        match event["op"]:
            case "start":
                self._subscription = self.shared.process()
                self._note("begin", lsn)
            case "put":
                self._note("see", [lsn, b64decode(event["data"]).decode()])
            case "overrun" | "denied":
                raise ConnectionError("the subscription has ended")
        self._lsn = lsn

    def _note(self, function: str, told: Any) -> None:
        argument = self.key, self._subscription
        self.shared.note("invoke", self.process, function, argument)
        self._end("ok", told)

    def _leave(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def hang_up(self) -> None:
        """Also end the subscription."""
        super().hang_up()
        self._leave()


WORKLOADS: Final[tuple[type[_Worker], ...]] = (
    Locking, Counting, Sequencing, Queueing, Transacting, Writing, Watching,
)  # fmt: skip
