"""Logs: to stderr, one line each, for people or as JSON.

Invariants:
1. Nothing but the ready line and data asked for goes to stdout.
2. A line of the JSON form is one object: time, level, logger, message, and what the call gave as
   `extra`.
3. The last `KEPT_LINES_MAX` lines are kept in memory for people who look (`RECENT`), without lines
   of the level debug. A process that another one started sends its lines to that one.

Elsewhere: what is logged.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any, Final, NamedTuple, TextIO

from msgspec import json

from millstream.errors import UsageError

__all__ = [
    "KEPT_LINES_MAX",
    "LABEL_VARIABLE",
    "LEVELS",
    "RECENT",
    "JsonFormatter",
    "KeptLine",
    "KeptLines",
    "LineFormatter",
    "set_up_logs",
]

LABEL_VARIABLE: Final = "MILLSTREAM_LOG_LABEL"
"""Environment variable that names a process family in its log lines; unset: there is only one."""
LEVELS: Final = ("debug", "info", "warning", "error")
KEPT_LINES_MAX: Final = 2_000
"""Lines of a process that are kept."""
KEPT_TEXT_MAX: Final = 2_000
"""Characters that are kept of a line."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _label() -> str:
    return os.environ.get(LABEL_VARIABLE, "")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end."""
        line = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"engine": _label()} if _label() else {}),
            "pid": record.process,
            **_extra(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.encode(line, enc_hook=str).decode()


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info    kv.aio.engine  message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line (and below it a traceback, if there is one)."""
        name = record.name.removeprefix("millstream.")
        level = record.levelname.lower()
        label = f"{_label()} " if _label() else ""
        parts = [f"{_stamp(record)} {label}{level:<8}{name:<20} {record.getMessage()}"]
        parts += [f"{key}={value}" for key, value in _extra(record).items()]
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class KeptLine(NamedTuple):
    """One line of a log."""

    number: int
    """Counts the lines of all processes, from 1."""
    at_ms: int
    """Unix time."""
    process: str
    level: str
    logger: str
    text: str


class KeptLines:
    """The last lines of this process and of those that it started; of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, deque[KeptLine]] = {}
        self.total = 0
        """Number of the last line."""

    def add(self, process: str, at_ms: int, level: str, logger: str, text: str) -> None:
        """Keep a line."""
        with self._lock:
            self.total += 1
            lines = self._lines.setdefault(process, deque(maxlen=KEPT_LINES_MAX))
            lines.append(KeptLine(self.total, at_ms, process, level, logger, text[:KEPT_TEXT_MAX]))

    def processes(self) -> list[str]:
        """Return the names of the processes that have logged."""
        with self._lock:
            return sorted(self._lines)

    def after(self, number: int) -> list[KeptLine]:
        """Return the lines above a number, in order."""
        found = list[KeptLine]()
        with self._lock:
            for lines in self._lines.values():
                found += takewhile(lambda line: line.number > number, reversed(lines))
        return sorted(found)


RECENT: Final = KeptLines()
"""The lines of this process."""


class _Keeper(logging.Handler):
    """Keeps the lines, or sends them to the process that started this one."""

    def __init__(self, process: str, tell: Callable[[dict[str, Any]], None] | None) -> None:
        super().__init__(logging.INFO)
        self._process, self._tell = process, tell

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        try:
            parts = [record.getMessage(), *(f"{k}={v}" for k, v in _extra(record).items())]
            text = " ".join(parts)
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            at_ms, level = int(record.created * 1000), record.levelname.lower()
            logger, text = record.name.removeprefix("millstream."), text[:KEPT_TEXT_MAX]
            if self._tell is None:
                RECENT.add(self._process, at_ms, level, logger, text)
                return
            line = {"at_ms": at_ms, "level": level, "logger": logger, "text": text}
            self._tell({"event": "log", **line})
        except Exception:  # noqa: BLE001 - as every handler of logging
            self.handleError(record)


def set_up_logs(
    level: str,
    *,
    as_json: bool,
    stream: TextIO | None = None,
    process: str = "engine",
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Send all logs of this process to stderr (or `stream`).

    Args:
        level: the lowest that is logged.
        as_json: the form of a line.
        stream: in place of stderr.
        process: the name under which lines are kept.
        tell: sends an event `log` to the process that started this one, which keeps the line.

    Raises:
        UsageError: `bad_log_level`.
    """
    if level not in LEVELS:
        raise UsageError(
            f"log level {level!r} is not one of {', '.join(LEVELS)}", code="bad_log_level"
        )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler, _Keeper(process, tell)]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
