"""The supervisor of a node: starts the engine, prints the ready line, restarts and stops it.

Invariants:
1. Exactly one line goes to stdout, when the node is ready for the first time.
2. A clean stop (SIGTERM, SIGINT) ends with 0. A second signal, or no end within `STOP_SECONDS`,
   kills the engine, which is safe but makes the next start a recovery.
3. An engine that dies is restarted on the same ports, `RESTARTS_MAX` times within
   `RESTART_WINDOW_S`. Its new failover entries tell every reader exactly what was lost. After that
   the supervisor gives up with a message and exit code 1.
4. An engine that could not start for the first time, or reports that a retry is useless, is not
   restarted. Neither is one whose disk failed, since the state of that disk is unknown.

Elsewhere: what the engine does (`node.engine_process`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millstream.errors import CorruptionError, MillstreamError, UnavailableError, UsageError
from millstream.node.settings import (
    LISTENERS,
    Address,
    Settings,
    parse_address,
    secretless_environment,
)
from millstream.runtime.logs import LABEL_VARIABLE, RECENT, set_up_logs
from millstream.runtime.process import end_in_words, with_huge_pages

__all__ = [
    "EXIT_DISK_FAILED",
    "RESTARTS_MAX",
    "RESTART_WINDOW_S",
    "STOP_SECONDS",
    "Supervisor",
    "Waker",
    "console_address",
    "ready_line",
]

_LOG = logging.getLogger(__name__)
STOP_SECONDS: Final = 30
RESTARTS_MAX: Final = 5
RESTART_WINDOW_S: Final = 600.0
_BACKOFF_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
TOLD_LINES_MAX: Final = 50
"""Lines of its own log that the supervisor tells an engine that it starts: why it does so."""
EXIT_DISK_FAILED: Final = 3
"""Exit code of an engine that could not write, or could not make a write durable."""
ENGINE_COMMAND: Final = (sys.executable, "-m", "millstream.node.engine_process")


class Waker:
    """Wakes a thread that waits: by a call of another thread, or by a signal.

    Closed when nobody has it any more, so that a late call meets no other file.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self._read_end)
        os.close(self.write_end)

    def wake(self) -> None:
        """End the wait of now, or else the next one."""
        with contextlib.suppress(BlockingIOError):  # it is awake
            os.write(self.write_end, b"\0")

    def wait(self, timeout_s: float | None = None, *, also: int | None = None) -> None:
        """Return when woken, after `timeout_s`, or when the descriptor `also` can be read."""
        waited = [self._read_end] if also is None else [self._read_end, also]
        if self._read_end in select.select(waited, [], [], timeout_s)[0]:
            os.read(self._read_end, 4096)


