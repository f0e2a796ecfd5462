"""Several engines under one supervisor: started, made one cluster, restarted, stopped together.

Each engine has a `Supervisor` in a thread of its own. The main thread gets signals and what the
threads tell, through one pipe.

Invariants:
1. Exactly one line goes to stdout, once all engines are members and serve.
2. An engine that dies is started again, as a single one is. If one gives up, all are stopped.
3. A signal stops all engines; a second one, or no end within `STOP_SECONDS`, kills them.

Elsewhere: one engine (`node.processes.supervisor`), its settings (`node.engine_settings`), the
cluster (`node.forming`).
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

import msgspec

from millstream.node.engine_settings import check_engines, settings_of
from millstream.node.forming import form, http_of
from millstream.node.processes.supervisor import ENGINE_COMMAND, STOP_SECONDS, Supervisor, Waker
from millstream.node.settings import Address, Settings, parse_address
from millstream.runtime.logs import set_up_logs

__all__ = ["Engines", "run_node"]

_LOG = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)


def run_node(settings: Settings, *, announce: Callable[[str], None]) -> int:
    """Run a node of one engine, or several engines; return 0 once it was told to stop.

    Args:
        settings: of all.
        announce: takes the ready line.

    Raises:
        UsageError: settings that the node refuses.
        OSError: the data directory cannot be read.
        MillstreamError: as `Supervisor.run`, and `Engines.run`.
    """
    check_engines(settings)
    if settings.engines == 1:
        return Supervisor(settings, announce=announce).run()
    return Engines(settings, announce=announce).run()


class _Event(NamedTuple):
    """What a thread tells: an engine is ready, or has ended; the cluster is formed, or is not."""

    number: int
    """Of the engine; 0: the cluster."""
    ready: dict[str, Any] | None = None
    """The ready line of an engine."""
    error: Exception | None = None


class Engines:
    """One run of several engines; call `run` in the main thread of its process.

    Args:
        settings: of all, as `check_engines` accepts them.
        announce: takes the ready line.
        command: starts an engine.
        make_cluster: makes the engines one cluster, as `node.forming.form`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        announce: Callable[[str], None],
        command: tuple[str, ...] = ENGINE_COMMAND,
        make_cluster: Callable[..., None] = form,
    ) -> None:
        self._settings, self._announce, self._command = settings, announce, command
        self._make_cluster = make_cluster
        self._secret = secrets.token_hex(32)
        self._engines: dict[int, Supervisor] = {}
        self._ready: dict[int, dict[str, Any]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._error: Exception | None = None
        self._is_stopping = False
        self._waker = Waker()

    def run(self) -> int:
        """Run the engines until told to stop; return 0.

        Raises:
            MillstreamError: an engine cannot start, gives up, or is refused by the cluster.
        """
        level, as_json = self._settings.log_level, self._settings.log_json
        set_up_logs(level, as_json=as_json, process="supervisor")
        previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        previous_wake = signal.set_wakeup_fd(self._waker.write_end, warn_on_full_buffer=False)
        try:
            self._start(1, None)
            while self._threads:
                self._waker.wait()
                self._take_events()
        except BaseException:  # no thread, and no engine, outlives the run
            self._stop()
            for thread in self._threads.values():
                thread.join()
            raise
        finally:
            signal.alarm(0)
            signal.set_wakeup_fd(previous_wake)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error
        return 0

    def _take_events(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except Empty:
                return
            if event.ready is not None:
                self._is_ready(event.number, event.ready)
            elif event.number:
                self._threads.pop(event.number).join()
            elif event.error is None and not self._is_stopping:
                self._announce(self._ready_line())
            if event.error is not None and (event.number or not self._is_stopping):
                self._error = self._error or event.error
                self._stop()

    def _is_ready(self, number: int, ready: dict[str, Any]) -> None:
        self._ready[number] = ready
        if self._is_stopping:
            return
        if number == 1:
            settings = self._settings
            peer = Address(settings.coordination_host, parse_address("peer", ready["peer"]).port)
            for other in range(2, settings.engines + 1):
                # Engine 1 can leave its pool for that of `--join` only while it is alone there.
                self._start(other, peer if settings.join is None else None)
        if len(self._ready) == self._settings.engines:
            # A daemon: what it waits for may last longer than the engines.
            threading.Thread(target=self._form, name="cluster", daemon=True).start()

    def _start(self, number: int, peer: Address | None) -> None:
        settings = settings_of(self._settings, number, secret=self._secret, peer=peer)
        engine = Supervisor(
            settings,
            announce=lambda line: self._tell(_Event(number, ready=msgspec.json.decode(line))),
            command=self._command,
        )
        self._engines[number] = engine
        # The kernel kills an engine when the thread that started it ends.
        thread = threading.Thread(
            target=self._keep, args=(number, engine), name=f"engine {number}"
        )
        self._threads[number] = thread
        thread.start()

    # ---- in other threads

    def _keep(self, number: int, engine: Supervisor) -> None:
        error: Exception | None = None
        try:
            engine.keep()
        except Exception as caught:  # noqa: BLE001 - the main thread raises it
            error = caught
        self._tell(_Event(number, error=error))

    def _form(self) -> None:
        error: Exception | None = None
        try:
            settings = self._engines[1].settings
            ready = [self._ready[number] for number in sorted(self._ready)]
            clients = [http_of(settings, one["http"]) for one in ready]
            self._make_cluster(clients, self._settings)
        except Exception as caught:  # noqa: BLE001 - the main thread raises it
            error = caught
        self._tell(_Event(0, error=error))

    def _tell(self, event: _Event) -> None:
        self._events.put(event)
        self._waker.wake()

    # ---- stopping

    def _on_signal(self, number: int, _: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if not self._is_stopping:
            signal.alarm(STOP_SECONDS)
        self._is_stopping = True
        for engine in list(self._engines.values()):
            engine.stop()

    def _ready_line(self) -> str:
        """Return the ready line: the addresses of engine 1, and those of all."""
        names = [name for name in self._ready[1] if name not in ("event", "pid")]
        engines = [
            {
                "data": self._engines[number].settings.data,
                **{name: ready[name] for name in names},
            }
            for number, ready in sorted(self._ready.items())
        ]
        return msgspec.json.encode({**self._ready[1], "engines": engines}).decode()
