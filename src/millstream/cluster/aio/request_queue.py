"""The queue of requests: any node asks, the orchestrator does it and leaves the result.

    result = await ask(client, request, timeout_s=30)      # any node
    await queue.work(version, elements)                     # the orchestrator, in each step

Invariants:
1. The result is written after the effect is in the state, and the item is acknowledged after the
   result. An orchestrator that dies in between leaves the request to the next one.
2. A result can be read for `RESULT_KEPT_S`.

Elsewhere: what requests mean (`cluster.core.requests`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from millstream.cluster.aio.state_reader import execute, read_state
from millstream.cluster.core.elements import (
    REQUESTS,
    RESULT_KEPT_S,
    ROOT,
    Request,
    result_path,
)
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.requests import outcome_of
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.core.client.errors import MissingError
from millstream.coordination.core.client.replies import Versioned
from millstream.errors import (
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from millstream.vsr.core.versions import NEVER, Version

__all__ = ["RequestQueue", "ask"]

_LOG = logging.getLogger(__name__)
TAKEN_MAX: Final = 8
"""Requests that are taken from the queue at a time."""
TRIES_MAX: Final = 10
"""How often a request is made anew because another write came between."""
SWEEP_S: Final = 60.0
"""How often old results are deleted."""
POLL_S: Final = 0.05
_RESULTS: Final = f"{ROOT}/results/"


class Result(msgspec.Struct, frozen=True):
    """The answer to a request."""

    at_ms: int
    """Unix time."""
    is_done: bool
    why: str = ""
    """What was written; empty: it was so."""
    code: str = ""
    """Of the error."""
    message: str = ""
    kind: str = ""
    """Class of the error."""
    answer: dict[str, Any] = {}
    """What is told of the change (`cluster.core.requests.Outcome`)."""


async def ask(client: AsyncClient, request: Request, *, timeout_s: float) -> Mapping[str, Any]:
    """Put a request into the queue and return its result.

    Raises:
        MillstreamError: what the orchestrator refused.
        OutcomeUnknownError: `timeout`: nobody answered; it may still be done.
    """
    await client.queue(REQUESTS).push(msgspec.json.encode(request))
    path = result_path(request.id)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while True:
        try:
            found = await client.get(path)
            break
        except MissingError:
            if loop.time() >= until_s:
                raise OutcomeUnknownError(
                    f"{request.op} was asked for, and nobody has answered within {timeout_s:g} s; "
                    "it may still be done: see `millstream cluster status`",
                    code="timeout",
                ) from None
        await asyncio.sleep(POLL_S)
    result = msgspec.json.decode(found.data, type=Result)
    if result.is_done:
        told = {"id": request.id, "changed": bool(result.why), "why": result.why}
        return told | result.answer
    raise _KINDS.get(result.kind, ConditionError)(result.message, code=result.code)


_KINDS: Final = {one.__name__: one for one in (ConditionError, UsageError, UnavailableError)}


class RequestQueue:
    """The queue as the orchestrator works it off.

    Args:
        client: whose session holds the lock.
        token: of the lock.
        memory: reports of the nodes, by which a hard fail-over is judged.
    """

    def __init__(self, client: AsyncClient, token: Version, memory: Memory) -> None:
        self._client, self._token, self._memory = client, token, memory
        self._seen = NEVER
        """Version of the queue when it was last found empty."""
        self._swept_s = 0.0

    async def work(self, version: Version, elements: Mapping[str, Versioned]) -> bool:
        """Answer what waits; return whether there was anything.

        Args:
            version: of the queue, as read in this step.
            elements: all of the state, as read in this step.
        """
        await self._sweep(elements)
        if version == self._seen:
            return False
        words = ("QUEUE", "TAKE", REQUESTS, str(TAKEN_MAX))
        taken = await self._client.execute(*words, is_change=True)
        for at, (number, content, _) in enumerate(taken):
            try:
                await self._answer(content)
            except MillstreamError:
                left = [one[0] for one in taken[at:]]
                await self._client.execute("QUEUE", "NACK", REQUESTS, *left, is_change=True)
                raise
            await self._client.execute("QUEUE", "ACK", REQUESTS, number, is_change=True)
        if not taken:
            self._seen = version
        return bool(taken)

    async def _answer(self, content: bytes) -> None:
        try:
            request = msgspec.json.decode(content, type=Request)
        except msgspec.MsgspecError as error:
            _LOG.error("a request of the queue was dropped: %s", error)
            return
        now_ms = time.time_ns() // 1_000_000
        try:
            why, told = await self._do(request)
            result = Result(now_ms, True, why, answer=told)
        except OutcomeUnknownError:
            raise
        except (ConditionError, UsageError) as error:
            result = Result(now_ms, False, "", error.code, str(error), _kind(error))
        _LOG.info("request %s of %s: %s", request.op, request.by or "?", result.why or result.code)
        path = result_path(request.id)
        await self._client.create(path, msgspec.json.encode(result), parents=True)

    async def _do(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Make it so; return what was written, or nothing if it was so, and what is answered."""
        for _ in range(TRIES_MAX):
            state = await read_state(self._client)
            if state.token != self._token:
                raise UnavailableError("another node is the orchestrator", code="deposed")
            unix_ms = time.time_ns() // 1_000_000
            txn, answer = outcome_of(state, request, unix_ms, self._memory)
            if txn is None:
                return "", answer
            if await execute(self._client, txn):
                return txn.why, answer
        raise UnavailableError("too many changes at once", code="busy")

    async def _sweep(self, elements: Mapping[str, Versioned]) -> None:
        now_s = time.monotonic()
        if now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        before_ms = time.time_ns() // 1_000_000 - RESULT_KEPT_S * 1000
        for path, one in elements.items():
            if path.startswith(_RESULTS) and _at_ms(one.data) < before_ms:
                try:
                    await self._client.delete(path)
                except MissingError:
                    continue


def _at_ms(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=Result).at_ms
    except msgspec.MsgspecError:
        return 0


def _kind(error: MillstreamError) -> str:
    return next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "")
