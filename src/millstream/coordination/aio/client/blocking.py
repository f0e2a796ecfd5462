"""The client of namespaces without `await`: for programs and notebooks that have no event loop.

    with BlockingClient(["127.0.0.1:7379"]) as client:
        client.create("/app/port", b"8080", parents=True)
        with client.lock("/app/port") as lock:
            client.put("/app/port", b"8081", token=lock.token)
        for change in client.subscribe("/app", "TREE"):
            print(change.op, change.path)

Invariants:
1. It has no logic of its own: each call is made on the asyncio client, in a loop in a thread of
   its own, and waited for. So the session is kept alive also while the program does other things.
2. Any thread may call; `KeyboardInterrupt` cancels the call that is waited for.
3. Nobody waits for a client that was closed: each call that is under way then ends with an error.

Elsewhere: all methods, arguments and errors (`async_client`), the thread (`runtime.loop_thread`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.aio.client.subscription import Subscription
from millstream.errors import OutcomeUnknownError, UnavailableError, UsageError
from millstream.runtime.loop_thread import LoopThread

__all__ = ["Blocking", "BlockingClient"]

_HANDLES: Final = "millstream.coordination.aio."
"""What is made there is waited for; everything else is a value."""
_END: Final = object()


class _Thread(LoopThread):
    """The client's loop; subscriptions that somebody still has end with it."""

    def __init__(self) -> None:
        super().__init__("coordination client")
        self.subscriptions: WeakSet[Subscription] = WeakSet()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self.is_stopped:
            work.close()
            raise UsageError("the client is closed: make another one", code="closed")
        try:
            return super().run(work)
        except CancelledError:
            raise OutcomeUnknownError("the client was closed while this waited") from None

    async def _end(self) -> None:
        for subscription in list(self.subscriptions):
            subscription.close(UnavailableError("the client was closed", code="closed"))
        await super()._end()


class Blocking:
    """Stands for something of the asyncio client: a lock, a queue, a subscription, the client.

    It has the same methods; `with` and `for` do what `async with` and `async for` do there.
    """

    def __init__(self, thread: _Thread, it: Any) -> None:
        self._thread, self._it = thread, it
        if isinstance(it, Subscription):
            thread.subscriptions.add(it)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._it, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            return self._seen(self._thread.run(_called(found, args, options)))

        return call

    def _seen(self, value: Any) -> Any:
        if value is self._it:
            return self
        if isinstance(value, AsyncIterator) and not hasattr(value, "__aenter__"):
            return self._each(value)
        return Blocking(self._thread, value) if _is_handle(value) else value

    def _each(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            value = self._thread.run(_next(values))
            if value is _END:
                return
            yield value

    def __enter__(self) -> Self:
        self._thread.run(self._it.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._thread.run(self._it.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Any]:
        return self._each(self._it)


class BlockingClient(Blocking):
    """`AsyncClient`, waited for; the same arguments, methods and errors.

    `on_session_lost` is called in the client's own thread. A handler of `Queue.work` is a plain
    function, and called in a thread; `work` returns when it raises.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        client = AsyncClient(*args, **options)  # if this fails no thread is left behind
        super().__init__(_Thread(), client)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Close the session, the connections and the thread. Waiting calls raise an error."""
        try:
            with suppress(UsageError):  # it was closed before
                self._thread.run(self._it.close())
        finally:
            self._thread.stop()


def _is_handle(value: Any) -> bool:
    return type(value).__module__.startswith(_HANDLES)


async def _called(
    function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    plain = [_in_thread(each) if inspect.isroutine(each) else each for each in args]
    result = function(*plain, **options)
    return await result if inspect.isawaitable(result) else result


def _in_thread(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def handle(*args: Any) -> Any:
        return await asyncio.to_thread(handler, *args)

    return handle


async def _next(values: AsyncIterator[Any]) -> Any:
    return await anext(values, _END)
