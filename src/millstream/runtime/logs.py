"""Logs: to stderr, one line each, for people or as JSON.

Invariants:
1. Nothing but the ready line and data asked for goes to stdout.
2. A line of the JSON form is one object: time, level, logger, message, and what the call gave as
   `extra`.

Elsewhere: what is logged.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, Final, TextIO

from msgspec import json

from millstream.errors import UsageError

__all__ = ["LABEL_VARIABLE", "LEVELS", "JsonFormatter", "LineFormatter", "set_up_logs"]

LABEL_VARIABLE: Final = "MILLSTREAM_LOG_LABEL"
"""Environment variable that names a process family in its log lines; unset: there is only one."""
LEVELS: Final = ("debug", "info", "warning", "error")
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


def set_up_logs(level: str, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Send all logs of this process to stderr (or `stream`).

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
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
