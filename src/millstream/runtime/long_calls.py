"""Calls that keep the interpreter's lock for long, made in a process beside this one.

    found = await run_apart(parse, text)      # in a loop
    found = call_apart(parse, text)       # in a thread

A decoder of JSON does not release the lock before it ends. In a thread it would still hold up the
loop: a second for a document of a million members.

Invariants:
1. At most `PROCESSES_MAX` processes run. They are started on demand; a call waits for one. A
   process ends when it has had nothing to do for `IDLE_S`, and when this process ends.
2. Bytes of more than `BESIDE_BYTES_MIN`, also a view of them, are sent as they are and received as
   bytes, and nothing is done with them here while the lock is held.
3. What a call raises in the process is raised here. A process that dies, is late or runs out of
   memory costs the call it was serving, and no other.
4. Only functions of this package are called, with what it made: nothing is unpickled that comes
   from anywhere else.

Elsewhere: the calls (`documents.large_texts`), functions that users write
(`views.aio.sandbox.process`).
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import io
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from struct import Struct
from threading import BoundedSemaphore
from typing import Any, Final, TypeVar

from millstream.errors import UnavailableError

__all__ = [
    "BESIDE_BYTES_MIN", "CALL_S_MAX", "IDLE_S", "MEMORY_BYTES_MAX", "PROCESSES_MAX",
    "CallProcesses", "call_apart", "end_idle_ones", "run_apart", "serve",
]  # fmt: skip

PROCESSES_MAX: Final = 2
"""Processes of one node."""
IDLE_S: Final = 60.0
"""How long a process stays that has nothing to do."""
CALL_S_MAX: Final = 120
"""Longest time until a call is answered, in seconds."""
MEMORY_BYTES_MAX: Final = 2 * 1024**3
"""Memory that one process may take."""
BESIDE_BYTES_MIN: Final = 16 * 1024
"""Shorter bytes are pickled with the rest."""
_Result = TypeVar("_Result")
_HEAD: Final = Struct(">II")
_SIZE: Final = Struct(">Q")
_KEPT_VARIABLES: Final = ("PATH", "PYTHON", "LANG", "LC_", "TMPDIR", "GLIBC_", "MALLOC_")
"""Beginnings of the names of variables that a process gets: no secret is among them."""
_PROGRAM: Final = "import sys, millstream.runtime.long_calls as h; h.serve(int(sys.argv[1]))"


class _Ended(Exception):
    """The other side has closed its end."""


# -- messages


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.parts: list[bytes | memoryview] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in (bytes, memoryview) or len(obj) < BESIDE_BYTES_MIN:
            return None
        number = self._numbers.setdefault(id(obj), len(self.parts))
        if number == len(self.parts):
            self.parts.append(obj)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, text: bytes, parts: list[bytes]) -> None:
        super().__init__(io.BytesIO(text))
        self._parts = parts

    def persistent_load(self, pid: int) -> bytes:
        return self._parts[pid]


def _send(end: socket.socket, message: object) -> None:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(message)
    text = file.getvalue()
    sizes = b"".join(_SIZE.pack(len(part)) for part in pickler.parts)
    end.sendall(_HEAD.pack(len(text), len(pickler.parts)) + sizes + text)
    for part in pickler.parts:
        end.sendall(part)


def _receive(end: socket.socket) -> Any:
    """Return a message.

    Raises:
        _Ended: the other side is gone.
        BlockingIOError: it is late.
    """
    text_bytes, count = _HEAD.unpack(_exactly(end, _HEAD.size))
    sizes = [_SIZE.unpack(_exactly(end, _SIZE.size))[0] for _ in range(count)]
    text = _exactly(end, text_bytes)
    return _Unpickler(text, [_exactly(end, size) for size in sizes]).load()


def _exactly(end: socket.socket, size: int) -> bytes:
    """Return so many bytes. In the usual case the system fills them in one call."""
    data = end.recv(size, socket.MSG_WAITALL) if size else b""
    if len(data) == size:
        return data
    pieces, left = [data], size - len(data)
    while left:
        piece = end.recv(left, socket.MSG_WAITALL)
        if not piece:
            raise _Ended
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


# -- this process


class _CallProcess:
    """One process; one thread at a time uses it."""

    def __init__(self, call_s: int, memory_bytes: int) -> None:
        self.is_new = True
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {
                name: value
                for name, value in os.environ.items()
                if name.startswith(_KEPT_VARIABLES)
            }
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        late = Struct("@ll").pack(call_s, 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, late)
        self._end = ours
        self._memory_bytes = memory_bytes

    def call(self, name: tuple[str, str], arguments: tuple[Any, ...]) -> Any:
        """Return (whether it went well, result or error)."""
        _send(self._end, (name, arguments, self._memory_bytes))
        reply = _receive(self._end)
        self.is_new = False
        return reply

    def end(self) -> None:
        self._end.close()
        self._process.kill()
        self._process.wait()


class CallProcesses:
    """Processes that make calls, one at a time each; may be used by several threads.

    Args:
        most: processes at a time.
        call_s: longest time until a call is answered, in seconds.
        memory_bytes: that one process may take.
    """

    def __init__(
        self,
        most: int = PROCESSES_MAX,
        *,
        call_s: int = CALL_S_MAX,
        memory_bytes: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._free = BoundedSemaphore(most)
        self._idle: list[_CallProcess] = []
        self._make = partial(_CallProcess, call_s, memory_bytes)
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="helpers")

    async def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Do what `call` does, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(self.call, function, *arguments))

    def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function of a module in a process. Blocking.

        Args:
            function: it is found by its name.
            arguments: of it; they and the result are pickled.

        Raises:
            UnavailableError: `long_call_failed`.
            Exception: what the function raises.
        """
        name = (function.__module__, function.__qualname__)
        with self._free:
            while True:
                process = self._one_that_is_idle() or self._start()
                was_new = process.is_new
                try:
                    is_good, result = process.call(name, arguments)
                except (_Ended, OSError, pickle.UnpicklingError) as error:
                    process.end()
                    if isinstance(error, BlockingIOError) or was_new:
                        raise _failed("did not answer in time, or died") from error
                    continue  # it ended when it had nothing to do
                except BaseException:
                    process.end()
                    raise
                if is_good:
                    self._idle.append(process)
                    found: _Result = result
                    return found
                if isinstance(result, MemoryError):
                    process.end()
                    raise _failed("ran out of memory") from result
                self._idle.append(process)
                raise result

    def close(self) -> None:
        """End the processes that do nothing; a later call starts one again."""
        while (process := self._one_that_is_idle()) is not None:
            process.end()

    def _one_that_is_idle(self) -> _CallProcess | None:
        try:
            return self._idle.pop()
        except IndexError:  # another thread may have taken the last one just now
            return None

    def _start(self) -> _CallProcess:
        try:
            return self._make()
        except OSError as error:
            raise _failed(f"cannot be started ({error})") from error


def _failed(what: str) -> UnavailableError:
    return UnavailableError(
        f"the process that examines large texts {what}; nothing has changed; try again, or send "
        "less at a time",
        code="long_call_failed",
    )


_processes: Final = CallProcesses()
atexit.register(_processes.close)
call_apart: Final = _processes.call
run_apart: Final = _processes.run
end_idle_ones: Final = _processes.close


# -- the other process


def serve(descriptor: int) -> None:
    """Make the calls that the parent asks for, until it is gone or asks for nothing more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # what is made here has no cycles
    with socket.socket(fileno=descriptor) as end, suppress(_Ended, OSError):
        while select.select([end], [], [], IDLE_S)[0]:
            name, arguments, memory_bytes = _receive(end)
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
            _send(end, _answer(name, arguments))


def _answer(name: tuple[str, str], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        module, function = name
        return True, getattr(importlib.import_module(module), function)(*arguments)
    except Exception as error:  # noqa: BLE001 - raised again where the call was made
        error.__traceback__ = None
        return False, error
