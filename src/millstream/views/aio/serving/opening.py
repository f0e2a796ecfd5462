"""Opens indexes of a bucket in the background.

Opening compiles functions, which may loop.

Invariants:
1. No index is opened twice, or by two callers at once.
2. An order waits at most `OPEN_WAIT_S` for all its new indexes together. An index that takes
   longer is added when it is open.
3. An index that is opened and no longer wanted is handed over to be closed.

Elsewhere: the set of indexes (`hosted_bucket`), one index (`hosted_index`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from millstream.views.aio.serving.hosted_index import HostedIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from millstream.runtime.tasks import Tasks
    from millstream.views.core.design.design_documents import DesignDocument

__all__ = ["OPEN_S_MAX", "OPEN_WAIT_S", "OpeningIndexes", "made"]

_Parameters = ParamSpec("_Parameters")
OPEN_WAIT_S: Final = 1.0
"""How long new indexes are waited for before the others go on without them."""
OPEN_S_MAX: Final = 30.0
"""How long queries wait for an index that is being opened."""


async def made(
    make: Callable[_Parameters, HostedIndex],
    *args: _Parameters.args,
    **kwargs: _Parameters.kwargs,
) -> HostedIndex:
    """Make an index in a thread. It is closed if the caller was cancelled."""

    def close(making: asyncio.Future[HostedIndex]) -> None:
        if not making.cancelled() and making.exception() is None:
            making.result().close()

    making = asyncio.ensure_future(asyncio.to_thread(make, *args, **kwargs))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(close)
        raise


class OpeningIndexes:
    """What is being opened, or was and is not in use yet.

    Args:
        open_one: opens one; None: it cannot be opened.
        take_in: called when one that took long is there; it calls `open`.
        tasks: who runs it.
    """

    def __init__(
        self,
        open_one: Callable[[DesignDocument], Coroutine[Any, Any, HostedIndex | None]],
        take_in: Callable[[], Coroutine[Any, Any, None]],
        tasks: Tasks,
    ) -> None:
        self._open_one, self._take_in = open_one, take_in
        self._tasks = tasks
        self._opening: dict[str, asyncio.Task[HostedIndex | None]] = {}
        self._is_taking_late = False
        self._news = asyncio.Event()
        """A new one takes its place when it is set."""

    @property
    def signatures(self) -> Collection[str]:
        """Signatures of the indexes that are being opened."""
        return self._opening.keys()

    async def open(
        self, wanted: Mapping[str, DesignDocument], opened: Collection[str]
    ) -> tuple[list[HostedIndex], list[HostedIndex]]:
        """Begin to open indexes; return those that have been opened, and unwanted ones.

        Args:
            wanted: by signature.
            opened: signatures of those that are in use.
        """
        begun = []
        for signature, design in wanted.items():
            if signature not in opened and signature not in self._opening:
                name = f"open index {signature}"
                self._opening[signature] = self._tasks.start(self._open_one(design), name=name)
                begun.append(self._opening[signature])
        if begun:
            await asyncio.wait(begun, timeout=OPEN_WAIT_S)
        new, unwanted = list[HostedIndex](), list[HostedIndex]()
        for signature in [name for name, task in self._opening.items() if task.done()]:
            hosted = self._opening.pop(signature).result()
            if hosted is not None and signature in wanted:
                hosted.design = wanted[signature]
                new.append(hosted)
            elif hosted is not None:
                unwanted.append(hosted)
        if self._opening and not self._is_taking_late:
            self._is_taking_late = True
            self._tasks.start(self._take_late(), name="indexes that take long to open")
        return new, unwanted

    def taken_in(self) -> None:
        """Wake all waiting callers: the opened index is in use."""
        self._news.set()
        self._news = asyncio.Event()

    async def until_open(self, signature: str) -> None:
        """Wait while an index is being opened, for `OPEN_S_MAX` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OPEN_S_MAX):
                while signature in self._opening:
                    await self._news.wait()

    def left_over(self) -> list[HostedIndex]:
        """Forget everything after all tasks have ended. Return the opened indexes."""
        tasks = list(self._opening.values())
        self._opening.clear()
        return [
            hosted
            for task in tasks
            if task.done() and not task.cancelled() and (hosted := task.result()) is not None
        ]

    async def _take_late(self) -> None:
        try:
            while self._opening:
                await asyncio.wait(self._opening.values(), return_when=asyncio.FIRST_COMPLETED)
                await self._take_in()
        finally:
            self._is_taking_late = False
