"""The directory of the sockets of a node's processes: `DIR/run`, open to the node's user only.

The path of a socket has at most `SOCKET_PATH_BYTES_MAX` bytes. If the path of the data directory
is too long, or its file system has no sockets, the sockets are in their own directory among other
temporary files, and the file `DIR/run/elsewhere` names it.

Invariants:
1. Only the node's user has access to the directory (0700): whoever can connect acts as the node.
2. Files that an earlier node left, there and in the other directory, are removed at the start.

Elsewhere: who listens there (`node.engine`, `views.aio.serving.index_server`).
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["SOCKET_PATH_BYTES_MAX", "RunDirectory"]

SOCKET_PATH_BYTES_MAX: Final = 107
"""Limit of the kernel, without the final zero byte."""
_LONGEST_NAME: Final = "index.sock"
_ELSEWHERE: Final = "elsewhere"
_PREFIX: Final = "millstream-run-"


class RunDirectory:
    """Created at the start of a node that has its data directory; `close` removes the sockets.

    Args:
        data: the data directory; only its one server creates this.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, data: Path) -> None:
        self._run = data.absolute() / "run"
        self._run.mkdir(mode=0o700, exist_ok=True)
        self._run.chmod(0o700)
        self._remove_leftovers()
        self.path = self._run
        if not _takes_sockets(self._run):
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            (self._run / _ELSEWHERE).write_bytes(os.fsencode(self.path))

    @property
    def kv(self) -> Path:
        """Return the path of the engine's socket: documents and change streams."""
        return self.path / "kv.sock"

    @property
    def index(self) -> Path:
        """Return the path of the index process's socket."""
        return self.path / _LONGEST_NAME

    def close(self) -> None:
        """Remove the sockets."""
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        note = self._run / _ELSEWHERE
        with suppress(FileNotFoundError):
            elsewhere = Path(os.fsdecode(note.read_bytes()))
            if elsewhere.name.startswith(_PREFIX) and _is_own_directory(elsewhere):
                _remove_sockets(elsewhere)
                with suppress(OSError):  # other files are in there
                    elsewhere.rmdir()
            note.unlink()
        _remove_sockets(self._run)


def _takes_sockets(directory: Path) -> bool:
    """Return whether paths there are short enough and the file system supports sockets."""
    path = directory / _LONGEST_NAME
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(str(path))
        except OSError:
            return False
    path.unlink()
    return True


def _is_own_directory(path: Path) -> bool:
    with suppress(OSError):
        found = path.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def _remove_sockets(directory: Path) -> None:
    for path in directory.glob("*.sock"):
        path.unlink(missing_ok=True)
