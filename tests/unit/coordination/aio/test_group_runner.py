"""A group as a process runs it: answers once each, effects in order, errors that end it."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from millstream.coordination.aio.group_runner import STEP_EVENTS_MAX, GroupRunner
from millstream.coordination.core.group_state import GroupState
from millstream.errors import CorruptionError, UnavailableError
from millstream.vsr.aio import journal as journal_module
from millstream.vsr.core.disk.durable_steps import SUPERBLOCK, SUPERBLOCK_BYTES
from millstream.vsr.core.disk.journal import format_group
from millstream.vsr.core.effects import Code, Effect, Event, Reply, Request, Timer
from millstream.vsr.core.entries import Body
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.messages import Envelope
from support.coordination.coordinators import GROUP, ask, until
from support.kv.simulated_disk import SYNC, WRITE, SimulatedDisk

NODE, OTHER, THIRD = b"a" * 16, b"b" * 16, b"c" * 16


class Process:
    """A process with one group on a disk that can fail."""

    def __init__(self, *others: bytes) -> None:
        self.disk = SimulatedDisk(random.Random(1), count(1))
        format_group(self.disk, founded(GROUP, NODE, (NODE, *others)))
        self.sent: list[tuple[bytes, Envelope]] = []
        self.fatal: list[BaseException] = []
        self.runner: GroupRunner

    async def open(self) -> GroupRunner:
        self.runner = await GroupRunner.open(
            self.disk, GroupState(), send=lambda *message: self.sent.append(message),
            on_fatal=self.fatal.append,
        )  # fmt: skip
        return self.runner

    def fail(self, kind: str, number: int) -> None:
        def before(effect: str, name: str) -> None:
            if effect == kind:
                raise OSError(number, "failed")

        self.disk.before = before

    def heal(self) -> None:
        self.disk.before = lambda kind, name: None


@asynccontextmanager
async def opened(*others: bytes) -> AsyncIterator[Process]:
    process = Process(*others)
    await process.open()
    try:
        yield process
    finally:
        process.heal()
        await process.runner.close()


async def test_a_group_of_one_keeps_what_it_acknowledged() -> None:
    async with opened() as process:
        runner = process.runner
        await until(lambda: runner.replica.leading)
        assert (await ask(runner, b"SET", b"key", b"value")).value == b"+OK"
        assert (await ask(runner, b"GET", b"key")).value == b"=value"
        await runner.close()
        process.disk.lose_power()
        runner = await process.open()
        await until(lambda: runner.replica.leading)
        assert (await ask(runner, b"GET", b"key")).value == b"=value"
        assert process.sent == []
        assert not process.fatal


async def test_many_requests_are_answered_once_each_in_order() -> None:
    async with opened() as process:
        runner = process.runner
        await until(lambda: runner.replica.leading)
        replies: list[Reply] = []
        for number in range(2000):
            runner.request(Body(argv=(b"SET", b"k", b"%d" % number)), replies.append)
        await until(lambda: runner.waiting == 0)
        assert [reply.code for reply in replies] == [Code.OK] * 2000
        assert [reply.lsn for reply in replies] == list(range(2, 2002))
        assert (await ask(runner, b"GET", b"k")).value == b"=1999"


async def test_requests_of_one_turn_are_one_step_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as process:
        runner = process.runner
        await until(lambda: runner.replica.leading and not runner._is_due)
        steps: list[int] = []
        step = runner.replica.step

        def counted(now_ms: float, wall_ms: int, *events: Event) -> list[Effect]:
            steps.append(sum(isinstance(event, Request) for event in events))
            return step(now_ms, wall_ms, *events)

        monkeypatch.setattr(runner.replica, "step", counted)
        for _ in range(STEP_EVENTS_MAX + 10):
            runner.request(Body(argv=(b"SET", b"k", b"v")), lambda reply: None)
        await until(lambda: runner.waiting == 0)
        assert [number for number in steps if number] == [STEP_EVENTS_MAX, 10]


async def test_a_long_step_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as process:
        runner, order = process.runner, list[str]()
        await until(lambda: runner.replica.leading and not runner._is_due)
        seconds = count()
        monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
        monkeypatch.setattr(runner.replica, "step", lambda *_: order.append("step") or [])
        for _ in range(3):
            runner.take(Timer())
        asyncio.get_running_loop().call_soon(order.append, "others")
        for _ in range(9):
            await asyncio.sleep(0)
        assert order == ["step", "others", "step", "step"]


async def test_a_request_made_while_an_answer_is_taken_waits_its_turn() -> None:
    async with opened() as process:
        runner, lsns = process.runner, list[int]()
        await until(lambda: runner.replica.leading)

        def again(reply: Reply) -> None:
            lsns.append(reply.lsn)
            if len(lsns) < 5:
                runner.request(Body(argv=(b"SET", b"k", b"v")), again)

        again(Reply(0, Code.OK))
        await until(lambda: len(lsns) == 5)
        assert lsns == [0, 2, 3, 4, 5]


async def test_a_member_that_is_not_primary_says_so_and_asks_the_others() -> None:
    async with opened(OTHER, THIRD) as process:
        reply = await ask(process.runner, b"SET", b"k", b"v")
        assert reply.code is Code.NOTPRIMARY
        await until(lambda: {receiver for receiver, _ in process.sent} == {OTHER, THIRD})


async def test_a_failed_sync_ends_the_group_and_answers_nobody() -> None:
    async with opened() as process:
        runner, replies = process.runner, list[Reply]()
        await until(lambda: runner.replica.leading)
        process.fail(SYNC, errno.EIO)
        runner.request(Body(argv=(b"SET", b"k", b"v")), replies.append)
        await until(lambda: process.fatal)
        [error] = process.fatal
        assert isinstance(error, UnavailableError)
        assert error.code == "disk_failed"
        assert replies == []
        runner.request(Body(argv=(b"SET", b"k", b"v")), replies.append)
        await asyncio.sleep(0)
        assert replies == []
        await runner.close()
        assert [reply.code for reply in replies] == [Code.UNKNOWN] * 2


async def test_a_full_disk_makes_requests_wait_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "DISK_FULL_RETRY_S", 0.01)
    async with opened() as process:
        runner, replies = process.runner, list[Reply]()
        await until(lambda: runner.replica.leading)
        assert (await ask(runner, b"SET", b"k", b"before")).code is Code.OK
        process.fail(WRITE, errno.ENOSPC)
        runner.request(Body(argv=(b"SET", b"k", b"after")), replies.append)
        await until(lambda: runner.is_disk_full)
        assert (await ask(runner, b"GET", b"k")).value == b"=before"
        process.heal()
        await until(lambda: replies)
        assert replies[0].code is Code.OK
        assert not runner.is_disk_full
        assert not process.fatal


async def test_a_fault_of_the_replica_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as process:
        runner = process.runner
        await until(lambda: runner.replica.leading)
        fault = AssertionError("two logs in one view")

        def step(*_: object) -> None:
            raise fault

        monkeypatch.setattr(runner.replica, "step", step)
        runner.request(Body(argv=(b"SET", b"k", b"v")), lambda reply: None)
        await until(lambda: bool(process.fatal))
        assert process.fatal == [fault]


async def test_requests_that_wait_at_the_end_have_an_unknown_outcome() -> None:
    async with opened() as process:
        runner, replies = process.runner, list[Reply]()
        await until(lambda: runner.replica.leading)
        runner.request(Body(argv=(b"SET", b"k", b"v")), replies.append)
        await runner.close()
        assert [reply.code for reply in replies] == [Code.UNKNOWN]


async def test_lost_promises_are_not_made_up() -> None:
    process = Process()
    file = process.disk.open(SUPERBLOCK)
    file.write_at(0, bytes(SUPERBLOCK_BYTES))
    file.sync()
    with pytest.raises(CorruptionError, match="ADMIN GROUP REPLACE") as caught:
        await process.open()
    assert caught.value.code == "promises_lost"
