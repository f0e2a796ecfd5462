"""Checks logins of coordination clients, and changes users for administrators.

Invariants:
1. Passwords are checked and hashed in separate threads. At most `CHECKS_WAITING_MAX` checks wait,
   and none for a client that is gone.
2. A user who was changed or removed while a password was checked is not logged in.
3. A change of a user is reported (`on_user_changed`) `DROP_S` later: after the reply.

Elsewhere: the record (`access.users`), tokens (`aio.provider`), connections (`aio.resp_server`),
commands (`core.resp.common_commands`, `core.resp.user_commands`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from millstream.access.users import User, UserStore
from millstream.coordination.aio.provider import Provider
from millstream.coordination.core.backend import Checked, Principal, UserChange, ValueDone
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    UnavailableError,
    UsageError,
)
from millstream.runtime.tasks import Tasks
from millstream.vsr.core.values import OK, array, bulk, error, mapping

if TYPE_CHECKING:
    from millstream.access.token_keys import TokenKeys
    from millstream.coordination.aio.shared_users import SharedUsers

__all__ = ["CHECKS_MAX", "CHECKS_WAITING_MAX", "DROP_S", "UserGuard"]

CHECKS_MAX: Final = 2
"""Passwords that are checked at the same time; others wait, one for each connection."""
CHECKS_WAITING_MAX: Final = 200
"""Checks under way or waiting, of passwords, and as many of tokens, which may wait for keys; who
asks for one more is told that the node is busy."""
DROP_S: Final = 0.1
"""Time from a change of a user to the end of that user's connections. The reply leaves before."""
_Result = TypeVar("_Result")
_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (UsageError, "BADARG"), (AccessError, "BADARG"), (ConditionError, "CONFLICT"),
)  # fmt: skip


