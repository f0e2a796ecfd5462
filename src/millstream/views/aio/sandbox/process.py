"""Runs JavaScript of design documents in a child process without any rights.

The child has an empty environment, no files, no network, and limits of time and memory. Each call
has a deadline, after which the child is killed. Calls block, and one thread at a time may use a
child. Spark's Python workers use it as well as threads beside an asyncio loop.

Invariants:
1. A document that breaks the limits, or crashes the child, loses only its own rows. The batch is
   repeated in parts until one document is left, and that document alone in a new child. A document
   that ran out of time alone gets a second try, because the machine may have been busy; the number
   of second tries in a row is bounded.
2. An exception in a map function loses the rows of that view for that document.
3. Built-in objects are frozen before code of a document is compiled. A reply that does not match
   the request is a failure of the batch. So no document changes the rows of another.
4. The child ends with its parent: by a signal, and at the end of its input.
5. The other functions of a design document (`call`) are isolated in the same way: a call that
   breaks the limits fails alone.

Elsewhere: the program of the child (`child`), the JavaScript around the functions of a design
document (`runner.js`), Python functions (`views.aio.sandbox.mapping`).
"""

from __future__ import annotations

import os
import pkgutil
import select
import subprocess
import sys
import time
import weakref
from functools import partial
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import msgspec

from millstream.errors import UnavailableError, UsageError
from millstream.views.core.reduce.values import TIME_ERROR, reduce_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.views.core.design.design_documents import Functions
    from millstream.views.core.reduce.reductions import ReduceCall, ReduceResult

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_DOCUMENTS_MAX",
    "CALLS_PER_SECOND_TRY",
    "MEMORY_BYTES_MAX",
    "ROWS_PER_DOCUMENT_MAX",
    "SECOND_TRIES_MAX",
    "TIME_LIMIT_S",
    "MapError",
    "Mapped",
    "Sandbox",
]

TIME_LIMIT_S: Final = 5.0
"""Processor time of one call: a batch of documents, or of reduce calls."""
MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""What the JavaScript of one child may hold."""
BATCH_DOCUMENTS_MAX: Final = 500
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""A batch is closed when it holds so many bytes of documents; one larger document goes alone."""

SECOND_TRIES_MAX: Final = 3
"""Documents or reduce calls of one child, one after the other, that run out of time twice; the
next ones are not tried again."""
CALLS_PER_SECOND_TRY: Final = 100
"""Calls that were answered, after which one more is."""

ROWS_PER_DOCUMENT_MAX: Final = 100_000
"""Rows that all maps of a design document emit for one document; more are a map error of the view
that emits them (`runner.js` counts for itself)."""
_REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
_START_S: Final = 30.0
"""Longest time until a new child has compiled the functions. On an idle machine it takes 30 ms."""
_LOAD_FACTOR: Final = 6
"""Wall time over processor time: the child may share its core with so many others."""
_CHUNK_BYTES: Final = 64 * 1024

_HEAD: Final = Struct(">cI")
_MAP_HEAD: Final = Struct(">IB")
_VIEW_HEAD: Final = Struct(">I")


class MapError(NamedTuple):
    """A view's map failed for a document; `view` is -1 if the document was lost to all views."""

    view: int
    message: str


class Mapped(NamedTuple):
    """What the maps made of one document: rows (view number, key, value) as JSON texts."""

    rows: Sequence[tuple[int, bytes | msgspec.Raw, bytes | msgspec.Raw]]
    errors: Sequence[MapError]


class _Failure(msgspec.Struct):
    kind: str
    message: str
    at: int = -1

    @property
    def is_late(self) -> bool:
        """Whether the time was over."""
        return self.kind == "time"


_Result = TypeVar("_Result", list["Mapped"], "list[ReduceResult]", list[Any])
_Rows = list[tuple[int, msgspec.Raw, msgspec.Raw]]
_mapped_of: Final[Callable[[tuple[_Rows, Sequence[MapError]]], Mapped]] = partial(
    tuple.__new__, Mapped
)
"""Makes one from a tuple of its parts, twice as fast as the constructor."""
_MAP_REPLY: Final = msgspec.json.Decoder(tuple[list[_Rows], list[tuple[int, int, str]]])
_REDUCE_REPLY: Final = msgspec.json.Decoder(list[list[msgspec.Raw]])
_CALL_REPLY: Final = msgspec.json.Decoder(list[Any])
_TEXT: Final = msgspec.json.Decoder(str)
_BOOLEAN: Final = (b"false", b"true")
_FAILURE: Final = msgspec.json.Decoder(_Failure)
_BY_SOURCE: Final = ("compile", "time", "memory")
"""Failures of a start that are the functions' own."""
_LATE: Final = _Failure("time", "no answer within the time limit")
_DIED: Final = _Failure("died", "the process of the view functions ended")
_SPOILED: Final = _Failure("output", "the rows are nested too deeply, or are no rows")
_NOT_DECODED: Final = (msgspec.DecodeError, RecursionError)


