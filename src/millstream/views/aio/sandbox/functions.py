"""Runs validation, filter, update and list functions of design documents in sandboxes.

    pool = FunctionPool()
    code = read_code(bucket, name, rev, body)
    if code.validates:
        refusals = await pool.validate(code, [Revised(new, old)], user, security)

A child process serves one revision of one design document. The last used children are kept.

Invariants:
1. At most `children_max` children exist at a time; a call waits for a free one.
2. One thread at a time uses a child, even if the caller no longer waits for the answer.
3. If a function breaks the limits of time or memory, only that call fails, with
   `function_failed`.
4. A new revision gets a new child, which has nothing of the old one.
5. Design documents whose functions recently broke the limits share half of the children, so they
   do not delay others. A new revision of such a document counts like the old one.

Elsewhere: the functions (`views.core.design.design_code`), the child
(`views.aio.sandbox.process`), callers (`databases.design_functions`).
Source: CouchDB's query server.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millstream.errors import MillstreamError, UnavailableError, UsageError
from millstream.views.aio.sandbox.process import MEMORY_BYTES_MAX, TIME_LIMIT_S, Sandbox
from millstream.views.core.design.design_code import (
    BROKEN,
    VALIDATE,
    Updated,
    missing,
    reason_of,
    refusal,
)
from millstream.views.core.design.design_documents import Functions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.views.core.design.design_code import DesignCode, DocumentChange

__all__ = ["CHILDREN_MAX", "SLOW_FOR_S", "SLOW_MAX", "FunctionPool", "compile_functions"]

CHILDREN_MAX: Final = 4
"""Processes of a node that run such functions."""
SLOW_FOR_S: Final = 60.0
"""How long a design document counts as slow after a function of it broke the limits."""
SLOW_MAX: Final = 1000
"""Slow design documents that are remembered; of more, those that were slow last."""
_NULL: Final = b"null"


def compile_functions(code: DesignCode) -> None:
    """Compile all functions that are no views, in a child of their own. Blocking.

    Raises:
        UsageError: `compilation_error`, with the engine's message.
        UnavailableError: the child cannot be started.
    """
    paths: list[tuple[str, ...]] = [(VALIDATE,)] if code.validates else []
    paths += [("filters", name) for name in sorted(code.filters)]
    paths += [("updates", name) for name in sorted(code.updates)]
    if not paths:
        return
    with Sandbox(_functions(code)) as sandbox:
        for path in paths:
            (result,) = sandbox.call("compile", path, _NULL, [_NULL])
            if result is not True:
                raise UsageError(
                    f"{'.'.join(path)} of {code.id} does not compile: {reason_of(result)}",
                    code="compilation_error",
                )


def _functions(code: DesignCode) -> Functions:
    return Functions(code.key[1], "javascript", (), (), "", code.text)


def _has_broken_limits(result: object) -> bool:
    return isinstance(result, dict) and result.get("error") in ("time", "memory", "died")


def _stopping() -> UnavailableError:
    return UnavailableError("the node stops", code="stopping")


class _Child:
    """A sandbox, and whether a thread uses it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.is_busy = False


