"""The fids of a connection, their open files, and their requests.

Invariants:
1. A fid is valid until it is clunked. There are never more than `FIDS_MAX`.
2. Open files keep at most `KEPT_BYTES_MAX` of contents together.

Elsewhere: their use (`operations`), the connection (`connection`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from millstream.coordination.core.ninep.packets import MSIZE_MAX
from millstream.coordination.core.ninep.refusals import NinepError

__all__ = [
    "ATTACHES_MAX",
    "FIDS_MAX",
    "KEPT_BYTES_MAX",
    "PASSWORD_BYTES_MAX",
    "Ask",
    "Desk",
    "Failed",
    "Fid",
    "Job",
    "Login",
    "Logout",
    "Opened",
    "Pause",
    "Work",
]

FIDS_MAX: Final = 16_384
"""Most fids of one connection."""
ATTACHES_MAX: Final = 16
"""Trees of one connection at a time; each has a session."""
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Contents and names that the open files of one connection keep."""
PASSWORD_BYTES_MAX: Final = 64 * 1024
"""Written to the file of a log-in; a token may be long."""


class Ask(NamedTuple):
    """A command for the groups; the answer is its reply or `Failed`."""

    attach: int
    words: tuple[bytes, ...]
    is_change: bool = False


class Login(NamedTuple):
    """A new session is wanted; there is no answer, what is asked in it tells more."""

    attach: int
    user: str | None
    password: str


class Logout(NamedTuple):
    """A session is over; there is no answer."""

    attach: int


class Pause(NamedTuple):
    """Nothing has to be done for this time."""

    ms: float


class Failed(NamedTuple):
    """A command was not done."""

    code: str
    text: str = ""


Work = Generator[list[Ask] | Login | Logout | Pause, list[Any], tuple[Any, ...]]
"""Does one request: gives what it needs, takes the answers, returns the values of the reply."""


class Opened:
    """An open file."""

    __slots__ = ("content", "is_writable", "names", "next_offset", "position", "token")

    def __init__(self, *, is_writable: bool) -> None:
        self.is_writable = is_writable
        self.content: bytes | None = None
        """What is read, or was written so far; None: not known."""
        self.names: list[bytes] = []
        """Names of a directory, as far as it was listed."""
        self.token: bytes | None = b""
        """How to list more of it; None: there is no more."""
        self.position = self.next_offset = 0
        """Position in a directory that is read as in 9P2000: the next name, and its offset in
        bytes."""


class Fid:
    """A file that the client has a number for."""

    __slots__ = ("attach", "file", "is_locked", "opened", "path", "root", "secret", "user")

    def __init__(self, attach: int, root: bytes, path: bytes, file: bytes | None = None) -> None:
        self.attach, self.root, self.path, self.file = attach, root, path, file
        self.opened: Opened | None = None
        self.is_locked = False
        """Whether it is locked by `Tlock` on this fid."""
        self.user, self.secret = "", b""
        """User and secret of a log-in. `attach` is 0 then."""


class Job:
    """A request that is being done."""

    __slots__ = ("flushes", "is_flushed", "is_pausing", "serial", "work")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.is_flushed = self.is_pausing = False
        self.flushes: list[int] = []
        """Tags of those that are answered once this is over."""
        self.work: Work | None = None


class Desk:
    """The state of a connection that requests work on.

    Args:
        asks_login: whether a log-in is needed.
        attaches: how many there were on this connection.
    """

    def __init__(self, asks_login: Callable[[], bool], attaches: int = 0) -> None:
        self.asks_login = asks_login
        self.attaches = attaches
        """How many there were."""
        self.msize = MSIZE_MAX
        self.is_linux = False
        """Whether 9P2000.L is spoken."""
        self.fids: dict[int, Fid] = {}
        self.uses: dict[int, int] = {}
        """How many fids each attach has."""
        self.kept_bytes = 0

    def fid(self, number: int) -> Fid:
        """Return the file of this number.

        Raises:
            NinepError: BADFID; it is one of a log-in or unknown.
        """
        found = self.fids.get(number)
        if found is None or not found.attach:
            raise NinepError("BADFID")
        return found

    def directory(self, number: int) -> Fid:
        """Return the directory of this number.

        Raises:
            NinepError: BADFID, NOT_A_DIRECTORY.
        """
        found = self.fid(number)
        if found.file is not None:
            raise NinepError("NOT_A_DIRECTORY")
        return found

    def new_attach(self) -> int:
        """Return the number of a new attach.

        Raises:
            NinepError: QUOTA.
        """
        if len(self.uses) >= ATTACHES_MAX:
            raise NinepError("QUOTA")
        self.attaches += 1
        return self.attaches

    def check_free(self, number: int) -> None:
        """Check that a fid may get this number.

        Raises:
            NinepError: BADFID, TOO_MANY_FIDS.
        """
        if number in self.fids or number == 0xFFFFFFFF:
            raise NinepError("BADFID")
        if len(self.fids) >= FIDS_MAX:
            raise NinepError("TOO_MANY_FIDS")

    def put(self, number: int, fid: Fid) -> None:
        """Assign a number to a file."""
        self.check_free(number)
        self.fids[number] = fid
        if fid.attach:
            self.uses[fid.attach] = self.uses.get(fid.attach, 0) + 1

    def drop(self, number: int) -> int:
        """Forget a number. Return the attach that is not used any more, or 0."""
        fid = self.fids.pop(number)
        self.kept_bytes -= len(fid.secret)
        if fid.opened is not None:
            self.kept_bytes -= _size(fid.opened)
        if not fid.attach:
            return 0
        self.uses[fid.attach] -= 1
        if self.uses[fid.attach]:
            return 0
        del self.uses[fid.attach]
        return fid.attach

    def keep(self, opened: Opened, content: bytes | None) -> None:
        """Keep this content for an open file.

        Raises:
            NinepError: NOMEM; the old content stays.
        """
        grows = len(content or b"") - len(opened.content or b"")
        self._grow(grows)
        opened.content = content

    def keep_names(self, opened: Opened, names: list[bytes]) -> None:
        """Keep more names for an open directory.

        Raises:
            NinepError: NOMEM.
        """
        self._grow(sum(map(len, names)))
        opened.names += names

    def forget_names(self, opened: Opened) -> None:
        """Make an open directory be listed from its beginning again."""
        self.kept_bytes -= sum(map(len, opened.names))
        opened.names, opened.token = [], b""
        opened.position = opened.next_offset = 0

    def add_secret(self, fid: Fid, offset: int, data: bytes) -> None:
        """Take what is written to the file of a log-in.

        Raises:
            NinepError: BADARG, TOOBIG.
        """
        if offset != len(fid.secret):
            raise NinepError("BADARG")
        if offset + len(data) > PASSWORD_BYTES_MAX:
            raise NinepError("TOOBIG")
        self._grow(len(data))
        fid.secret += data

    def _grow(self, grows: int) -> None:
        if grows > 0 and self.kept_bytes + grows > KEPT_BYTES_MAX:
            raise NinepError("NOMEM")
        self.kept_bytes += grows


def _size(opened: Opened) -> int:
    return len(opened.content or b"") + sum(map(len, opened.names))