class UserGuard:
    """The users of the node, checked off the loop: that is slow on purpose; and tokens, if any.

    Args:
        users: the record.
        tokens: judges tokens, in place of the provider that is set for all groups.
        setting: what is set for all groups under a key, or None.
    """

    def __init__(
        self,
        users: UserStore,
        tokens: TokenKeys | None = None,
        setting: Callable[[bytes], bytes | None] = lambda key: None,
    ) -> None:
        self._users, self._setting = users, setting
        self._provider = Provider(tokens, setting)
        self._tasks, self._token_tasks = Tasks(), Tasks()
        self._pausing = 0
        """Refusals that wait: one of each connection at most, and they keep nobody else out."""
        self._threads = ThreadPoolExecutor(CHECKS_MAX, "coordination passwords")
        self.on_user_changed: Callable[[str], None] = lambda name: None
        """Told in the loop whose connections are to be closed."""
        self.shared: SharedUsers | None = None
        """Asked in place of the node's record, where nodes share one."""

    @property
    def asks(self) -> bool:
        """Whether there are users, or tokens are taken, or it is said so for all nodes."""
        return (
            not self._users.is_empty
            or self._provider.is_there
            or self._setting(b"GLOBAL.AUTH.REQUIRED") == b"true"
        )

    def _is_admin(self, groups: Sequence[str]) -> bool:
        """Whether one of these groups was made the administrators', which by itself none is."""
        wanted = self._setting(b"GLOBAL.AUTH.ADMINS")
        return wanted is not None and wanted.decode() in groups

    def check(
        self, name: str, password: str, done: Checked, source: str = ""
    ) -> Callable[[], object] | None:
        """Find out whether this is a user with this password; return what gives that up."""
        return self._start(self._check(name, password, done, source), "password check")

    def check_token(self, token: bytes, done: Checked) -> Callable[[], object] | None:
        """Find out whom a token is about, or why it is not believed."""
        return self._start(self._check_token(token, done), "token check", self._token_tasks)

    def _start(
        self, work: Coroutine[Any, Any, None], name: str, tasks: Tasks | None = None
    ) -> Callable[[], object] | None:
        tasks = tasks if tasks is not None else self._tasks
        pausing = self._pausing if tasks is self._tasks else 0
        if len(tasks) - pausing >= CHECKS_WAITING_MAX:
            work.close()
            return None
        return tasks.start(work, name=f"coordination {name}").cancel

    async def _check(self, name: str, password: str, done: Checked, source: str) -> None:
        user, pause_s = await self._run(self._users.judge_password, name, password, source)
        self._pausing += 1
        try:
            await asyncio.sleep(pause_s)
        finally:
            self._pausing -= 1
        if user is None or self._users.get(user.name) != user:  # perhaps changed meanwhile
            return done("there is no such user with this password")
        is_admin = user.is_admin or self._is_admin(user.groups)
        return done(Principal(user.name, is_admin, user.groups))

    async def _check_token(self, token: bytes, done: Checked) -> None:
        if (tokens := self._provider.tokens) is None:
            return done("this node takes names and passwords, no tokens")
        try:
            bearer = await tokens.check(token)
        except AccessError as error:
            return done(str(error))
        is_admin = self._is_admin(bearer.groups)
        return done(Principal(bearer.name, is_admin, bearer.groups, bearer.until_s))

    async def _run(self, call: Callable[..., _Result], *words: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *words)

    # ---- users

    def set_user(self, change: UserChange, done: ValueDone) -> None:
        """Make a user, or change one; durable when it is said to be done."""
        shared = self.shared
        if shared is not None and shared.is_shared():
            self._change(shared.change(*change), done)
        else:
            self._change(self._change_here(change), done)

    def delete_user(self, name: str, done: ValueDone) -> None:
        """Remove a user, durably."""
        shared = self.shared
        if shared is not None and shared.is_shared():
            self._change(shared.delete(name), done)
        else:
            self._change(self._delete_here(name), done)

    async def _change_here(self, change: UserChange) -> None:
        name, password, rights, groups = change

        def work() -> User:
            return self._users.change(name, password=password, rights=rights, groups=groups)

        self._changed_here((await self._run(work)).name)

    async def _delete_here(self, name: str) -> None:
        if not await self._run(self._users.delete, name):
            raise ConditionError(f"there is no user {name!r}", code="user_not_found")
        self._changed_here(name)

    def _changed_here(self, name: str) -> None:
        if self.shared is not None:
            self.shared.changed_here(name)  # for nodes that join later
        self.drop_soon(name)

    def list_users(self, done: ValueDone) -> None:
        """List the users, with roles and groups."""
        found = (self._users.get(name) for name in self._users.names)
        done(array([_user_row(user) for user in found if user is not None]))

    def _change(self, work: Coroutine[Any, Any, None], done: ValueDone) -> None:
        async def change() -> None:
            try:
                await work
            except (MillstreamError, OSError) as failure:
                return done(_refusal(failure))
            return done(OK)

        if self._start(change(), "change of a user") is None:
            work.close()
            done(error("BUSY", "too many logins at once; try again"))

    def drop_soon(self, name: str) -> None:
        """End the user's connections, once the reply to the change is on its way."""
        asyncio.get_running_loop().call_later(DROP_S, self.on_user_changed, name)

    async def close(self) -> None:
        """Stop checking."""
        await self._tasks.stop()
        await self._token_tasks.stop()
        await self._provider.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _refusal(failure: Exception) -> bytes:
    if isinstance(failure, ConditionError) and failure.code == "user_not_found":
        return error("ERROR_DOES_NOT_EXISTS", str(failure))
    if isinstance(failure, UnavailableError):
        return error("NOQUORUM", str(failure))
    code = next((code for kind, code in _CODES if isinstance(failure, kind)), "ERR")
    return error(code, str(failure))


def _user_row(user: User) -> bytes:
    rights = [role for role in user.roles if not role.startswith("group:")]
    return mapping((
        (b"name", bulk(user.name.encode())),
        (b"roles", array([bulk(role.encode()) for role in rights])),
        (b"groups", array([bulk(group.encode()) for group in user.groups])),
    ))  # fmt: skip
