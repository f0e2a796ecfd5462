"""Keeps a process of the node running: starts it on demand, restarts it, stops it.

The process is a child of the engine's process, so an embedded node has the same one. It gets its
order as one line of JSON on stdin and reports by a line on stdout that it is ready. The end of its
stdout shows its end at once.

Invariants:
1. There is at most one process, and none after `stop`.
2. A process that dies is restarted, `RESTARTS_MAX` times within `RESTART_WINDOW_S`. Further
   restarts wait until the window allows.
3. It gets no requests before it has reported that it is ready.

Elsewhere: its kinds (`node.processes.index_process`, `node.processes.coord_process`), the child's
side of the protocol (`node.processes.child_start`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from millstream.node.settings import secretless_environment
from millstream.runtime.logs import RECENT
from millstream.runtime.process import end_in_words
from millstream.runtime.tasks import Tasks

__all__ = ["RESTARTS_MAX", "RESTART_WINDOW_S", "START_S_MAX", "STOP_SECONDS", "ChildProcess"]

_LOG = logging.getLogger(__name__)
STOP_SECONDS: Final = 10.0
"""How long it may take to stop; then it is killed, which loses no committed data."""
START_S_MAX: Final = 120.0
"""How long a process may take until it is ready, or until it reports progress again; busy machines
are slow."""
RESTARTS_MAX: Final = 5
RESTART_WINDOW_S: Final = 600.0
_BACKOFF_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)


class ChildProcess:
    """A child process of one kind; `start` may be called repeatedly.

    Args:
        name: for messages.
        order: what the process is told.
        command: starts it.
        descriptors: files that it shares with this process.
    """

    def __init__(
        self,
        name: str,
        order: msgspec.Struct,
        command: Sequence[str],
        descriptors: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._order = order
        self._command = command
        self._descriptors = descriptors
        self._tasks = Tasks()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._starts: list[float] = []
        """Times of the restarts within the window."""
        self._why = f"the {name} process is being started"
        self._code: int | None = None
        """Exit code of its last end; None if it could not be started."""
        self.restarts_total = 0

    # ---- events, for subclasses

    def goes_on(self) -> None:
        """It is not ready yet and reports progress."""

    def is_ready(self) -> None:
        """It runs and can be asked."""

    def says(self, event: dict[str, Any]) -> None:
        """It sent a line other than ready."""

    def is_gone(self) -> None:
        """It ran and has ended."""

    def has_ended(self, code: int, event: dict[str, Any]) -> None:
        """It ended with this code; `event` is the first line that it sent."""

    # ---- calls of the owner

    @property
    def pid(self) -> int | None:
        """Return the process id; None while there is none."""
        return self._child.pid if self._child is not None else None

    @property
    def is_wanted(self) -> bool:
        """Return whether it was started and not stopped since."""
        return len(self._tasks) > 0

    def start(self) -> None:
        """Start the process and keep it running; does nothing if it runs."""
        if not self.is_wanted:
            self._is_stopping = False
            self._tasks.start(self._keep_running(), name=f"{self.name} process")

    async def stop(self) -> None:
        """End it; does nothing if there is none."""
        self._is_stopping = True
        if self._child is not None:
            self._child.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._tasks.finish()
        await self._tasks.stop()

    def kill(self) -> None:
        """Kill it; it is restarted."""
        if self._child is not None:
            self._child.kill()

    # ---- running it

    async def _keep_running(self) -> None:
        while True:
            self._code = None
            self._why = await self._run()
            if self._is_stopping:
                return
            delay_s = self._pause_s(time.monotonic())
            # code 0: a signal told it to stop, for example one to the whole process group
            level = logging.INFO if self._code == 0 else logging.ERROR
            _LOG.log(level, "%s; starting it again in %g s", self._why, delay_s)
            await asyncio.sleep(delay_s)
            self.restarts_total += 1

    def _pause_s(self, now: float) -> float:
        """Return the pause before the next start, and record the start."""
        self._starts = [at for at in self._starts if now - at < RESTART_WINDOW_S]
        pause_s = _BACKOFF_S[min(len(self._starts), len(_BACKOFF_S) - 1)]
        if len(self._starts) >= RESTARTS_MAX:
            pause_s = RESTART_WINDOW_S - (now - self._starts[0])
        self._starts.append(now + pause_s)
        return pause_s

    async def _run(self) -> str:
        """Run one process to its end; return why it ended."""
        try:
            child = self._child = self._started()
        except OSError as error:  # too few processes, memory or descriptors
            return f"the {self.name} process cannot be started: {error}"
        transport: asyncio.BaseTransport | None = None
        event: dict[str, Any] = {}
        was_ready = False
        try:
            output = asyncio.StreamReader()
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(output), child.stdout
            )
            event = await self._tell(child, output)
            if event.get("event") == "ready" and not self._is_stopping:
                _LOG.info("the %s process is ready", self.name, extra={"pid": self.pid})
                was_ready = True
                self.is_ready()
            if event.get("event") != "error":
                await self._listen(output)
            else:  # it ends now, and its exit code says more
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_SECONDS):
                        await self._listen(output)
        except TimeoutError:
            event = {"event": "error", "message": f"it was not ready within {START_S_MAX:g} s"}
        finally:
            self._child = None
            if was_ready:
                self.is_gone()
            code = await self._ended(child, transport)
        self._code = code
        self.has_ended(code, event)
        if event.get("event") == "error":
            return f"the {self.name} process cannot start: {event['message']}"
        return f"the {self.name} process {end_in_words(code)}"

    async def _listen(self, output: asyncio.StreamReader) -> None:
        """Read its lines until its end."""
        while line := await output.readline():
            with suppress(msgspec.MsgspecError):
                event = msgspec.json.decode(line, type=dict[str, Any])
                if not self._keep_line(event):
                    self.says(event)

    def _keep_line(self, event: dict[str, Any]) -> bool:
        """Keep a line of its log; return whether the event is one."""
        if event.get("event") != "log":
            return False
        RECENT.add(self.name, **{name: one for name, one in event.items() if name != "event"})
        return True

    @staticmethod
    async def _ended(
        child: subprocess.Popen[bytes], transport: asyncio.BaseTransport | None
    ) -> int:
        """Make sure that a process has ended; return its code. Also runs in a cancelled task."""
        child.kill()  # harmless after its end
        if transport is not None:
            transport.close()
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it had read its order
            child.stdin.close()
        child.stdout.close()
        waiting = asyncio.get_running_loop().run_in_executor(None, child.wait)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await asyncio.wait([waiting])
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        """Start a process from the loop's thread: the kernel kills it when that thread ends."""
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=secretless_environment(os.environ),
            pass_fds=self._descriptors,
        )

    async def _tell(
        self, child: subprocess.Popen[bytes], output: asyncio.StreamReader
    ) -> dict[str, Any]:
        """Send the order; return the first line that the process answers."""
        assert child.stdin is not None
        with suppress(BrokenPipeError):
            child.stdin.write(msgspec.json.encode(self._order) + b"\n")
            child.stdin.flush()
        while True:
            async with asyncio.timeout(START_S_MAX):
                line = await output.readline()
            try:
                event: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.MsgspecError:
                return {}
            if event.get("event") == "log":
                self._keep_line(event)
                continue
            if event.get("event") != "starting":
                return event
            self.goes_on()
