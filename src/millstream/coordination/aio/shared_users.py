"""The users of a cluster: one element of the system group, which every node copies.

Invariants:
1. In a pool with other nodes, a user is changed in the element `USERS_PATH`, from its current
   value. Each node has the change in its own record `SHARED_S` after its member of the group has
   it. A node without a member asks others for it, `SHARED_FAR_S` later.
2. A change that was made on one node alone, as over HTTP, is copied to the element until it is
   there.
3. The node that began the pool adds users of its own that the element does not name. It changes
   none that is named. The other nodes decide alone about users that the element does not name.

Elsewhere: the value (`access.shared_record`), the record (`access.users`), the callers
(`aio.user_guard`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from millstream.access.records import User, changed_user, checked_name
from millstream.access.shared_record import (
    SharedRecord,
    decode_users,
    encode_users,
    with_user,
)
from millstream.access.users import UserStore, fresh_verifiers
from millstream.coordination.aio.client.group_client import Client
from millstream.coordination.core.backend import Backend
from millstream.coordination.core.pool.effects import FIRST_GROUP
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.runtime.tasks import Tasks, in_thread
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Body
from millstream.vsr.core.values import items
from millstream.vsr.core.versions import NEVER, Version, parse_version

__all__ = ["CHANGE_TRIES", "SHARED_FAR_S", "SHARED_S", "USERS_PATH", "SharedUsers"]

_LOG = logging.getLogger(__name__)
USERS_PATH: Final = b"/.system/users"
_ROOT: Final = b"/.system"
SHARED_S: Final = 2.0
"""How often a node looks at what is shared."""
CHANGE_TRIES: Final = 10
"""How often a change is made again because another one came between."""
SHARED_FAR_S: Final = 5.0
"""The same interval for a node that is not a member of the group: it asks other nodes."""
_GET: Final = (b"GET", USERS_PATH, b"CAS")
_IN_SYSTEM_GROUP: Final = (b"CREATENAMESPACE", _ROOT, b"GROUP", b"%d" % FIRST_GROUP)
_ONLY_OWNERS: Final = (b"ACL", b"SET", _ROOT, b"MODE", b"700", b"DEFAULT", b"MODE", b"700")


class SharedUsers:
    """Of one node; begun by `start`, ended by `close`.

    Args:
        users: of this node.
        backend: the groups of this node, which say what they have without asking others.
        connect: makes a client of the group, an administrator, for a change.
        is_shared: whether there are other nodes.
        has_secret: whether nodes log in to each other, as they have to where there are users.
        has_begun: whether this node began the pool; else it has joined that of others.
        on_user_changed: told in the loop whose connections are to be closed.
    """

    def __init__(
        self,
        users: UserStore,
        backend: Backend,
        connect: Callable[[], Client],
        is_shared: Callable[[], bool],
        on_user_changed: Callable[[str], None],
        *,
        has_secret: bool,
        has_begun: bool = False,
    ) -> None:
        self._users, self._backend, self._connect = users, backend, connect
        self._has_secret = has_secret
        self._loop = asyncio.get_running_loop()
        self._far_at = self._loop.time()
        self.is_shared, self._on_user_changed = is_shared, on_user_changed
        self._seen = NEVER
        self._unshared: dict[str, None] = {}
        self._names_all = has_begun and has_secret
        self._failure = ""
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin to look."""
        self._tasks.start(self._follow(), name="users of the cluster")

    async def close(self) -> None:
        """Look no more."""
        await self._tasks.stop()

    def changed_here(self, name: str) -> None:
        """This node's record was changed, not by what is shared: the others are to know."""
        if self._has_secret:
            self._unshared[name] = None

    async def change(
        self, name: str, password: str | None, rights: Sequence[str] | None,
        groups: Sequence[str] | None,
    ) -> None:  # fmt: skip
        """Make a user, or change what is said of one, for all nodes.

        Raises:
            MillstreamError: as `UserStore.change`, or the group cannot be asked.
        """
        name = checked_name(name)
        verifiers = None
        if password is not None:
            verifiers = await asyncio.to_thread(fresh_verifiers, password)

        def made(before: User | None) -> User:
            return changed_user(before, name, verifiers=verifiers, rights=rights, groups=groups)

        await self._change(name, made)

    async def delete(self, name: str) -> None:
        """Remove a user everywhere; errors as `change`, `user_not_found`."""

        def removed(before: User | None) -> None:
            if before is None:
                raise ConditionError(f"there is no user {name!r}", code="user_not_found")

        await self._change(name, removed)

    async def _change(self, name: str, edit: Callable[[User | None], User | None]) -> None:
        if not self._has_secret:
            raise ConditionError(
                "the nodes could no longer log in to each other: start all of them with the "
                "same cluster secret before you add users",
                code="no_cluster_secret",
            )
        async with self._connect() as client:
            for _ in range(CHANGE_TRIES):
                version, known = await _read(client)
                here = self._users.all()
                record = with_user(known, here, name, edit({**here, **known}.get(name)))
                if await _is_written(client, version, record):
                    self._unshared.pop(name, None)
                    return await self._adopt(*await _read(client))
        raise UnavailableError("too many change users; try again", code="busy")

    # ---- making it this node's own

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(SHARED_S)
            if not self.is_shared():
                continue
            try:
                await self._look()
                self._failure = ""
            except (MillstreamError, OSError) as error:
                if error.args != (self._failure,):
                    _LOG.warning("users of the cluster: %s", error)
                self._failure = str(error)

    async def _look(self) -> None:
        for name in list(self._unshared):
            user = self._users.get(name)
            await self._change(name, partial(_become, user))
        found = await self._known_here()
        if found is None:  # no member of the group: others are asked, not as often
            if self._loop.time() < self._far_at:
                return
            self._far_at = self._loop.time() + SHARED_FAR_S
            async with self._connect() as client:
                found = await _read(client)
        await self._adopt(*found)
        unnamed = self._users.all().keys() - found[1].keys() if self._names_all else ()
        for name in sorted(unnamed):
            await self._change(name, lambda before: before)  # named by now: it stays as it is

    async def _known_here(self) -> tuple[Version, SharedRecord] | None:
        """Return what this node's member of the group has. None if it has nothing, or not yet."""
        answer: asyncio.Future[Reply] = self._loop.create_future()

        def told(reply: Reply) -> None:
            if not answer.done():  # it is cancelled with the node
                answer.set_result(reply)

        self._backend.read(FIRST_GROUP, Body(argv=(*_GET, b"STALEREAD")), told, 0)
        reply = await answer
        if reply.code is not Code.OK:
            return None
        is_there = reply.value.startswith(b"*")  # else an error: there is no such element
        return _found([part[1:] for part in items(reply.value)] if is_there else None)

    async def _adopt(self, version: Version, record: SharedRecord) -> None:
        """Make it this node's own, unless it knows a later one: its member may be behind."""
        if version <= self._seen:
            return
        mine = {name: user for name, user in record.items() if name not in self._unshared}
        for name in await in_thread(self._users.adopt, mine):
            self._on_user_changed(name)
        self._seen = version


