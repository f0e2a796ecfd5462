"""The program inside the sandbox: gives up every right, then runs JavaScript for its parent.

Started as `python -I -S -c <this source> <folder of the engine>`, so it imports the standard
library and the engine only. Requests and replies on standard input and output are
`kind (1 byte), length (4 bytes, big-endian), body`.

    request  L load      JSON {runner, lib, design, maps, reduces, seconds, bytes}
                                                                      reply  O ok | E error
             M map       count (4 bytes), flat (1 byte), JSON documents   reply  O rows | E error
             R reduce    number (4 bytes), JSON calls                     reply  O values | E error
             F functions JSON [kind, path, shared, items]             reply  O results | E error

An error body is JSON {"kind", "message", "at"}: kind is compile, time, memory, parse or output,
`at` the number of the document in work, or -1.

Invariants:
1. No code of a design document runs before limits, user and file table are as they stay.
2. The child ends when its parent does: by signal, or at the end of its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import sys
import time
from contextlib import suppress
from struct import Struct
from typing import Any

__all__ = ["main"]

_HEAD = Struct(">cI")
_MAP = Struct(">IB")
_VIEW = Struct(">I")
_NOBODY = 65534
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_ADDRESS_SPACE_EXTRA = 1 << 30
_ESCAPES = re.compile(r"\\\\|\\ud[89a-f][0-9a-f]{2}")
_REPLY_BYTES_MAX = 64 * 1024 * 1024


def main(parent_id: int) -> None:
    """Serve requests until the input ends."""
    import _quickjs  # type: ignore[import-not-found]  # the engine's compiled part alone

    _give_up_rights(parent_id)
    runner = _Runner(_quickjs)
    while True:
        kind, body = _read()
        _write(*runner.serve(kind, body))


def _give_up_rights(parent_id: int) -> None:
    time.tzset()
    if os.geteuid() == 0:
        # Not possible in every container; the limits below hold without it.
        with suppress(OSError):
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # After the change of user, which clears it.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_id:
        os._exit(0)
    for limit, value in (
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def _read() -> tuple[bytes, bytes]:
    kind, size = _HEAD.unpack(_read_exactly(_HEAD.size))
    return kind, _read_exactly(size)


def _read_exactly(size: int) -> bytes:
    body = sys.stdin.buffer.read(size)
    if len(body) < size:
        os._exit(0)
    return body


def _write(kind: bytes, body: bytes) -> None:
    sys.stdout.buffer.write(_HEAD.pack(kind, len(body)) + body)
    sys.stdout.buffer.flush()


class _Runner:
    """One JavaScript engine with the functions of one design document."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._context = engine.Context()
        self._calls: dict[str, Any] = {}
        self._work = {b"L": self._load, b"M": self._map, b"R": self._reduce, b"F": self._call}

    def serve(self, kind: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Do one request and return its reply."""
        try:
            text = self._work[kind](body)
        except self._engine.JSException as error:
            return self._failed(kind, str(error))
        except MemoryError:
            return _error("memory", "the memory limit was exceeded", -1)
        except (TypeError, ValueError) as error:
            # Text that is no UTF-8, or a result that is no text.
            return _error("parse", str(error), -1)
        if not text:
            return _error("parse", "not the expected number of documents", -1)
        if "\\ud" in text:
            text = _ESCAPES.sub(_well_formed, text)
        reply = text.encode()
        if len(reply) > _REPLY_BYTES_MAX:
            return _error("output", f"rows of more than {_REPLY_BYTES_MAX} bytes", -1)
        return b"O", reply

    def _failed(self, kind: bytes, message: str) -> tuple[bytes, bytes]:
        if message.startswith("InternalError: interrupted"):
            return _error("time", "the time limit was exceeded", self._position())
        # The engine throws null where no memory is left for an error.
        if message.startswith("InternalError: out of memory") or message.strip() == "null":
            return _error("memory", "the memory limit was exceeded", self._position())
        return _error("compile" if kind == b"L" else "parse", message, -1)

    def _position(self) -> int:
        try:
            return int(self._calls["position"]())
        except Exception:  # noqa: BLE001 - whatever a broken engine raises means "not known"
            return -1

    def _load(self, body: bytes) -> str:
        order = json.loads(body)
        self._context.set_memory_limit(order["bytes"])
        limit = order["bytes"] + _ADDRESS_SPACE_EXTRA
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if order["design"]:
            self._context.eval("globalThis.millstream_clock = true")
        self._context.eval(order["runner"])
        for name in ("load", "map", "reduce", "call", "position"):
            self._calls[name] = self._context.get(f"millstream_{name}")
            self._context.eval(f"delete globalThis.millstream_{name}")
        self._context.set_time_limit(order["seconds"])
        self._calls["load"]("memory", order["bytes"] // 2, "")
        if order["lib"]:
            self._calls["load"]("lib", 0, order["lib"])
        if order["design"]:
            self._calls["load"]("design", 0, order["design"])
        for kind, sources in (("map", order["maps"]), ("reduce", order["reduces"])):
            for number, source in sources:
                self._calls["load"](kind, number, source)
        return "true"

    def _map(self, body: bytes) -> str:
        count, is_flat = _MAP.unpack_from(body)
        result: str = self._calls["map"](body[_MAP.size :].decode(), count, bool(is_flat))
        return result

    def _reduce(self, body: bytes) -> str:
        (view,) = _VIEW.unpack_from(body)
        result: str = self._calls["reduce"](view, body[_VIEW.size :].decode())
        return result

    def _call(self, body: bytes) -> str:
        result: str = self._calls["call"](body.decode())
        return result


def _well_formed(escape: re.Match[str]) -> str:
    """Replace half a surrogate pair, which no UTF-8 text can hold; keep escaped backslashes."""
    text = escape.group()
    return text if text == "\\\\" else "\ufffd"


def _error(kind: str, message: str, at: int) -> tuple[bytes, bytes]:
    return b"E", json.dumps(
        {"kind": kind, "message": message.partition("\n")[0][:400], "at": at}
    ).encode()


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    main(int(sys.argv[2]))
