"""What a client's connection asks of the node that it is connected to.

Invariants:
1. Each `done` is called exactly once, in the loop, perhaps before the call returns; a connection
   that is gone by then ignores it.
2. Nothing here waits or raises: what cannot be done is told by the reply.

Elsewhere: who asks (`resp.session`), who answers (the shell with its groups, and the pool).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.subscriptions import SubscribeRequest
from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.state.run import Asker
from millstream.vsr.core.effects import Reply
from millstream.vsr.core.entries import NOBODY, Body, Kind
from millstream.vsr.core.values import error

__all__ = [
    "NO_LOGIN", "Backend", "Checked", "Done", "Guard", "Principal", "UserChange", "ValueDone",
    "Where",
]  # fmt: skip

NO_ASKER: Final = Asker()
NO_LOGIN: Final = error("NOAUTH", "log in with AUTH name password, or AUTH TOKEN token")
"""What is said to those who have to log in first."""
Done = Callable[[Reply], None]
"""Takes the reply of a group; its ticket means nothing here."""
ValueDone = Callable[[bytes], None]
"""Takes a reply that is a value already (`values`)."""


class Where(NamedTuple):
    """Where a group's primary is, as far as this node knows; `address` is empty if it does not.

    The address is the one for clients, `host:port`.
    """

    epoch: int = 0
    view: int = 0
    address: str = ""


class Backend(Protocol):
    """The groups of a node and its pool. A group is called by its number, `gid`."""

    def group_of(self, key: bytes) -> int:
        """Return the group that has this key; of registers, and for b"", the system group."""

    def request(
        self, gid: int, body: Body, done: Done, kind: Kind = Kind.REQUEST,
        instance: bytes = NOBODY, session: int = 0, csn: int = 0, *, is_counted: bool = False,
    ) -> None:  # fmt: skip
        """Order and execute a change (`effects.Request`)."""

    def read(
        self, gid: int, body: Body, done: Done, seen: int | None = None, session: int = 0
    ) -> None:
        """Read (`effects.Read`)."""

    def resume(self, gid: int, instance: bytes, session: int, secret: bytes, done: Done) -> None:
        """Ask what is known of a session (`effects.Resume`); it is a sign of life, too."""

    def touch(self, gid: int, session: int) -> None:
        """A sign of life of a session's client (`effects.Touch`)."""

    def list_sessions(self, gid: int, after: int, done: Done) -> None:
        """List sessions of higher numbers, as the primary knows them; the value is an array."""

    def subscribe(
        self,
        gid: int,
        subscriber: Subscriber,
        request: SubscribeRequest,
        confirm: Callable[[Path], None],
    ) -> Reply:
        """Begin subscriptions on this node's member (`namespace.commands.subscriptions`).

        OK without a value if they have begun, or with an error; or why this member cannot.
        """

    def told_lsn(self, gid: int) -> int | None:
        """Return up to where the group has committed, as its primary said a moment ago.

        None: this node has no member of it, or does not hear a primary.
        """

    def tick(self, now_ms: float) -> None:
        """Tell those who have heard nothing for long how far their groups are."""

    def where(self, gid: int) -> Where:
        """Return where the group's primary is. An unknown group has no address."""

    def vds(self, argv: tuple[bytes, ...], asker: Asker = NO_ASKER) -> bytes:
        """Return the map of groups, or of the one named; `argv` begins with VDS.

        Namespaces that the asker may not read are left out.
        """

    def when_known(self, path: bytes, then: Callable[[], None]) -> None:
        """Call back, once, when the namespace of a path is known, or was waited for: in the loop.

        Perhaps before the call returns.
        """

    def admin(self, argv: tuple[bytes, ...], done: ValueDone) -> None:
        """Carry out an administrator's command; `argv` begins with ADMIN."""

    def figures(self) -> dict[str, dict[str, str]]:
        """Return what INFO shows: sections of names and figures."""

    def settings(self) -> dict[bytes, bytes]:
        """Return what the node was started with: keys of `NODE` (`namespace.state.keys`)."""


class Principal(NamedTuple):
    """Who is logged in.

    `groups`: as access lists name them; administrators are told by `is_admin` alone. `until_s`: in
    seconds of the epoch; from then on it is nobody any more.
    """

    name: str
    is_admin: bool
    groups: tuple[str, ...] = ()
    until_s: float = float("inf")


Checked = Callable[[Principal | str], None]
"""Takes who logged in, or why nobody did."""


class UserChange(NamedTuple):
    """What is said of a user; None stays as it is."""

    name: str
    password: str | None = None
    roles: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None


class Guard(Protocol):
    """The users of the node."""

    @property
    def asks(self) -> bool:
        """Whether a connection has to log in: there are users, or tokens are taken."""

    def check(
        self, name: str, password: str, done: Checked, source: str = ""
    ) -> Callable[[], object] | None:
        """Find out whether this is a user with this password, or why not; `source`: an address.

        Returns what gives that up; None: too many are being checked, and `done` is not called.
        """

    def check_token(self, token: bytes, done: Checked) -> Callable[[], object] | None:
        """Find out whom a token is about, or why it is not believed; otherwise as `check`."""

    def set_user(self, change: UserChange, done: ValueDone) -> None:
        """Make a user, or change one."""

    def delete_user(self, name: str, done: ValueDone) -> None:
        """Remove a user."""

    def list_users(self, done: ValueDone) -> None:
        """List the users, with roles and groups."""
