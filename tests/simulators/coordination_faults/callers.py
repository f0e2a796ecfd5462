"""Whoever asks the nodes for things, at one node after the other, and writes down what it is told.

Invariants:
1. What a client does not know it calls `info`: a request that was sent and not answered, unless a
   repetition with the same number was. `fail` is said only if every attempt was refused.
2. What the state refuses is an answer, a `Refused` that is returned: it is the number's for good.

Elsewhere: the words of the protocol (`talk`), what is asked for (`clients`, `workloads`).
"""

from __future__ import annotations

import random
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from simulators.coordination_faults.talk import Address, Connection, Refused
from simulators.histories.events import Recorder

__all__ = ["ASK_S_MAX", "KEYS", "KEY_OPERATIONS_MAX", "Asker", "Shared"]

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
_IN_DOUBT = {"UNKNOWN", "CSNGONE", "SESSIONEXPIRED", "SESSIONMOVED"}
_ENDS_SESSION = {"CSNGONE", "SESSIONEXPIRED", "SESSIONMOVED"}
_STATES = {
    "CAS_MISMATCH", "LOCKED", "NOTHELD", "FENCED", "EXECABORT", "ERROR_DOES_NOT_EXISTS",
}  # fmt: skip
"""What the state says no with."""


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
        self._places: Counter[str] = Counter()
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

    def place(self, name: str) -> str:
        """Return a thing of this name that is in use; another one when it was used enough."""
        with self.lock:
            self._places[name] += 1
            return f"{name}/{self._places[name] // KEY_OPERATIONS_MAX}"

    def go_on(self) -> None:
        """Allow asking again, after everybody has stopped."""
        self.stop = threading.Event()

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


class Asker(threading.Thread):
    """One of them, with a session or without."""

    session_ms = "10000"
    has_session = True

    def __init__(self, shared: Shared, seed: str) -> None:
        super().__init__(daemon=True)
        self.shared = shared
        self.rng = random.Random(seed)
        self.process = shared.process()
        self.failure: BaseException | None = None
        self._node = 0
        self._connection: Connection | None = None
        self._session: tuple[str, str] | None = None
        self._csn = 0

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
            self.hang_up()

    @abstractmethod
    def _operate(self) -> None:
        """Ask for one thing."""

    def _end(self, ended: str, told: Any = None, version: str | None = None) -> None:
        """Write down how what was asked for ended."""
        if ended == "ok":
            self.shared.note("ok", self.process, told, _version(version))
            return
        self.shared.note(ended, self.process, told)
        if ended == "info":
            self.process = self.shared.process()

    def _ask(self, *requests: Sequence[str], is_change: bool) -> tuple[str, Any]:
        """Return how it ended, and the answer to the last request, or why there is none.

        Those before the last one do nothing until it is said, as in a transaction.
        """
        end = time.monotonic() + ASK_S_MAX
        in_doubt, why = False, "no time"
        csn, has_number = 0, self.has_session and (is_change or len(requests) > 1)
        while time.monotonic() < end and not self.shared.stop.is_set():
            was_sent = False
            try:
                connection = self._connected()
                if has_number and not csn:
                    self._csn = csn = self._csn + 1
                for request in requests[:-1]:
                    connection.call(*request)
                was_sent = True
                return "ok", self._call(connection, requests[-1], csn)
            except Refused as refused:
                why = str(refused)
                self.shared.counts[f"refused {refused.code}"] += 1
                in_doubt |= was_sent and refused.code in _IN_DOUBT
                if refused.code in _ENDS_SESSION:
                    self._session = None
                    self.hang_up()
                    break
                self._follow(refused)
                if len(requests) > 1:
                    self.hang_up()
            except OSError as error:
                why = repr(error)
                in_doubt |= was_sent
                self.hang_up()
                self._node += 1
            if in_doubt and not csn:
                break
            self.shared.stop.wait(self.rng.uniform(*BACKOFF_S))
        return ("info" if in_doubt and is_change else "fail"), why

    def _call(self, connection: Connection, request: Sequence[str], csn: int) -> Any:
        told: Any
        try:
            told = connection.call(*(("CSN", f"{csn}") if csn else ()), *request)
        except Refused as refused:
            if refused.code not in _STATES:
                raise
            told = refused
        self.shared.answered(self._node)
        return told

    def _follow(self, refused: Refused) -> None:
        """Go where the refusal says the primary is; to the next node if it does not."""
        told = refused.text.split()[-1].rpartition(":")[0] if refused.text else ""
        last_parts = [host.rpartition(".")[2] for host, _ in self.shared.addresses()]
        there = told.rpartition(".")[2]
        if refused.code == "NOTPRIMARY" and there in last_parts:
            self.hang_up()
            self._node = last_parts.index(there)
        elif refused.code != "BUSY":
            self.hang_up()
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
            told = connection.call("SESSION", "OPEN", "TTL", self.session_ms)
            fields = dict(zip(told[::2], told[1::2], strict=True))
            self._session, self._csn = (fields["client_id"], fields["secret"]), 0
        else:
            connection.call("SESSION", "RESUME", *self._session)

    def hang_up(self) -> None:
        """Leave the node it is connected with."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _version(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(int(part) for part in text.split(":"))
