"""What is held for a time, on a real node: who has it, who waits; nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.coordination import AsyncClient
from millstream.coordination.core.client.errors import NotHeldError, SessionLostError
from millstream.errors import ConditionError, OutcomeUnknownError, UnavailableError, UsageError
from support.coordination.coordinators import WAIT_S
from support.coordination.namespace_node import namespace_client, one_node

Pair = tuple[AsyncClient, AsyncClient]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with (
        one_node(tmp_path) as address,
        namespace_client(address) as one,
        namespace_client(address) as two,
    ):
        await one.create("/app/x")
        yield one, two


async def state(client: AsyncClient) -> tuple[int, int]:
    """Return how many hold the element, and how many wait for it."""
    sync = (await client.attributes("/app/x")).sync
    return (len(sync[b"holders"]), len(sync[b"waiting"])) if sync else (0, 0)


async def until_state(client: AsyncClient, wanted: tuple[int, int]) -> None:
    async with asyncio.timeout(WAIT_S):
        while await state(client) != wanted:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)  # nobody tells: looked at again


async def test_a_lock_goes_from_one_to_the_next(pair: Pair) -> None:
    one, two = pair
    async with one.lock("/app/x") as lock:
        assert lock.is_held
        assert lock.token is not None
        await one.put("/app/x", b"1", token=lock.token)
        assert not await two.lock("/app/x").try_acquire()
        waiting = asyncio.ensure_future(two.lock("/app/x").acquire(WAIT_S))
        await until_state(one, (1, 1))
        old = lock.token
    await waiting
    assert not lock.is_held
    with pytest.raises(ConditionError) as caught:
        await two.put("/app/x", b"2", token=old)
    assert caught.value.code == "fenced"


async def test_many_may_read(pair: Pair) -> None:
    one, two = pair
    async with one.lock("/app/x", shared=True), two.lock("/app/x", shared=True):
        assert await state(one) == (2, 0)
    await one.create("/app/y")
    async with one.lock("/app/x", "/app/y"):
        assert not await two.lock("/app/y").try_acquire()


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_cancelled_wait_holds_nothing(pair: Pair, is_cancelled: bool) -> None:
    one, two = pair
    lock = two.lock("/app/x")
    async with one.lock("/app/x"):
        waiting = asyncio.ensure_future(lock.acquire(None if is_cancelled else 0.05))
        if is_cancelled:
            await until_state(one, (1, 1))
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else UnavailableError):
            await waiting
        assert await state(one) == (1, 0)
    assert await state(one) == (0, 0)
    await lock.acquire()
    await lock.release()


async def test_a_grant_that_comes_as_it_is_cancelled_is_given_back(pair: Pair) -> None:
    one, _ = pair
    for steps in range(30):
        asking = asyncio.ensure_future(one.lock("/app/x").acquire())
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        try:
            await asking
        except asyncio.CancelledError:
            assert await state(one) == (0, 0)
        else:
            await one.execute("LOCK", "RELEASE", "/app/x", is_change=True)
            one.held.clear()


async def test_a_client_has_a_lock_once(pair: Pair) -> None:
    one, _ = pair
    async with one.lock("/app/x"):
        with pytest.raises(UsageError) as caught:
            await one.lock("/app/x").acquire()
        assert caught.value.code == "already_held"
    with pytest.raises(NotHeldError):
        await one.lock("/app/x").release()


async def test_losses_with_the_session_are_reported(pair: Pair) -> None:
    one, two = pair
    lock, caller = one.lock("/app/x"), one.raw._caller
    await lock.acquire()
    assert lock.is_held
    assert caller.client_id is not None
    words = (b"SESSION", b"RESUME", caller.client_id, caller._secret)
    await two.raw.execute(*words, is_change=False)
    await two.raw.execute(b"SESSION", b"CLOSE", is_change=False)
    with suppress(OutcomeUnknownError):
        await one.put("/app/x", b"1")
    assert not lock.is_held
    with pytest.raises(SessionLostError):
        await lock.release()


async def test_a_semaphore(pair: Pair) -> None:
    one, two = pair
    assert await one.semaphore("/app/x").init(1)
    assert not await one.semaphore("/app/x").init(1)
    async with one.semaphore("/app/x"):
        with pytest.raises(UnavailableError):
            await two.semaphore("/app/x").acquire(0.05)
    async with two.semaphore("/app/x") as unit:
        assert unit.is_held
    await one.semaphore("/app/x").destroy()


async def test_a_barrier(pair: Pair) -> None:
    one, two = pair
    await one.barrier("/app/x").init(2)
    for _ in range(2):
        came = await asyncio.gather(*(side.barrier("/app/x").wait(WAIT_S) for side in pair))
        assert sorted(came) == [False, True]
    with pytest.raises(UnavailableError):
        await two.barrier("/app/x").wait(0.05)
    waiting = asyncio.ensure_future(two.barrier("/app/x").wait())
    await until_state(one, (0, 1))
    await one.barrier("/app/x").destroy()
    with pytest.raises(ConditionError) as caught:
        await waiting
    assert caught.value.code == "destroyed"


async def test_an_election(pair: Pair) -> None:
    one, two = pair
    assert await two.election("/app/x").leader() is None
    async with one.election("/app/x", b"host-a") as leadership:
        leader = await two.election("/app/x").leader()
        assert leader == (one.client_id, leadership.token, b"host-a")
        next_one = two.election("/app/x", b"host-b")
        waiting = asyncio.ensure_future(next_one.campaign(WAIT_S))
        await until_state(two, (1, 1))
    await waiting
    await next_one.resign()
