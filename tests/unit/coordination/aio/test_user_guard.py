"""Users as clients of coordination see them: changed, listed, and told of."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from millstream.access.failed_logins import FAILED_LOGINS_MAX, PAUSE_S
from millstream.access.token_keys import TokenKeys
from millstream.access.users import UserStore
from millstream.coordination.aio import user_guard
from millstream.coordination.aio.user_guard import UserGuard
from millstream.coordination.core.backend import Principal, UserChange
from support.node.token_issuer import NOW_S, RULES, claims, jwks, token


@pytest.fixture
async def guard() -> AsyncIterator[UserGuard]:
    found = UserGuard(UserStore())
    yield found
    await found.close()


async def said(ask: Callable[[Callable[[object], None]], object]) -> object:
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    ask(answer.set_result)
    return await asyncio.wait_for(answer, 60)


async def put(guard: UserGuard, change: UserChange) -> bytes:
    reply = await said(lambda done: guard.set_user(change, done))
    assert isinstance(reply, bytes)
    return reply


async def test_users_are_made_changed_and_removed(guard: UserGuard) -> None:
    changed: list[str] = []
    guard.on_user_changed = changed.append
    assert (await put(guard, UserChange("bob", "pw"))).startswith(b"-CONFLICT")
    assert await put(guard, UserChange("ada", "pw", ("admin",))) == b"+OK"
    assert await put(guard, UserChange("bob", "pw", groups=("staff",))) == b"+OK"
    assert await said(lambda done: guard.check("bob", "pw", done)) == Principal(
        "bob", is_admin=False, groups=("staff",)
    )  # fmt: skip
    assert await put(guard, UserChange("bob", None, ("read:b",))) == b"+OK"
    listed = await said(guard.list_users)
    assert isinstance(listed, bytes)
    assert listed.count(b"staff") == listed.count(b"read:b") == 1
    assert await said(lambda done: guard.delete_user("bob", done)) == b"+OK"
    gone = await said(lambda done: guard.delete_user("bob", done))
    assert isinstance(gone, bytes)
    assert gone.startswith(b"-ERROR_DOES_NOT_EXISTS")
    while len(changed) < 4:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    assert changed == ["ada", "bob", "bob", "bob"]


@pytest.mark.parametrize(
    "change",
    [
        UserChange("@node", "s3cret", ("admin",)), UserChange("a:b", "s3cret", ("admin",)),
        UserChange("ada", "s3cret", ("root",)), UserChange("ada", None, ("admin",)),
        UserChange("ada", "s3cret" * 1000, ("admin",)),
        UserChange("ada", "s3cret\x01", ("admin",)),
        UserChange("ada", "s3cret", ("admin",), ("a b",)), UserChange("ada", "", ("admin",)),
    ],
)  # fmt: skip
async def test_errors_contain_no_password(guard: UserGuard, change: UserChange) -> None:
    reply = await put(guard, change)
    assert reply.startswith(b"-BADARG")
    assert b"s3cret" not in reply


async def test_the_right_password_gets_in_whatever_failed_before(guard: UserGuard) -> None:
    await put(guard, UserChange("ada", "pw", ("admin",)))
    for _ in range(FAILED_LOGINS_MAX):
        await said(lambda done: guard.check("ada", "no", done, "here"))
    begun_s = asyncio.get_running_loop().time()
    assert isinstance(await said(lambda done: guard.check("ada", "no", done, "here")), str)
    assert asyncio.get_running_loop().time() - begun_s >= PAUSE_S
    assert isinstance(await said(lambda done: guard.check("ada", "pw", done, "here")), Principal)


async def test_tokens_that_wait_for_keys_keep_no_password_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never() -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(user_guard, "CHECKS_WAITING_MAX", 3)
    tokens = TokenKeys(RULES, "", fetch=never)
    guard = UserGuard(UserStore(), tokens)
    await put(guard, UserChange("ada", "pw", ("admin",)))
    heard: list[Principal | str] = []
    unknown = token(kid="unknown")
    waiting = [guard.check_token(unknown, heard.append) for _ in range(4)]
    assert [give_up is not None for give_up in waiting] == [True, True, True, False]
    assert isinstance(await said(lambda done: guard.check("ada", "pw", done)), Principal)
    assert heard == []
    await guard.close()
    await tokens.close()


async def test_which_group_is_the_administrators_is_said_for_all_nodes() -> None:
    settings: dict[bytes, bytes] = {}

    async def keys() -> bytes:
        return jwks()

    tokens = TokenKeys(RULES, "", now_s=lambda: NOW_S, fetch=keys)
    guard = UserGuard(UserStore(), tokens, settings.get)
    data = token(claims(groups=["admins", "ops"]))
    await put(guard, UserChange("ada", "pw", ("admin",)))
    await put(guard, UserChange("bob", "pw", (), ("ops",)))

    async def are_admins() -> list[bool]:
        found = [
            await said(lambda done: guard.check_token(data, done)),
            await said(lambda done: guard.check("bob", "pw", done)),
            await said(lambda done: guard.check("ada", "pw", done)),
        ]
        return [one.is_admin for one in found if isinstance(one, Principal)]

    assert await are_admins() == [False, False, True]
    settings[b"GLOBAL.AUTH.ADMINS"] = b"ops"
    assert await are_admins() == [True, True, True]
    settings[b"GLOBAL.AUTH.ADMINS"] = b"admins"
    assert await are_admins() == [True, False, True]
    await guard.close()
    await tokens.close()


async def test_log_ins_may_be_wanted_where_there_are_no_users_yet() -> None:
    settings: dict[bytes, bytes] = {}
    guard = UserGuard(UserStore(), None, settings.get)
    assert not guard.asks
    settings[b"GLOBAL.AUTH.REQUIRED"] = b"false"
    assert not guard.asks
    settings[b"GLOBAL.AUTH.REQUIRED"] = b"true"
    assert guard.asks
    await guard.close()