# ---- the element


def _become(user: User | None, _: User | None) -> User | None:
    return user


def _found(reply: object) -> tuple[Version, SharedRecord]:
    if isinstance(reply, list) and len(reply) == 2:
        return parse_version(reply[0]) or NEVER, decode_users(reply[1])
    return NEVER, {}


async def _read(client: Client) -> tuple[Version, SharedRecord]:
    try:
        return _found(await client.execute(*_GET, is_change=False))
    except MillstreamError as error:
        if error.code == "error_does_not_exists":
            return NEVER, {}
        raise


async def _is_written(client: Client, version: Version, record: SharedRecord) -> bool:
    """Write what is shared; return False if somebody else did meanwhile."""
    data = encode_users(record)
    if version != NEVER:
        try:
            await client.execute(
                b"PUT", USERS_PATH, data, b"CAS", version.text, is_change=True
            )  # fmt: skip
        except MillstreamError as error:
            if error.code != "cas_mismatch":
                raise
            return False
        return True
    # Who creates it owns it: nodes. Nobody else is to read verifiers.
    await client.execute(*_IN_SYSTEM_GROUP, is_change=True)
    await client.execute(*_ONLY_OWNERS, is_change=True)
    reply = await client.execute(b"CREATE", b"BINARY", USERS_PATH, data, is_change=True)
    return reply in (b"OK", "OK")
