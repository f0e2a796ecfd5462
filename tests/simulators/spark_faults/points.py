"""Places in the code where a process fails when it is told to.

A folder holds what is to happen: a file `armed-NUMBER` says at which hit of which point, and what.
Whoever hits it that often renames the file to `fired-NUMBER`, so that it happens once, and dies,
raises, or kills somebody. `events` has a line for all that is counted.

Invariants:
1. What has fired is on record before it takes effect, whoever is killed by it.
2. Hits are counted over all processes, from when the fault was armed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

LINGER_S = 10.0
"""How long a task waits for the other attempt that is to overtake it."""
AT_WORK_S = 0.3
_BETWEEN_LOOKS_S = 0.02


class ToldToFail(RuntimeError):
    """A fault that was armed."""


class Points:
    """The faults of one folder, for every process that has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events = folder / "events"

    # -- of whoever arms

    def arm(self, number: int, point: str, at: int, action: str, pids: list[int]) -> None:
        """Have the hit `at` (from 1) of a point cause something; `pids`: groups to be killed."""
        made = self.folder / f".armed-{number}"
        made.write_text(json.dumps({"point": point, "at": at, "action": action, "pids": pids}))
        made.rename(self.folder / f"armed-{number}")

    def disarm(self, number: int) -> bool:
        """Take a fault back; False if it has fired."""
        try:
            (self.folder / f"armed-{number}").unlink()
        except FileNotFoundError:
            return False
        return True

    def has_fired(self, number: int) -> bool:
        """Whether it has happened, or is about to."""
        return (self.folder / f"fired-{number}").exists()

    def clear(self) -> None:
        """Forget all faults and events."""
        for path in self.folder.iterdir():
            path.unlink()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what was told of a kind."""
        with contextlib.suppress(FileNotFoundError):
            told = [json.loads(line) for line in self._events.read_text().splitlines()]
            return [event for event in told if event["name"] == name]
        return []

    # -- of whoever fails

    def tell(self, name: str, **facts: object) -> None:
        """Count something."""
        line = json.dumps({"name": name, **facts}) + "\n"
        with self._events.open("a") as file:
            file.write(line)  # one write of few bytes: lines of processes do not mix

    def hit(self, point: str, who: str = "") -> None:
        """Fail if this is the hit that was armed; `who`: the work of which this is one attempt."""
        for path in self.folder.glob("armed-*"):
            with contextlib.suppress(FileNotFoundError):
                armed = json.loads(path.read_text())
                if armed["point"] == point and _counted(path) == armed["at"]:
                    path.rename(path.with_name(path.name.replace("armed", "fired")))
                    self._do(armed | {"number": int(path.name.split("-")[1])}, point, who)

    def _do(self, armed: dict[str, Any], point: str, who: str) -> None:
        action = armed["action"]
        if action == "raise":
            raise ToldToFail(f"told to fail at {point}")
        if action == "linger":
            self._linger(armed["number"], who)
        elif action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            for pid in armed["pids"]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _linger(self, number: int, who: str) -> None:
        """Wait until the same work is done by another attempt, too."""
        until = time.monotonic() + LINGER_S
        while time.monotonic() < until:
            time.sleep(_BETWEEN_LOOKS_S)  # another process: asked again
            told = {event["number"] for event in self.events("attempt") if event["who"] == who}
            if len(told) > 1:
                self.tell("overtaken", number=number, who=who)
                time.sleep(AT_WORK_S)  # it overtakes, and then this one goes on
                return


def _counted(armed: Path) -> int:
    """Count a hit of all processes; return which it was."""
    path = armed.with_name("." + armed.name.replace("armed", "hits"))
    file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    try:
        os.write(file, b".")
        return os.lseek(file, 0, os.SEEK_CUR)
    finally:
        os.close(file)
