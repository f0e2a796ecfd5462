"""Keeps a process of the node alive: started when first needed, started again, stopped.

It is a child of the engine's process, so that a node within a program has the same one. It is told
what to do by one line of JSON on stdin and says by one on stdout that it is ready; its end is seen
at once, by the end of its stdout.

Invariants:
1. There is at most one, and none after `stop`.
2. One that dies is started again, `RESTARTS_MAX` times within `RESTART_WINDOW_S`; further ones
   wait until the window allows.
3. It is asked nothing before it said that it is ready.

Elsewhere: which ones there are (`node.processes.index_process`, `node.processes.coord_process`),
the other side of the two lines (`node.processes.child_start`).
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
from millstream.runtime.process import end_in_words
from millstream.runtime.tasks import Tasks

__all__ = ["RESTARTS_MAX", "RESTART_WINDOW_S", "START_S_MAX", "STOP_SECONDS", "ChildProcess"]

_LOG = logging.getLogger(__name__)
STOP_SECONDS: Final = 10.0
"""How long it may take to stop; then it is killed, which loses nothing that was committed."""
START_S_MAX: Final = 120.0
"""How long a process may take until it is ready, or until it says again that it goes on; busy
machines are slow."""
RESTARTS_MAX: Final = 5
RESTART_WINDOW_S: Final = 600.0
_BACKOFF_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)


class ChildProcess:
    """A child of one kind; `start` may be called again and again.

    Args:
        name: what people call it.
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
        """When it was started again, within the window."""
        self._why = f"the {name} process is being started"
        self._code: int | None = None
        """With which it ended last; None if it could not be started."""
        self.restarts_total = 0

    # ---- what becomes of it, for the kinds

    def goes_on(self) -> None:
        """It is not ready yet, and comes nearer."""

    def is_ready(self) -> None:
        """It runs and can be asked."""

    def says(self, event: dict[str, Any]) -> None:
        """It says more than that it is ready."""

    def is_gone(self) -> None:
        """It ran, and does not any more."""

    def has_ended(self, code: int, event: dict[str, Any]) -> None:
        """It ended so; `event` is the first that it said."""

    # ---- for its owner

    @property
    def pid(self) -> int | None:
        """Process id, None while there is none."""
        return self._child.pid if self._child is not None else None

    @property
    def is_wanted(self) -> bool:
        """Whether it was started, and not stopped since."""
        return len(self._tasks) > 0

    def start(self) -> None:
        """Have the process run from now on; harmless if it does."""
        if not self.is_wanted:
            self._is_stopping = False
            self._tasks.start(self._keep_running(), name=f"{self.name} process")

    async def stop(self) -> None:
        """End it; harmless if there is none."""
        self._is_stopping = True
        if self._child is not None:
            self._child.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._tasks.finish()
        await self._tasks.stop()

    def kill(self) -> None:
        """End it at once; it is started again."""
        if self._child is not None:
            self._child.kill()

    # ---- its life

    async def _keep_running(self) -> None:
        while True:
            self._code = None
            self._why = await self._run()
            if self._is_stopping:
                return
            delay_s = self._pause_s(time.monotonic())
            # code 0: somebody told it to stop, as one who stops the whole process group
            level = logging.INFO if self._code == 0 else logging.ERROR
            _LOG.log(level, "%s; starting it again in %g s", self._why, delay_s)
            await asyncio.sleep(delay_s)
            self.restarts_total += 1

    def _pause_s(self, now: float) -> float:
        """Return how long to wait before the next start, and count it."""
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
        except OSError as error:  # of processes, memory or descriptors
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
            else:  # it ends by itself now, and its exit code says more
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
        """Hear what it says until its end."""
        while line := await output.readline():
            with suppress(msgspec.MsgspecError):
                self.says(msgspec.json.decode(line, type=dict[str, Any]))

    @staticmethod
    async def _ended(
        child: subprocess.Popen[bytes], transport: asyncio.BaseTransport | None
    ) -> int:
        """Make sure that a process has ended; return how. Also in a task that is cancelled."""
        child.kill()  # harmless after its end
        if transport is not None:
            transport.close()
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it had read what it was told
            child.stdin.close()
        child.stdout.close()
        waiting = asyncio.get_running_loop().run_in_executor(None, child.wait)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await asyncio.wait([waiting])
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        """Start a process: in the loop's thread, with whose end the kernel would end it."""
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
        """Say what is to be done; return what the process says to that."""
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
            if event.get("event") != "starting":
                return event
            self.goes_on()