class FunctionPool:
    """Runs the functions of a node's design documents; belongs to one loop.

    Args:
        children_max: processes at a time.
        time_limit_s: processor seconds of one call of a child.
        memory_bytes: of the JavaScript engine.
    """

    def __init__(
        self,
        *,
        children_max: int = CHILDREN_MAX,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._children_max = children_max
        self._make = partial(Sandbox, time_limit_s=time_limit_s, memory_bytes=memory_bytes)
        self._children: OrderedDict[tuple[str, str, str], _Child] = OrderedDict()
        self._threads = ThreadPoolExecutor(children_max, thread_name_prefix="design functions")
        self._waiting: set[asyncio.Future[None]] = set()
        self._slow: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Bucket and name of design documents -> until when they count as slow."""
        self._is_closed = False

    def close(self) -> None:
        """End all children; calls under way, and those that wait, fail."""
        self._is_closed = True
        for freed in self._waiting:
            if not freed.done():
                freed.set_exception(_stopping())
        for child in self._children.values():
            child.sandbox.stop()
            if not child.is_busy:
                child.sandbox.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- functions

    async def validate(
        self, code: DesignCode, changes: Sequence[DocumentChange], user: bytes, security: bytes
    ) -> list[MillstreamError | None]:
        """Ask `validate_doc_update` about changes; return why each is refused, None if it is not.

        Args:
            code: of a design document that `validates`.
            changes: `new` with `_id`, `_rev`, `_revisions` and, of a deletion, `_deleted`.
            user: JSON `{"db", "name", "roles"}`.
            security: the security object of the database, JSON.

        Returns:
            `AccessError` with the codes `forbidden` and `unauthorized`; other errors are the
            function's own: `compilation_error`, `function_failed`, or the name of what it threw.
        """
        items = [b"[%b,%b]" % (new, _NULL if old is None else old) for new, old in changes]
        shared = b"[%b,%b]" % (user, security)
        results = await self._call(code, "validate", (VALIDATE,), shared, items)
        return [None if one is True else refusal(one, code, VALIDATE) for one in results]

    async def filter_batch(
        self, code: DesignCode, name: str, documents: Sequence[bytes], request: bytes
    ) -> list[bool]:
        """Return which documents a filter passes.

        Args:
            code: of the design document.
            name: of the filter.
            documents: JSON texts with `_id` and `_rev`.
            request: JSON, as filters see it; `query` has the parameters.

        Raises:
            ConditionError: `not_found`: there is no such filter.
            MillstreamError: the function fails for one of them.
        """
        if name not in code.filters:
            raise missing("filter", name, code)
        path = ("filters", name)
        return await self._passed(code, "filter", path, request, documents)

    async def view_batch(
        self, code: DesignCode, view: str, documents: Sequence[bytes]
    ) -> list[bool]:
        """Return for which documents the map of a view emits anything; a failing one counts as no.

        Raises:
            ConditionError: `not_found`: there is no such view.
            MillstreamError: the map breaks the limits, or does not compile.
        """
        if view not in code.views:
            raise missing("view", view, code)
        path = ("views", view, "map")
        results = await self._call(code, "view", path, _NULL, documents)
        for result in results:
            if isinstance(result, dict) and result.get("error") in (*BROKEN, "compile"):
                raise refusal(result, code, ".".join(path))
        return [result is True for result in results]

    async def update(
        self, code: DesignCode, name: str, document: bytes | None, request: bytes
    ) -> Updated:
        """Call an update function.

        Args:
            code: of the design document.
            name: of the function.
            document: JSON text, None where the document is not there, or none was named.
            request: JSON, as update functions see it.

        Raises:
            ConditionError: `not_found`: there is no such function.
            AccessError, MillstreamError: as `validate` returns them.
        """
        if name not in code.updates:
            raise missing("update", name, code)
        item = b"[%b,%b]" % (_NULL if document is None else document, request)
        path = ("updates", name)
        (result,) = await self._call(code, "update", path, _NULL, [item])
        if isinstance(result, dict):
            raise refusal(result, code, ".".join(path))
        wanted, answer = result
        if wanted is not None and not isinstance(wanted, dict):
            raise MillstreamError(
                f"{'.'.join(path)} of {code.id}: its document is no object", code="render_error"
            )
        return Updated(wanted, answer)

    async def _passed(
        self,
        code: DesignCode,
        kind: str,
        path: tuple[str, ...],
        shared: bytes,
        documents: Sequence[bytes],
    ) -> list[bool]:
        results = await self._call(code, kind, path, shared, documents)
        for result in results:
            if not isinstance(result, bool):
                raise refusal(result, code, ".".join(path))
        return results

    # -- children

    async def _call(
        self,
        code: DesignCode,
        kind: str,
        path: tuple[str, ...],
        shared: bytes,
        items: Sequence[bytes],
    ) -> list[Any]:
        if not items:
            return []
        child = await self._take(code)
        work = partial(child.sandbox.call, kind, path, shared, items)
        return await self._run(code, child, work)

    async def _run(
        self, code: DesignCode, child: _Child, work: Callable[[], list[Any]]
    ) -> list[Any]:
        """Run in a thread.

        The child is free once the thread is done, even if the caller is cancelled.
        """
        loop = asyncio.get_running_loop()

        def done(job: Future[list[Any]]) -> None:
            failed = job.cancelled() or job.exception() is not None
            is_slow = not failed and any(map(_has_broken_limits, job.result()))
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._free, child, code.key[:2] if is_slow else None)

        job = self._threads.submit(work)
        job.add_done_callback(done)
        return await asyncio.wrap_future(job)

    async def _take(self, code: DesignCode) -> _Child:
        if self._is_closed:
            raise _stopping()
        while (child := self._found(code)) is None:
            freed = asyncio.get_running_loop().create_future()
            self._waiting.add(freed)
            try:
                await freed
            finally:
                self._waiting.discard(freed)
        child.is_busy = True
        return child

    def _found(self, code: DesignCode) -> _Child | None:
        """Return a child that is free for a design document, None if none is now."""
        child = self._children.get(code.key)
        if child is not None:
            self._children.move_to_end(code.key)
            return None if child.is_busy or self._is_held(code.key) else child
        if self._is_held(code.key):
            return None
        if len(self._children) >= self._children_max:
            idle = next((key for key, c in self._children.items() if not c.is_busy), None)
            if idle is None:
                return None
            self._children.pop(idle).sandbox.close()
        child = self._children[code.key] = _Child(self._make(_functions(code)))
        return child

    def _is_held(self, key: tuple[str, str, str]) -> bool:
        """Whether a design document is slow, and slow ones have all children that they may."""
        if not self._is_slow(key):
            return False
        busy = sum(each.is_busy and self._is_slow(at) for at, each in self._children.items())
        return busy >= max(1, self._children_max // 2)

    def _is_slow(self, key: tuple[str, str, str]) -> bool:
        return self._slow.get(key[:2], 0.0) > time.monotonic()

    def _free(self, child: _Child, slow: tuple[str, ...] | None) -> None:
        child.is_busy = False
        if slow is not None:
            bucket, name = slow
            self._slow[bucket, name] = time.monotonic() + SLOW_FOR_S
            self._slow.move_to_end((bucket, name))
            if len(self._slow) > SLOW_MAX:
                self._slow.popitem(last=False)
        if self._is_closed:
            child.sandbox.close()
        for freed in self._waiting:
            if not freed.done():
                freed.set_result(None)