class Supervisor:
    """One run of an engine: `run` in the main thread of its process, `keep` in any other.

    Args:
        settings: of the node.
        announce: takes the ready line.
        command: starts the engine.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        announce: Callable[[str], None],
        command: tuple[str, ...] = ENGINE_COMMAND,
    ) -> None:
        self.settings = settings
        """With the ports that the engine was given, once it is ready."""
        self._announce = announce
        self._command = command
        self._engine: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._is_announced = False
        self._restarts: list[float] = []
        self._waker = Waker()

    def run(self) -> int:
        """Run the node until it is told to stop; return 0.

        Raises:
            UsageError: settings that the node refuses.
            UnavailableError: `disk_failed`, also while it was being stopped.
            MillstreamError: the node cannot start, or dies again and again.
        """
        level, as_json = self.settings.log_level, self.settings.log_json
        set_up_logs(level, as_json=as_json, process="supervisor")
        previous = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
        }
        previous_wake = signal.set_wakeup_fd(self._waker.write_end, warn_on_full_buffer=False)
        try:
            self.keep()
            return 0
        finally:
            signal.alarm(0)
            signal.set_wakeup_fd(previous_wake)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def keep(self) -> None:
        """Run the engine until `stop` is called; raises as `run`. Of one thread."""
        while self._goes_on(self._run_engine()):
            pass

    def stop(self) -> None:
        """Have the engine end cleanly; called again, kill it. Of any thread, or a signal."""
        was_stopping, self._is_stopping = self._is_stopping, True
        engine = self._engine  # read after the flag is set: the other side does it vice versa
        if engine is not None:
            engine.kill() if was_stopping else engine.terminate()
        self._waker.wake()

    def _run_engine(self) -> MillstreamError:
        """Run one engine to its end; return why it ended."""
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment(),
        ) as engine:
            self._engine = engine
            if self._is_stopping:
                engine.terminate()
            event = self._start(engine)
            if event.get("event") == "ready":
                self._is_ready(event["listeners"])
            code = self._await_end(engine)
            self._engine = None
        if event.get("event") == "error":
            return _as_error(event)
        if code == EXIT_DISK_FAILED:
            return UnavailableError(
                "the disk is full or failed, see the log: repair it, then start again; writes "
                "acknowledged as persisted are kept",
                code="disk_failed",
                retry="never",
            )
        return UnavailableError(f"{self._name} {end_in_words(code)}", code="engine_died")

    @property
    def _name(self) -> str:
        number = self.settings.engine
        return "the engine" if self.settings.engines == 1 else f"engine {number}"

    def _environment(self) -> dict[str, str]:
        environment = with_huge_pages(secretless_environment(os.environ))
        if self.settings.engines > 1:
            environment[LABEL_VARIABLE] = f"engine-{self.settings.engine}"
        return environment

    def _await_end(self, engine: subprocess.Popen[bytes]) -> int:
        """Wait for its end and for signals; a signal just before a blocking wait would be lost."""
        try:
            end = os.pidfd_open(engine.pid)
        except ProcessLookupError:  # it has ended and was already waited for
            return engine.wait()
        try:
            while (code := engine.poll()) is None:
                self._waker.wait(also=end)
        finally:
            os.close(end)
        return code

    def _start(self, engine: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert engine.stdin is not None
        assert engine.stdout is not None
        lines = RECENT.after(0)[-TOLD_LINES_MAX:]
        order = {"supervisor_pid": os.getpid(), "settings": self.settings, "lines": lines}
        try:
            engine.stdin.write(msgspec.json.encode(order) + b"\n")
            engine.stdin.flush()
        except BrokenPipeError:
            with contextlib.suppress(BrokenPipeError):  # for data that is still in the buffer
                engine.stdin.close()
            return {}
        line = engine.stdout.readline()
        try:
            event: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            return {}
        return event

    def _is_ready(self, listeners: dict[str, str | None]) -> None:
        actual: dict[str, Any] = {
            name: parse_address(name, text) for name, text in listeners.items() if text
        }
        self.settings = dataclasses.replace(self.settings, **actual)
        said = "ready" if self.settings.engines == 1 else f"{self._name} is ready"
        _LOG.info(said, extra={name: text for name, text in listeners.items() if text})
        if not self._is_announced:
            self._is_announced = True
            if (console := console_address(self.settings, listeners.get("http"))) is not None:
                _LOG.info("the console is at %s", console)
            self._announce(ready_line(listeners))

    def _goes_on(self, error: MillstreamError) -> bool:
        """Wait before the next attempt; False if told to stop, raises if a retry is useless."""
        if self._is_stopping and error.code != "disk_failed":
            return False
        if not self._is_announced or error.retry == "never":
            raise error
        now = time.monotonic()
        self._restarts = [at for at in self._restarts if now - at < RESTART_WINDOW_S]
        if len(self._restarts) >= RESTARTS_MAX:
            raise UnavailableError(
                f"{error}; it was started again {RESTARTS_MAX} times within "
                f"{RESTART_WINDOW_S / 60:.0f} minutes: giving up, see the log",
                code="engine_died",
            )
        delay_s = _BACKOFF_S[len(self._restarts)]
        self._restarts.append(now)
        _LOG.error(
            "%s; starting it again in %g s (%d of %d)",
            error,
            delay_s,
            len(self._restarts),
            RESTARTS_MAX,
        )
        until = now + delay_s
        while not self._is_stopping and (left := until - time.monotonic()) > 0:
            self._waker.wait(left)
        return not self._is_stopping

    def _on_signal(self, number: int, _: object) -> None:
        if not self._is_stopping and number != signal.SIGALRM:
            signal.alarm(STOP_SECONDS)
        self.stop()


def ready_line(listeners: dict[str, str | None]) -> str:
    """Return the line with the addresses of this node's listeners; null for closed ones."""
    event: dict[str, Any] = {"event": "ready", "pid": os.getpid()}
    event |= {name: listeners.get(name) for name in LISTENERS}
    return msgspec.json.encode(event).decode()


def console_address(settings: Settings, http: str | None) -> str | None:
    """Return where a browser finds the console; None if the HTTP listener is closed.

    Args:
        settings: of the node.
        http: HOST:PORT of the listener, as the ready line has it.
    """
    if http is None:
        return None
    address: Any = parse_address("http", http)
    host = settings.advertised_host if address.is_wildcard else address.host
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{Address(host, address.port)}/_console/"


def _as_error(event: dict[str, Any]) -> MillstreamError:
    message = str(event["message"])
    if event["is_usage"]:
        return UsageError(message)
    if event["is_final"]:
        return CorruptionError(message, code="cannot_start")
    return UnavailableError(message)