class Sandbox:
    """The child process of one design document; started when first used.

    Args:
        functions: of a checked design document in JavaScript.
        time_limit_s: processor seconds of one call.
        memory_bytes: of the JavaScript engine.
    """

    def __init__(
        self,
        functions: Functions,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        memory_bytes: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._functions = functions
        self._time_limit_s = time_limit_s
        self._memory_bytes = memory_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self.restart_count = -1
        self._is_fresh = self._was_fresh = True
        self._second_tries = SECOND_TRIES_MAX
        self._answered = 0
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """Process id of the child, None while no child runs."""
        return None if self._child is None else self._child.pid

    def compile(self) -> None:
        """Start the child and compile all functions.

        Raises:
            UsageError: `compilation_error`, with the engine's message.
            UnavailableError: the child cannot be started.
        """
        if self._child is None:
            self._start()

    def map(self, documents: Sequence[bytes]) -> list[Mapped]:
        """Run all maps of the design document on `documents` (JSON objects with `_id`).

        One call of the child per BATCH_DOCUMENTS_MAX documents; never raises for a document.

        Raises:
            UsageError: `compilation_error`.
            UnavailableError: the child cannot be started.
        """
        mapped: list[Mapped] = []
        first, size = 0, 0
        for at, document in enumerate(documents):
            size += len(document)
            if at > first and (size > BATCH_BYTES_MAX or at - first >= BATCH_DOCUMENTS_MAX):
                mapped += self._map_batch(documents[first:at])
                first, size = at, len(document)
        if first < len(documents):
            mapped += self._map_batch(documents[first:])
        return mapped

    def reduce(self, number: int, calls: Sequence[tuple[Any, Any, bool]]) -> list[Any]:
        """Call an own reduce function once per (keys, values, rereduce).

        Returns:
            One JSON value per call; `{"error": "reduce_error", "reason"}` where it failed,
            `reduce_time_error` where the time was over.
        """
        encode, decode = msgspec.json.encode, msgspec.json.decode
        texts = [(encode(keys), encode(values), bool(again)) for keys, values, again in calls]
        return [
            decode(result) if isinstance(result, bytes) else result
            for result in self.reduce_texts(number, texts)
        ]

    def reduce_texts(self, number: int, calls: Sequence[ReduceCall]) -> list[ReduceResult]:
        """Call an own reduce function once per (keys, values, rereduce) given as JSON texts.

        One call of the child per BATCH_BYTES_MAX of texts.
        """
        results: list[ReduceResult] = []
        first, size = 0, 0
        for at, (keys, values, _) in enumerate(calls):
            size += len(keys) + len(values)
            if at > first and size > BATCH_BYTES_MAX:
                results += self._reduce_batch(number, calls[first:at])
                first, size = at, len(keys) + len(values)
        if first < len(calls):
            results += self._reduce_batch(number, calls[first:])
        return results

    def _reduce_batch(self, number: int, calls: Sequence[ReduceCall]) -> list[ReduceResult]:
        found = self._tried(lambda: self._reduced(number, calls), len(calls))
        if not isinstance(found, _Failure):
            return found
        if len(calls) == 1:
            return [reduce_error(found.message, TIME_ERROR if found.is_late else "reduce_error")]
        middle = len(calls) // 2
        return self._reduce_batch(number, calls[:middle]) + self._reduce_batch(
            number, calls[middle:]
        )

    def _reduced(self, number: int, calls: Sequence[ReduceCall]) -> list[ReduceResult] | _Failure:
        body = b",".join([b"[%b,%b,%b]" % (*call[:2], _BOOLEAN[call[2]]) for call in calls])
        answer = self._call(b"R", _VIEW_HEAD.pack(number) + b"[%b]" % body)
        if isinstance(answer, _Failure):
            return answer
        return _reduced(answer, len(calls)) or self._spoiled()

    def call(
        self, kind: str, path: Sequence[str], shared: bytes, items: Sequence[bytes]
    ) -> list[Any]:
        """Call a function of the whole design document, once for each item; see `runner.js`.

        Args:
            kind: compile, validate, filter, view or update.
            path: where the function is in the document.
            shared: JSON text that all calls are given.
            items: JSON text of what each is given.

        Returns:
            For each item what the kind says, or an object with `thrown`, or `error` and `reason`;
            `error` is time, memory, died, parse or output where the child failed.
        """
        head = b'["%b",%b,%b' % (kind.encode(), msgspec.json.encode(list(path)), shared)
        results: list[Any] = []
        first, size = 0, 0
        for at, item in enumerate(items):
            size += len(item)
            if at > first and (size > BATCH_BYTES_MAX or at - first >= BATCH_DOCUMENTS_MAX):
                results += self._call_batch(head, items[first:at])
                first, size = at, len(item)
        if first < len(items):
            results += self._call_batch(head, items[first:])
        return results

    def _call_batch(self, head: bytes, items: Sequence[bytes]) -> list[Any]:
        found = self._tried(lambda: self._called(head, items), len(items))
        if not isinstance(found, _Failure):
            return found
        if len(items) == 1:
            return [{"error": found.kind, "reason": found.message}]
        middle = len(items) // 2
        return self._call_batch(head, items[:middle]) + self._call_batch(head, items[middle:])

    def _called(self, head: bytes, items: Sequence[bytes]) -> list[Any] | _Failure:
        # Long pieces are joined without the interpreter's lock; "%" and "+" would keep it.
        answer = self._call(b"F", b"".join((head, b",[", b",".join(items), b"]]")))
        if isinstance(answer, _Failure):
            return answer
        try:
            results = _CALL_REPLY.decode(answer)
        except _NOT_DECODED:
            return self._spoiled()
        return results if len(results) == len(items) else self._spoiled()

    def stop(self) -> None:
        """End the child for ever, from any thread; a call under way fails soon, whatever it did.

        All calls raise `UnavailableError` (`stopping`) from now on: nothing that was under way
        counts as a failure of a document.
        """
        self._is_stopped = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the child; the next call starts a new one."""
        if self._finalizer is not None:
            self._finalizer()
        self._child = self._finalizer = None

    def _map_batch(self, documents: Sequence[bytes]) -> list[Mapped]:
        found = self._tried(lambda: self._mapped(documents), len(documents))
        if not isinstance(found, _Failure):
            return found
        if len(documents) == 1:
            return [Mapped((), (MapError(-1, found.message),))]
        # Lost as a whole: try the suspect alone, or without a suspect both halves.
        if 0 <= found.at < len(documents):
            # First of all, while nothing else has been run in the new child.
            suspect = self._map_batch(documents[found.at : found.at + 1])
            before, behind = documents[: found.at], documents[found.at + 1 :]
        else:
            middle = len(documents) // 2
            suspect, before, behind = [], documents[:middle], documents[middle:]
        mapped = self._map_batch(before) if before else []
        return [*mapped, *suspect, *(self._map_batch(behind) if behind else [])]

    def _mapped(self, documents: Sequence[bytes]) -> list[Mapped] | _Failure:
        body = b"[" + b",".join(documents) + b"]"
        # Without an inner bracket there is nothing below the top level to be frozen.
        is_flat = body.count(b"{") == len(documents) and body.count(b"[") == 1
        answer = self._call(b"M", _MAP_HEAD.pack(len(documents), is_flat) + body)
        if isinstance(answer, _Failure):
            return answer
        return _mapped(answer, len(documents)) or self._spoiled()

    def _tried(self, ask: Callable[[], _Result | _Failure], count: int) -> _Result | _Failure:
        """Ask the child; once more, and a fresh one, if what is alone may be innocent."""
        answer = ask()
        if not isinstance(answer, _Failure) or count > 1 or not self._may_be_innocent(answer):
            return answer
        self._second_tries -= answer.is_late
        again = ask()
        self._second_tries += answer.is_late and not isinstance(again, _Failure)
        return again

    def _may_be_innocent(self, failure: _Failure) -> bool:
        """Tell whether something else may be why a call failed.

        Functions may keep things from one document to the next, until the memory is used up; a
        machine may stand still until the time is over.
        """
        if self._is_stopped:
            return False
        if failure.is_late:
            return self._second_tries > 0
        return failure.kind != "parse" and not self._was_fresh

    def _call(self, kind: bytes, body: bytes) -> bytes | _Failure:
        """Return the reply, or why it failed. After a failure the child is a new one."""
        self.compile()
        self._was_fresh, self._is_fresh = self._is_fresh, False
        answer = self._exchange(kind, body, self._time_limit_s * _LOAD_FACTOR)
        if not isinstance(answer, _Failure):
            self._answered += 1
            if self._answered % CALLS_PER_SECOND_TRY == 0:
                self._second_tries = min(SECOND_TRIES_MAX, self._second_tries + 1)
        elif self._is_stopped:  # the document that was being mapped is not to blame
            self.close()
            raise _stopped()
        elif answer.kind != "parse":
            self.close()
        return answer

    def _spoiled(self) -> _Failure:
        self.close()
        return _SPOILED

    def _start(self) -> None:
        engine = find_spec("_quickjs")
        if engine is None or engine.origin is None:
            raise UnavailableError("the JavaScript engine is missing: install quickjs-ng")
        child = subprocess.Popen(
            [
                sys.executable, "-I", "-S", "-c", _text_of("child.py"),
                str(Path(engine.origin).parent), str(os.getpid()),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={"TZ": "UTC"}, cwd="/", close_fds=True, start_new_session=True,
        )  # fmt: skip
        self._child = child
        self._finalizer = weakref.finalize(self, _end, child)
        if self._is_stopped:
            self.close()
            raise _stopped()
        self.restart_count += 1
        self._is_fresh = True
        os.set_blocking(_number(child.stdin), False)
        answer = self._exchange(b"L", self._load_order(), _START_S)
        if isinstance(answer, _Failure):
            self.close()
            if answer.kind in _BY_SOURCE and answer is not _LATE:
                raise UsageError(
                    f"design document {self._functions.name!r} does not compile: {answer.message}",
                    code="compilation_error",
                )
            raise UnavailableError(f"the process of the view functions failed: {answer.message}")

    def _load_order(self) -> bytes:
        _, _, maps, reduces, lib, design = self._functions
        return msgspec.json.encode(
            {
                "runner": _text_of("runner.js"),
                "lib": lib,
                "design": design,
                "maps": [(at, source.rstrip("; \n\t")) for at, source in enumerate(maps)],
                "reduces": [(at, source.rstrip("; \n\t")) for at, source in reduces],
                "seconds": self._time_limit_s,
                "bytes": self._memory_bytes,
            }
        )

    def _exchange(self, kind: bytes, body: bytes, wait_s: float) -> bytes | _Failure:
        child = self._child
        assert child is not None
        deadline = time.monotonic() + wait_s
        try:
            # The child reads a whole request before it writes: writing first cannot deadlock.
            order = b"".join((_HEAD.pack(kind, len(body)), body))
            if not _send(_number(child.stdin), order, deadline):
                return _LATE
            head = _receive(_number(child.stdout), _HEAD.size, deadline)
            if not head:
                return _LATE
            status, size = _HEAD.unpack(head)
            if size > _REPLY_BYTES_MAX:
                return _Failure("output", "the reply is too large")
            reply = _receive(_number(child.stdout), size, deadline)
        except (EOFError, BrokenPipeError):
            return _DIED
        if reply is None:
            return _LATE
        return reply if status == b"O" else _FAILURE.decode(reply)


def _stopped() -> UnavailableError:
    return UnavailableError("the functions were stopped", code="stopping")


def _mapped(reply: bytes, count: int) -> list[Mapped] | None:
    """Return what a reply says of `count` documents; None if it does not."""
    try:
        all_rows, errors = _MAP_REPLY.decode(reply)
    except _NOT_DECODED:
        return None
    if len(all_rows) != count:
        return None
    if not errors:
        return list(map(_mapped_of, zip(all_rows, repeat(()))))
    by_document: dict[int, list[MapError]] = {}
    for at, view, message in errors:
        by_document.setdefault(at, []).append(MapError(view, message))
    return [Mapped(rows, by_document.get(at, ())) for at, rows in enumerate(all_rows)]


def _reduced(reply: bytes, count: int) -> list[ReduceResult] | None:
    """Return the values that a reply gives to `count` calls; None if it does not."""
    try:
        results = _REDUCE_REPLY.decode(reply)
        if len(results) != count or not all(1 <= len(result) <= 2 for result in results):
            return None
        return [
            bytes(result[0]) if len(result) == 1 else reduce_error(_TEXT.decode(result[1]))
            for result in results
        ]
    except _NOT_DECODED:
        return None


def _text_of(name: str) -> str:
    """Read a file of this package, also where the package is a zip archive."""
    data = pkgutil.get_data("millstream.views.aio.sandbox.process", name)
    assert data is not None
    return data.decode()


def _number(pipe: Any) -> int:
    return int(pipe.fileno())


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()
    child.wait()


def _send(descriptor: int, data: bytes, deadline: float) -> bool:
    rest = memoryview(data)
    while rest:
        if not _wait(descriptor, select.POLLOUT, deadline):
            return False
        rest = rest[os.write(descriptor, rest[:_CHUNK_BYTES]) :]
    return True


def _receive(descriptor: int, size: int, deadline: float) -> bytes | None:
    parts: list[bytes] = []
    while size:
        if not _wait(descriptor, select.POLLIN, deadline):
            return None
        part = os.read(descriptor, size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wait(descriptor: int, events: int, deadline: float) -> bool:
    left_ms = int((deadline - time.monotonic()) * 1000)
    if left_ms <= 0:
        return False
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(left_ms))
