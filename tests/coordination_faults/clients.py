"""Clients that set, compare and set, and read a few registers, and write down what they are told.

Invariants:
1. What a client does not know it calls `info`: a request that was sent and not answered, unless a
   repetition with the same number was. `fail` is said only if every attempt was refused.
2. A value is written at most once in a history, so that who sees it knows who wrote it.
3. A register has at most `KEY_OPERATIONS_MAX` operations, then another takes its place.

Elsewhere: the words of the protocol (`talk`), what is right (`histories`).
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from coordination_faults.talk import Address, Connection, Refused
from histories.events import Recorder

__all__ = ["ASK_S_MAX", "KEYS", "KEY_OPERATIONS_MAX", "Client", "Shared"]

KEYS = 3
"""Registers at a time."""
KEY_OPERATIONS_MAX = 600
"""So many on one of them."""
ASK_S_MAX = 6.0
"""So long one thing is asked for, at one node after the other."""
ATTEMPT_S_MAX = 1.5
"""So long one node is waited for."""
BACKOFF_S = (0.01, 0.1)
THINK_S_MAX = 0.06
_SESSION_MS = "20000"
_IN_DOUBT = {"UNKNOWN", "CSNGONE", "SESSIONEXPIRED", "SESSIONMOVED"}
_ENDS_SESSION = {"CSNGONE", "SESSIONEXPIRED", "SESSIONMOVED"}


class Shared:
    """What all clients of a run have in common."""

    def __init__(
        self, recorder: Recorder, addresses: Callable[[], Sequence[Address]], login: Sequence[str]
    ) -> None:
        self.recorder, self.addresses, self.login = recorder, addresses, login
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self.primary = 0
        """Who answered last."""
        self.answered_at = time.monotonic()
        self.longest_silence_s = 0.0
        self._used: Counter[int] = Counter()
        self._keys = list(range(KEYS))
        self._values = 0
        self._processes = 0

    def key(self, at: int) -> str:
        """Return the name of one of the registers in use; count its use."""
        with self.lock:
            key = self._keys[at]
            self._used[key] += 1
            if self._used[key] >= KEY_OPERATIONS_MAX:
                self._keys[at] = max(self._keys) + 1
            return f"register-{key}"

    def value(self) -> str:
        """Return a value that was never written."""
        with self.lock:
            self._values += 1
            return f"v{self._values}"

    def process(self) -> str:
        """Return a name that nobody has in the history."""
        with self.lock:
            self._processes += 1
            return f"c{self._processes}"

    def note(self, what: str, process: str, *told: Any) -> None:
        """Write it down."""
        with self.lock:
            now = time.monotonic_ns()
            if what == "invoke":
                self.recorder.invoke(process, told[0], told[1], now)
            elif what == "ok":
                self.recorder.ok(process, told[0], now, told[1])
            elif what == "fail":
                self.recorder.fail(process, now, *told)
            else:
                self.recorder.info(process, now, *told)
            self.counts[what] += 1

    def answered(self, node: int) -> None:
        """Somebody was answered by this node."""
        with self.lock:
            now = time.monotonic()
            self.longest_silence_s = max(self.longest_silence_s, now - self.answered_at)
            self.primary, self.answered_at = node, now


class Client(threading.Thread):
    """One of them; every fourth has no session, so what it loses sight of stays unknown."""

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(daemon=True)
        self.shared = shared
        self.rng = random.Random(seed)
        self.has_session = self.rng.random() < 0.75
        self.process = shared.process()
        self.failure: BaseException | None = None
        self._node = 0
        self._connection: Connection | None = None
        self._session: tuple[str, str] | None = None
        self._csn = 0
        self._seen: dict[str, str] = {}

    def run(self) -> None:
        """Ask for one thing after the other until all have to stop."""
        try:
            while not self.shared.stop.is_set():
                self._operate()
                self.shared.stop.wait(self.rng.uniform(0, THINK_S_MAX))
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._hang_up()

    def _operate(self) -> None:
        key = self.shared.key(self.rng.randrange(KEYS))
        function = self.rng.choice(("get", "get", "set", "cas"))
        if function == "get":
            argument: tuple[str, ...] = (key,)
        elif function == "set":
            argument = key, self.shared.value()
        else:
            argument = key, self._seen.get(key, ""), self.shared.value()
        self.shared.note("invoke", self.process, function, argument)
        ended, told = self._ask(function, argument)
        if ended == "ok" and function == "get":
            value, version = told
            self._seen[key] = value
            self.shared.note("ok", self.process, value, _version(version))
        elif ended == "ok":
            self.shared.note("ok", self.process, told, None)
        else:
            self.shared.note(ended, self.process, told)
            if ended == "info":
                self.process = self.shared.process()

    def _ask(self, function: str, argument: tuple[str, ...]) -> tuple[str, Any]:
        """Return how it ended, and the result, or why there is none."""
        end = time.monotonic() + ASK_S_MAX
        in_doubt, why = False, "no time"
        csn = 0
        while time.monotonic() < end and not self.shared.stop.is_set():
            was_sent = False
            try:
                connection = self._connected()
                if self.has_session and function != "get" and not csn:
                    self._csn = csn = self._csn + 1
                was_sent = True
                return "ok", self._call(connection, function, argument, csn)
            except Refused as refused:
                why = str(refused)
                self.shared.counts[f"refused {refused.code}"] += 1
                in_doubt |= was_sent and refused.code in _IN_DOUBT
                if refused.code in _ENDS_SESSION:
                    self._session = None
                    self._hang_up()
                    break
                self._follow(refused)
            except OSError as error:
                why = repr(error)
                in_doubt |= was_sent
                self._hang_up()
                self._node += 1
            if in_doubt and not csn:
                break
            self.shared.stop.wait(self.rng.uniform(*BACKOFF_S))
        return ("info" if in_doubt and function != "get" else "fail"), why

    def _call(
        self, connection: Connection, function: str, argument: tuple[str, ...], csn: int
    ) -> Any:
        words = [function.upper(), *argument]
        if function == "get":
            words.append("META")
        elif csn:
            words[:0] = ["CSN", str(csn)]
        try:
            told = connection.call(*words)
        except Refused as refused:
            if refused.code != "CAS_MISMATCH":
                raise
            told = False
        self.shared.answered(self._node)
        if function == "cas":
            return told == "OK"
        return told if function == "get" else None

    def _follow(self, refused: Refused) -> None:
        """Go where the refusal says the primary is; to the next node if it does not."""
        told = refused.text.split()[-1].rpartition(":")[0] if refused.text else ""
        last_parts = [host.rpartition(".")[2] for host, _ in self.shared.addresses()]
        there = told.rpartition(".")[2]
        if refused.code == "NOTPRIMARY" and there in last_parts:
            self._hang_up()
            self._node = last_parts.index(there)
        elif refused.code != "BUSY":
            self._hang_up()
            self._node += 1

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        addresses = self.shared.addresses()
        self._node %= len(addresses)
        connection = Connection(addresses[self._node], ATTEMPT_S_MAX)
        try:
            if self.shared.login:
                connection.call("AUTH", *self.shared.login)
            if self.has_session:
                self._resume(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _resume(self, connection: Connection) -> None:
        if self._session is None:
            told = connection.call("SESSION", "OPEN", "TTL", _SESSION_MS)
            fields = dict(zip(told[::2], told[1::2], strict=True))
            self._session, self._csn = (fields["client_id"], fields["secret"]), 0
        else:
            connection.call("SESSION", "RESUME", *self._session)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(":"))
