"""The users of a node: kept in users.json, checked by every listener the same way.

Invariants:
1. users.json is replaced atomically and durably, mode 0600; a change counts once it is written.
   Several processes of a node may change it: one at a time, each from what the file says then.
2. PLAIN and HTTP Basic are checked against the same verifier as SCRAM.
3. An unknown name costs as long as a known one, and shows a salt that stays the same.
4. Once there are users, one of them is an administrator.
5. The nodes' own user is in no file: it has a secret iff the node was started with one. It does
   not make a node without users ask for log-ins.
6. A remembered check is forgotten after `REMEMBERED_SECONDS`, and at once when the user changes.
7. Who fails too often to log in by a name, from one place, is refused slowly (`failed_logins`).
8. The file has a checksum. A node that ever had users never goes on without their file: what says
   so is durable before the first user counts, and a file that is gone or altered is damage.

Elsewhere: records (`access.records`), the exchange (`access.scram_server`). All calls may come
from any thread; changes are made one after the other.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

import msgspec

from millstream.access.failed_logins import FailedLogin, FailedLogins
from millstream.access.records import (
    ADMIN,
    ITERATIONS,
    Right,
    User,
    Verifier,
    changed_user,
    checked_name,
    checked_roles,
    make_verifiers,
    user_from_json,
    user_to_json,
)
from millstream.access.scram import HASHES, MECHANISMS, decoded, derive_keys, encoded, prepared
from millstream.access.scram_server import ScramServer
from millstream.errors import (
    AccessError,
    ConditionError,
    CorruptionError,
    MillstreamError,
    UsageError,
)
from millstream.runtime.files import alone_in, write_atomically

__all__ = [
    "NODE_USER",
    "REMEMBERED_MAX",
    "REMEMBERED_SECONDS",
    "USERS_MAX",
    "Expect",
    "Right",
    "ScramServer",
    "User",
    "UserStore",
    "UsersNote",
    "accept_users",
    "fresh_verifiers",
]

_LOG = logging.getLogger(__name__)
NODE_USER: Final = "@node"
"""Whom the nodes of a cluster log in as, with the secret they share; no user may be called so."""
REMEMBERED_MAX: Final = 1000
REMEMBERED_SECONDS: Final = 60.0
USERS_MAX: Final = 10_000
PASSWORD_BYTES_MAX: Final = 1024
Expect = Callable[[User | None], None]
"""Given the current user, None if it does not exist: raises if the change must not be made."""
_FORMAT: Final = 1
_CLEAR_TEXT_MECHANISM: Final = "SCRAM-SHA256"
"""Passwords that arrive in clear are checked against this verifier: the cheapest good one."""


class UsersNote(Protocol):
    """What says elsewhere, durably, whether a node ever had users."""

    def has_users(self) -> bool:
        """Return whether it ever had; raises MillstreamError or OSError."""

    def note_users(self) -> None:
        """Report that users changed; raises MillstreamError or OSError."""


class UserStore:
    """All users of one node.

    Args:
        path: users.json, read if it exists; None keeps users in memory only.
        node_secret: what `@node` logs in with, an administrator; empty: there is none.
        now: monotonic seconds.
        note: what says whether there must be a file; None: nothing does.

    Raises:
        CorruptionError: `bad_users_file`: it is gone, or not what was written.
    """

    mechanisms: Final = MECHANISMS

    def __init__(
        self,
        path: Path | None = None,
        *,
        node_secret: str = "",
        now: Callable[[], float] = time.monotonic,
        note: UsersNote | None = None,
    ) -> None:
        self._path = path
        self._note = note
        self._is_noted = note is not None and note.has_users()
        self._is_sealed = True
        """Whether the file as it was read has a checksum."""
        self._now = now
        self._users: dict[str, User] = {}
        self._decoy_key = secrets.token_bytes(32)
        self._memory_key = secrets.token_bytes(32)
        self._remembered: dict[bytes, tuple[User, float]] = {}
        self._lock = threading.Lock()
        self._change = threading.Lock()
        self._node: User | None = None
        self._stamp: object = None
        """The stamp of the file as it was read."""
        if node_secret:
            self._node = User(NODE_USER, (ADMIN,), fresh_verifiers(node_secret))
        self._failures = FailedLogins()
        self.failed_elsewhere: Callable[[], Iterable[FailedLogin]] = lambda: ()
        """Returns the failed log-ins that another process of the node has counted."""
        if path is not None and path.exists():
            self._load(path)
        elif path is not None and self._is_noted:
            raise CorruptionError(
                f"{path} is missing, and this node had users; restore it from a backup"
                f"{_way_out(path)}",
                code="bad_users_file",
            )
        self._told = self._users
        """The users whose changes were reported to callers of `refresh`, or made by them."""

    def protect(self) -> None:
        """See to it that the users of an older program are missed once they are gone. Blocks.

        While the disk is full it is left to the next start.
        """
        if self._path is None or self.is_empty or (self._is_noted and self._is_sealed):
            return
        try:
            with self._alone():
                if not self._is_sealed:
                    self._replace(self._users)
                self._say_so()
        except OSError as error:
            _LOG.warning("%s has no checksum yet: %s", self._path, error)

    def _say_so(self) -> None:
        if self._note is not None and not self._is_noted:
            self._note.note_users()
            self._is_noted = True

    @property
    def is_empty(self) -> bool:
        """Whether no user exists yet: then everything is allowed, on loopback only."""
        return not self._users

    @property
    def names(self) -> list[str]:
        """The users' names, sorted."""
        return sorted(self._users)

    def refresh(self) -> list[str]:
        """Read the file again if another process has replaced it; return whom others changed.

        Blocks.

        Raises:
            CorruptionError: `bad_users_file`; nothing changes.
            OSError: it cannot be read.
        """
        with self._change:
            self._read_again()
            before, self._told = self._told, self._users
        return _differing(before, self._told)

    def _read_again(self) -> None:
        path = self._path
        if path is not None and path.exists() and _stamp(path) != self._stamp:
            before = self._users
            self._load(path)
            self._forget(_differing(before, self._users))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Change users under the lock, starting from the changes of other processes."""
        with self._change, ExitStack() as stack:
            if self._path is not None:
                stack.enter_context(alone_in(self._path.parent))
            self._read_again()
            yield

    def get(self, name: str) -> User | None:
        """Return one user."""
        return self._node if name == NODE_USER else self._users.get(name)

    def put(self, name: str, password: str, roles: list[str] | tuple[str, ...] = (ADMIN,)) -> User:
        """Create or replace a user, durably; about 20 ms.

        Raises:
            UsageError: `bad_user_name`, `bad_password`, `bad_role`, `too_many_users`.
            AccessError: `bad_characters`.
            ConditionError: `last_admin`, nobody could administer the node any more.
        """
        name = checked_name(name)
        user = User(name, checked_roles(roles), fresh_verifiers(password))
        with self._alone():
            self._put(user)
        return user

    def change(
        self,
        name: str,
        *,
        password: str | None = None,
        rights: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        expect: Expect | None = None,
    ) -> User:
        """Create a user, or change what is said of one, durably; raises as `put` and `expect`."""
        name = checked_name(name)
        verifiers = fresh_verifiers(password) if password is not None else None
        with self._alone():
            if expect is not None:
                expect(self._users.get(name))
            user = changed_user(
                self._users.get(name), name, verifiers=verifiers, rights=rights, groups=groups
            )
            self._put(user)
        return user

    def _put(self, user: User) -> None:
        if user.name not in self._users and len(self._users) >= USERS_MAX:
            raise UsageError(f"a node has at most {USERS_MAX} users", code="too_many_users")
        self._replace({**self._users, user.name: user})

    def ensure_admin(self, name: str, password: str) -> None:
        """Make sure that an administrator of this name and password exists.

        Raises:
            UsageError, AccessError: as `put`.
        """
        user = self._users.get(checked_name(name))
        if user is None or not user.is_admin or self.check_password(name, password) is None:
            self.put(name, password, (ADMIN,))

    def adopt(self, record: Mapping[str, User | None]) -> list[str]:
        """Let users be as said, None: none; others stay. Durable; return who changed.

        Raises:
            ConditionError: `last_admin`; nothing changes.
        """
        with self._alone():
            before = self._users
            users = {**before, **{name: user for name, user in record.items() if user}}
            for name, user in record.items():
                if user is None:
                    users.pop(name, None)
            changed = _differing(before, users)
            if changed:
                self._replace(users)
        return changed

    def all(self) -> Mapping[str, User]:
        """Return the users, by name, as they are now."""
        return self._users

    def delete(self, name: str, expect: Expect | None = None) -> bool:
        """Remove a user, durably; False if there is none of this name.

        Raises:
            ConditionError: `last_admin`; and what `expect` raises.
        """
        with self._alone():
            if expect is not None:
                expect(self._users.get(name))
            if name not in self._users:
                return False
            others = {other: user for other, user in self._users.items() if other != name}
            self._replace(others)
        return True

    def check_password(self, name: str, password: str, source: str = "") -> User | None:
        """Return the user if the password is right; 3 ms, less if checked a moment ago.

        Args:
            name: as it was said.
            password: the same.
            source: where that came from, as an address; empty: failures are not counted.
        """
        return self.judge_password(name, password, source)[0]

    def judge_password(self, name: str, password: str, source: str) -> tuple[User | None, float]:
        """Do as `check_password`; return also for how many seconds a refusal is to wait."""
        user = self._checked(name, password)
        pause_s = self._tried(name, source, is_right=user is not None) if source else 0.0
        return user, pause_s

    async def log_in(self, name: str, password: str, source: str) -> User | None:
        """Do as `check_password` in a thread; who guesses waits for the answer."""
        user, pause_s = await asyncio.to_thread(self.judge_password, name, password, source)
        await asyncio.sleep(pause_s)
        return user

    def _tried(self, name: str, source: str, *, is_right: bool) -> float:
        with self._lock:
            return self._failures.ended(name, source, self._now(), is_right=is_right)

    def failed_logins(self, count: int) -> list[FailedLogin]:
        """Return the last log-ins that failed, at most `count`, the last one first.

        What two processes counted of one name and place is one.
        """
        with self._lock:
            here = self._failures.newest(count, self._now())
        found = {one[:2]: one for one in here}
        for one in self.failed_elsewhere():
            if (known := found.get(one[:2])) is not None:
                ago_s = min(known.ago_s, one.ago_s)
                one = one._replace(failures=known.failures + one.failures, ago_s=ago_s)
            found[one[:2]] = one
        return sorted(found.values(), key=attrgetter("ago_s"))[:count]

    def _checked(self, name: str, password: str) -> User | None:
        try:
            name = prepared(name)
        except AccessError:
            return None
        if len(password) > PASSWORD_BYTES_MAX:
            return None
        fingerprint = hmac.digest(
            self._memory_key, f"{name}\0{password}".encode(errors="surrogatepass"), "sha256"
        )
        user = self._recall(fingerprint)
        if user is not None:
            return user
        user, verifier = self._find(name, _CLEAR_TEXT_MECHANISM)
        hash_name = HASHES[_CLEAR_TEXT_MECHANISM]
        try:
            keys = derive_keys(hash_name, password, verifier.salt, verifier.iterations)
        except AccessError:
            return None
        if not hmac.compare_digest(keys.stored_key, verifier.stored_key) or user is None:
            return None
        self._remember(fingerprint, user)
        return user

    def scram_server(self, mechanism: str, source: str = "") -> ScramServer:
        """Begin a SCRAM log-in; `source` as of `check_password`.

        Whoever refuses it waits for `pause_s` of what is returned.

        Raises:
            AccessError: `unknown_mechanism`.
        """
        if mechanism not in HASHES:
            raise AccessError(
                f"mechanism {mechanism!r} is not offered; offered are {' '.join(MECHANISMS)}",
                code="unknown_mechanism",
            )

        def end(name: str, is_right: bool) -> float:
            return self._tried(name, source, is_right=is_right) if source else 0.0

        return ScramServer(mechanism, lambda name: self._find(name, mechanism), end)

    def _find(self, name: str, mechanism: str) -> tuple[User | None, Verifier]:
        user = self.get(name)
        if user is not None and mechanism in user.verifiers:
            return user, user.verifiers[mechanism]
        seed = f"{mechanism}\0{name}".encode(errors="surrogatepass")
        salt = hmac.digest(self._decoy_key, seed, "sha256")[:16]
        no_key = bytes(len(hmac.digest(b"", b"", HASHES[mechanism])))
        return None, Verifier(salt, ITERATIONS, no_key, no_key)

    def _recall(self, fingerprint: bytes) -> User | None:
        user, expires = self._remembered.get(fingerprint, (None, 0.0))
        if user is None or expires <= self._now() or self.get(user.name) is not user:
            return None
        return user

    def _remember(self, fingerprint: bytes, user: User) -> None:
        with self._lock:
            if len(self._remembered) >= REMEMBERED_MAX:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[fingerprint] = (user, self._now() + REMEMBERED_SECONDS)

    def _replace(self, users: dict[str, User]) -> None:
        if not any(user.is_admin for user in users.values()):
            raise ConditionError(
                "one user must be an administrator; create another one first", code="last_admin"
            )
        if self._path is not None:
            content = {
                "format": _FORMAT,
                "decoy_key": encoded(self._decoy_key),
                "users": [user_to_json(users[name]) for name in sorted(users)],
            }
            content["crc32"] = _checksum(content)
            encoder = msgspec.json.encode(content)
            write_atomically(self._path, msgspec.json.format(encoder, indent=2) + b"\n")
            self._say_so()
            self._is_sealed, self._stamp = True, _stamp(self._path)
        told = dict(self._told)
        changed = _differing(self._users, users)
        for name in changed:
            told.pop(name, None)
            if name in users:
                told[name] = users[name]
        self._users, self._told = users, told
        self._forget(changed)

    def _forget(self, changed: list[str]) -> None:
        with self._lock:
            self._remembered.clear()
            self._failures.forget(changed)

    def _load(self, path: Path) -> None:
        stamp = _stamp(path)
        try:
            content: Any = msgspec.json.decode(path.read_bytes())
            is_sealed = "crc32" in content
            if (is_sealed or self._is_noted) and content.get("crc32") != _checksum(content):
                raise CorruptionError(
                    f"{path} is damaged: its checksum does not match{_way_out(path)}",
                    code="bad_users_file",
                )
            if content["format"] > _FORMAT:
                raise CorruptionError(
                    f"{path} was written by a newer Millstream; upgrade this one",
                    code="newer_format",
                )
            self._decoy_key = decoded(content["decoy_key"])
            self._users = {
                user.name: user for user in (user_from_json(record) for record in content["users"])
            }
            self._is_sealed, self._stamp = is_sealed, stamp
        except CorruptionError:
            raise
        except (
            msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError, MillstreamError,
        ) as error:  # fmt: skip
            raise CorruptionError(
                f"{path} is not a users file; restore it from a backup{_way_out(path)}",
                code="bad_users_file",
            ) from error


def accept_users(path: Path) -> list[str]:
    """Take users.json as it is, with a new checksum; return the names, none if it cannot be read.

    Raises OSError: it cannot be written.
    """
    try:
        content: Any = msgspec.json.decode(path.read_bytes())
        names = sorted(user_from_json(record).name for record in content["users"])
        decoded(content["decoy_key"])
        if content["format"] != _FORMAT or not names:
            return []
        content.pop("crc32", None)
    except (
        FileNotFoundError, msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError,
        MillstreamError,
    ):  # fmt: skip
        return []
    content["crc32"] = _checksum(content)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    return names


def _checksum(content: Mapping[str, Any]) -> int:
    """Return the checksum of what the file says but for its own."""
    return crc32(msgspec.json.encode({k: v for k, v in content.items() if k != "crc32"}))


def _way_out(path: Path) -> str:
    return (
        "; to go on with the users that can be read there, without any if none can: "
        f"millstream check {shlex.quote(str(path.parent))} --accept {path.name}"
    )


def _differing(one: Mapping[str, User], other: Mapping[str, User]) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what tells a file from the one that replaces it."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def fresh_verifiers(password: str) -> dict[str, Verifier]:
    """Return new verifiers of a password; about 15 ms.

    Raises:
        UsageError: `bad_password`.
        AccessError: `bad_characters`.
    """
    if len(password.encode(errors="surrogatepass")) > PASSWORD_BYTES_MAX:
        raise UsageError(f"a password has at most {PASSWORD_BYTES_MAX} bytes", code="bad_password")
    return make_verifiers(password, {name: secrets.token_bytes(16) for name in HASHES})
