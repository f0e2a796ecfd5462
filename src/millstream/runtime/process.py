"""Processes: dying with one's parent, one server per directory, a quiet garbage collector.

Invariants:
1. A process that called `die_with_parent` never outlives the process that started it.
2. A lock is released by the kernel whenever its holder ends, however it ends.
3. Who looks at a lock writes nothing, and is no holder to others who look.

Elsewhere: who starts whom (`node.processes.supervisor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from millstream.errors import MillstreamError, UnavailableError

__all__ = [
    "ARENAS_MAX", "BRIEFLY", "FREE_TOP_BYTES_MAX", "MAPPED_BYTES_MIN", "DirectoryLock",
    "FileLock", "calm_collector", "die_with_parent", "end_in_words", "give_memory_back",
    "lock_holder", "new_event_loop", "raise_descriptor_limit", "with_huge_pages",
]  # fmt: skip

BRIEFLY: Final = (2_000, 1, 30_000)
"""When the garbage collector runs, for `gc.set_threshold`: over the latest 6,000 objects or so,
and over all only after 120 million more."""
MAPPED_BYTES_MIN: Final = 1024 * 1024
"""Blocks of memory from this size on are mapped by themselves, and go back when they are freed."""
FREE_TOP_BYTES_MAX: Final = 16 * 1024 * 1024
"""Free memory at the end of the heap that is kept."""
ARENAS_MAX: Final = 2
"""Heaps, which threads share."""
TUNABLES_VARIABLE: Final = "GLIBC_TUNABLES"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb"
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_PR_SET_PDEATHSIG: Final = 1
_LOCK_STEP_S: Final = 0.05


def die_with_parent(parent_pid: int, parent_pipe: int) -> None:
    """Make the kernel kill this process when its parent ends.

    Twice over: by the parent-death signal, and by a thread that waits for the end of a pipe whose
    other side only the parent holds.

    Args:
        parent_pid: the process that started this one.
        parent_pipe: descriptor of the pipe; nothing is ever written to it.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)

    def wait() -> None:
        while os.read(parent_pipe, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="parent watch", daemon=True).start()


class FileLock:
    """A right that one process has at a time, as a locked file; it ends with the process.

    Args:
        path: the lock file, created if missing, left there when the right ends.
        patience_s: how long to wait for a predecessor that is just ending.

    Raises:
        MillstreamError: as `refusal` says.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, patience_s: float) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + patience_s
        while not self._try():
            if time.monotonic() >= until:
                holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
                os.close(self._descriptor)
                raise self.refusal(path, holder or "unknown")
            time.sleep(_LOCK_STEP_S)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def refusal(self, path: Path, holder: str) -> MillstreamError:
        """Return the error of who comes second; `holder` is the process that has the right."""
        raise AssertionError("each kind of lock says its own")

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def lock_holder(path: Path) -> int | None:
    """Return which process has the `FileLock` of a path, now; None if nobody has it.

    It is 0 where that cannot be told: of a process that is just taking it, has no files that this
    one may see, or has another number here than where it runs. What an earlier holder left in the
    file is never taken for the present one: the process must have the file open.

    Raises:
        OSError: the file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        told = os.pread(descriptor, 32, 0).strip()
        return int(told) if told.isdigit() and _has_open(told.decode(), descriptor) else 0
    finally:
        os.close(descriptor)
    return None


def _has_open(pid: str, descriptor: int) -> bool:
    mine = os.fstat(descriptor)
    own = f"/proc/{os.getpid()}/fd/{descriptor}"  # open, too, and no sign of anything
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(path) != own and os.path.samestat(path.stat(), mine):
                    return True
    except OSError:  # it is gone, or not ours to see
        return False
    return False


class DirectoryLock(FileLock):
    """The right to be the one server of the directory that the file is in.

    Raises:
        UnavailableError: `directory_in_use`.
    """

    def refusal(self, path: Path, holder: str) -> UnavailableError:
        """Return `directory_in_use`."""
        return UnavailableError(
            f"another server (process {holder}) uses {path.parent}; "
            "stop it, or choose another directory",
            code="directory_in_use",
        )


def calm_collector() -> None:
    """Let the garbage collector leave long-lived data alone, and take short walks.

    Once, when everything is loaded. With a million live objects this makes allocation several
    times cheaper.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*BRIEFLY)


def end_in_words(code: int) -> str:
    """Return how a process ended, from its exit code as `subprocess` has it."""
    if code < 0:
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"
    return f"ended with code {code}"


def new_event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the fastest event loop installed: uvloop's, else the standard one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def raise_descriptor_limit() -> None:
    """Raise the limit of open files and sockets of this process as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def give_memory_back() -> None:
    """Let what is freed in this process go back to the system, where the C library is glibc.

    By default it raises the size from which a block is mapped by itself up to 32 MiB, and keeps
    smaller ones; and it has up to eight arenas for each processor.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        set_option(_M_TRIM_THRESHOLD, FREE_TOP_BYTES_MAX)
        set_option(_M_ARENA_MAX, ARENAS_MAX)


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that handles large values.

    A block that is mapped by itself costs a page fault for each page when it is filled. With huge
    pages, where the system offers them to who asks, a copy of 16 MiB takes 2 ms instead of 7. What
    the operator has set is left alone.
    """
    known = environment.get(TUNABLES_VARIABLE, "")
    if _HUGE_PAGES in known:
        return dict(environment)
    tunables = [*filter(None, [known]), f"{_HUGE_PAGES}=1"]
    return {**environment, TUNABLES_VARIABLE: ":".join(tunables)}
