"""Waiting for nodes that do not answer: the option `reconnectTimeout` of source and sinks.

Invariants:
1. A wait begins at the first failure and ends after the seconds that the option allows. The error
   that ends it names the last failure, and nothing waits for that error again.
2. A wait that takes longer than `TOLD_AFTER_S` says on stderr what it waits for, again every
   `TOLD_EVERY_S`, and when it is over. Spark shows stderr of its drivers and executors.

Elsewhere: what is asked (`control`, `reading`, `sinks`), pauses (`client.routing.Backoff`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from millstream.client.routing import Backoff
from millstream.errors import (
    AccessError,
    MillstreamError,
    RoutingError,
    StreamError,
    UnavailableError,
)

__all__ = ["RECONNECT_S_DEFAULT", "Asked", "Wait", "advised", "again", "ask_again"]

RECONNECT_S_DEFAULT: Final = 600.0
"""How long a node that is away is waited for unless `reconnectTimeout` says otherwise."""
TOLD_AFTER_S: Final = 2.0
TOLD_EVERY_S: Final = 10.0
_MOVED: Final = frozenset({"lease_lost", "stream_ended", "rolled_back"})
_CHANGED: Final = (
    " If it was changed while a query ran: write the new one to passwordFile, or "
    "MILLSTREAM_PASSWORD, on the driver and start again; the query goes on from its checkpoint"
)
_ADVICE: Final = {
    "bad_credentials": _CHANGED,
    "login_stale": _CHANGED,
    "unknown_bucket": (
        " If it was dropped while a query ran: what the query has written elsewhere stays; one "
        "that is made anew needs a new checkpoint"
    ),
}

Answer = TypeVar("Answer")


class Asked(Protocol):
    """A client that can be asked, such as `client.kv.Client`."""

    @property
    def reconnect_s(self) -> float:
        """How long it is asked again, in seconds."""
        ...

    def refresh_map(self) -> None:
        """Ask for the newest partition map."""
        ...


SomeClient = TypeVar("SomeClient", bound=Asked)


class Wait:
    """Growing pauses until something is there, for a limited time.

    Args:
        reconnect_s: longest wait, in seconds; `math.inf` for no end.
    """

    def __init__(self, reconnect_s: float) -> None:
        self._reconnect_s = reconnect_s
        self._backoff: Backoff | None = None
        self._began_s = self._told_s = 0.0
        self._is_told = False

    def pause(self, failure: MillstreamError) -> None:
        """Pause before the next attempt.

        Args:
            failure: what is waited for, to be told.

        Raises:
            MillstreamError: `failure`, if the time is over: with `retry` never, or with 0 seconds
                as it is.
        """
        if not self._reconnect_s:
            raise failure
        now_s = time.monotonic()
        if self._backoff is None:
            self._backoff = Backoff(self._reconnect_s)
            self._began_s, self._told_s = now_s, now_s + TOLD_AFTER_S - TOLD_EVERY_S
        if now_s >= self._told_s + TOLD_EVERY_S:
            self._told_s, self._is_told = now_s, True
            sys.stderr.write(
                f"millstream: waiting for {now_s - self._began_s:.0f} s, {self._limit}: "
                f"{failure}\n"
            )
        if not self._backoff.wait():
            waited = f"tried again for {self._reconnect_s:g} s: reconnectTimeout"
            failure.args = (f"{failure} ({waited})",)
            failure.retry = "never"
            raise failure

    def end(self) -> None:
        """Say that it is over, if it was told of; the next failure begins a wait of its own."""
        if self._is_told:
            took_s = time.monotonic() - self._began_s
            sys.stderr.write(f"millstream: goes on after a wait of {took_s:.0f} s\n")
        self._backoff, self._is_told = None, False

    @property
    def _limit(self) -> str:
        if math.isinf(self._reconnect_s):
            return "reconnectTimeout forever"
        return f"reconnectTimeout {self._reconnect_s:g} s"


def ask_again(
    client: SomeClient, ask: Callable[[SomeClient], Answer], *, may_move: bool = False
) -> Answer:
    """Ask until there is an answer, for the client's `reconnect_s`, by a new map each time.

    `ask` may be called several times, also after its question arrived.

    Args:
        client: of the bucket.
        ask: the question.
        may_move: see `again`; it opens a lease.

    Raises:
        UnavailableError, RoutingError: there is none.
    """

    def refresh_map() -> None:
        with suppress(UnavailableError):  # whoever is asked next says what is the matter
            client.refresh_map()

    return again(lambda: ask(client), client.reconnect_s, refresh_map, may_move=may_move)


def again(
    do: Callable[[], Answer],
    reconnect_s: float,
    between: Callable[[], None] = lambda: None,
    *,
    may_move: bool = False,
) -> Answer:
    """Do something until it is done, for `reconnect_s` from its first failure.

    Args:
        do: may be called several times.
        reconnect_s: in seconds; 0 for one attempt, `math.inf` for no end.
        between: called before each further time.
        may_move: it reads partitions, and each time it opens leases of its own. One that is
            lost, or a stream that ends early, means that a partition moves or was rolled back,
            and is no final answer either.

    Raises:
        UnavailableError, RoutingError: the last failure, with `retry` never; or the first one
            that has it; or, with 0 seconds, the only one as it is.
    """
    wait = Wait(reconnect_s)
    failure: MillstreamError
    while True:
        try:
            answer = do()
        except AccessError as error:
            raise advised(error) from error
        except (UnavailableError, RoutingError) as error:
            if error.retry == "never":
                raise
            failure = error
        except StreamError as error:
            if not may_move or error.code not in _MOVED:
                raise
            failure = error
        else:
            wait.end()
            return answer
        wait.pause(failure)
        between()


def advised(error: AccessError) -> AccessError:
    """Add to a log-in error what the user of a job or a query can do about it."""
    advice = _ADVICE.get(error.code, "")
    if not str(error).endswith(advice):
        error.args = (f"{error}.{advice}",)
    return error
