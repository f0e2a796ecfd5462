"""The format of a history: one JSON object per line, in the order in which things happened.

    {"process": "c1", "type": "invoke", "function": "cas", "argument": ["k", "a", "b"], "time": 12}
    {"process": "c1", "type": "ok", "function": "cas", "argument": ["k", "a", "b"],
     "result": true, "version": 7, "time": 40}

Invariants:
1. A process does one thing at a time: every `invoke` is followed by one `ok`, `fail` or `info` of
   the same process, or by none. Who has several requests on the way is several processes.
2. `ok` was told a result. `fail` knows that nothing was done. `info` does not know, nor will it.
3. Times are of one clock of the machine that writes the history, in nanoseconds.
4. `version`, if there, places what was done in the order the servers chose: a number, or several
   of which the first counts most. A write's is its own; a read's is that of the value it saw, or
   any later one at which that value still stood. One history does not mix numbers and several.

Elsewhere: what the functions mean (`registers`, `locks`, `queues`, `tickets`,
`watches`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Event", "Operation", "Recorder", "Version", "operations", "read_events", "to_line"]

Version: TypeAlias = int | tuple[int, ...]
FAIL, INFO, INVOKE, OK = "fail", "info", "invoke", "ok"


class Event(NamedTuple):
    """One line."""

    process: str
    type: str
    function: str
    argument: tuple[str, ...]
    result: Any
    version: Version | None
    time: int


class Operation(NamedTuple):
    """One request from begin to end; without an end it may take effect at any time, or never."""

    process: str
    function: str
    argument: tuple[str, ...]
    result: Any
    invoked: int
    returned: int | None
    version: Version | None = None

    @property
    def key(self) -> str:
        """What it is about."""
        return self.argument[0]

    @property
    def is_open(self) -> bool:
        """Whether nobody knows what became of it."""
        return self.returned is None

    def __str__(self) -> str:
        end = "" if self.returned is None else self.returned
        asked = f"{self.process} {self.function} {' '.join(self.argument)}"
        told = "?" if self.returned is None else repr(self.result)
        at = "" if self.version is None else f" at {self.version}"
        return f"{asked} -> {told}{at} [{self.invoked}, {end}]"


class Recorder:
    """Takes a history down as it happens, in memory and, where a file is given, line by line."""

    def __init__(self, path: Path | None = None) -> None:
        self.events: list[Event] = []
        self._going: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._file = None if path is None else path.open("w", encoding="utf-8")

    def invoke(self, process: str, function: str, argument: tuple[str, ...], time: int) -> None:
        """Process asks for something."""
        assert process not in self._going, f"{process} asks before it was told"
        self._going[process] = function, argument
        self._note(Event(process, INVOKE, function, argument, None, None, time))

    def ok(self, process: str, result: Any, time: int, version: Version | None = None) -> None:
        """Process is told a result."""
        self._end(process, OK, result, version, time)

    def fail(self, process: str, time: int, result: Any = None) -> None:
        """Process knows that what it asked for was not done and never will be."""
        self._end(process, FAIL, result, None, time)

    def info(self, process: str, time: int, result: Any = None) -> None:
        """Process does not know what became of it; `result` may say why."""
        self._end(process, INFO, result, None, time)

    def close(self) -> None:
        """No more comes."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _end(
        self, process: str, kind: str, result: Any, version: Version | None, time: int
    ) -> None:
        function, argument = self._going.pop(process)
        self._note(Event(process, kind, function, argument, result, version, time))

    def _note(self, event: Event) -> None:
        self.events.append(event)
        if self._file is not None:
            self._file.write(to_line(event) + "\n")


def to_line(event: Event) -> str:
    """Return the event as a line, without what it has not."""
    fields = event._asdict()
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def read_events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of lines; what is not one is refused with its number."""
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            version = fields.get("version")
            yield Event(
                str(fields["process"]),
                fields["type"],
                fields["function"],
                tuple(fields["argument"]),
                fields.get("result"),
                tuple(version) if isinstance(version, list) else version,
                int(fields["time"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} is no event: {error!r}") from error


def operations(events: Iterable[Event]) -> list[Operation]:
    """Return what was asked for, in that order; what certainly was not done is left out."""
    found: list[Operation | None] = []
    going: dict[str, int] = {}
    for event in events:
        if event.type == INVOKE:
            if event.process in going:
                raise ValueError(f"{event.process} asks before it was told")
            going[event.process] = len(found)
            found.append(
                Operation(event.process, event.function, event.argument, None, event.time, None)
            )
            continue
        at = going.pop(event.process, None)
        if at is None:
            raise ValueError(f"{event.process} is told what it did not ask")
        asked = found[at]
        assert asked is not None
        if event.type == OK:
            end = {"result": event.result, "returned": event.time, "version": event.version}
            found[at] = asked._replace(**end)
        elif event.type == FAIL:
            found[at] = None
        elif event.type != INFO:
            raise ValueError(f"{event.type} is no type of event")
    return [operation for operation in found if operation is not None]
