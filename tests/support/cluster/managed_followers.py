"""Followers of a managed cluster's bucket, each in a thread or process of its own.

Invariants:
1. A follower is started once. `check` fails if it ended by itself, and says why.
2. `state` returns key -> value as the follower holds it: what was rolled back is undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from millstream.upr import BucketReader, Consumer, SqliteSink
from millstream.upr.aio.client import Changes, ConnectionLost, RolledBack
from millstream.wire.frames import change_of
from support.cluster.managed_nodes import BUCKET


class History:
    """What was told of each partition, in order, so that a rollback can be undone."""

    def __init__(self) -> None:
        self._told: dict[int, list[tuple[int, str, Any]]] = {}
        self.rollbacks = 0
        self.repeated: list[str] = []
        """Changes that came again, or late, with no rollback between."""

    def take(self, partition_id: int, seqno: int, key: str, value: Any) -> None:
        """Take a change; None deletes."""
        told = self._told.get(partition_id)
        if told and seqno <= told[-1][0]:
            self.repeated.append(f"partition {partition_id}: {seqno} after {told[-1][0]}")
        self._told.setdefault(partition_id, []).append((seqno, key, value))

    def undo(self, partition_id: int, seqno: int) -> None:
        """Take a rollback."""
        self.rollbacks += 1
        told = self._told.get(partition_id, [])
        self._told[partition_id] = [one for one in told if one[0] <= seqno]

    def state(self) -> dict[str, Any]:
        """Return key -> value."""
        held = {key: value for told in self._told.values() for _, key, value in told}
        return {key: value for key, value in held.items() if value is not None}


class _Follower(ABC):
    """A coroutine that follows, in a thread with an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(30)

    def check(self) -> None:
        """Fail if it ended by itself."""
        assert self.error is None, f"{type(self).__name__} ended: {self.error!r}"

    def _run(self) -> None:
        self._task = self._loop.create_task(self._guarded())
        self._loop.call_soon(self._begun.set)
        self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _guarded(self) -> None:
        try:
            await self.follow()
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - `check` tells it
            self.error = error
        else:
            self.error = AssertionError("it came to an end")

    @abstractmethod
    async def follow(self) -> None:
        """Follow until cancelled."""


class Reading(_Follower):
    """`BucketReader` with a table in SQLite."""

    def __init__(self, address: str, path: Path) -> None:
        super().__init__()
        self._address, self._path = address, path

    async def follow(self) -> None:
        sink = SqliteSink(self._path)
        try:
            await BucketReader(self._address, bucket=BUCKET, sink=sink).run()
        finally:
            sink.close()

    def state(self) -> dict[str, Any]:
        """Return key -> value."""
        if not self._path.exists():
            return {}
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as database:
            try:
                rows = list(database.execute("SELECT key, value FROM documents"))
            except sqlite3.OperationalError:  # the table is not made yet
                return {}
        return {key.decode(): json.loads(value) for key, value in rows}


class Consuming(_Follower):
    """`Consumer`, whose caller keeps all that it was told."""

    def __init__(self, address: str, login: tuple[str, str] | None = None) -> None:
        super().__init__()
        self._address = address
        self._user, self._password = login or (None, None)
        self._history = History()
        self._lock = threading.Lock()
        self.losses = 0

    async def follow(self) -> None:
        async with Consumer(
            self._address, bucket=BUCKET, user=self._user, password=self._password
        ) as consumer:
            async for event in consumer:
                with self._lock:
                    self._take(event)

    def _take(self, event: object) -> None:
        match event:
            case Changes(partition_id, _, _, _, frames):
                for frame in frames:
                    change = change_of(frame)
                    value = None if change.is_deleted else json.loads(change.value)
                    self._history.take(partition_id, change.seqno, change.key.decode(), value)
            case RolledBack(partition_id, seqno):
                self._history.undo(partition_id, seqno)
            case ConnectionLost():
                self.losses += 1

    @property
    def rollbacks(self) -> int:
        """How often it had to forget something."""
        return self._history.rollbacks

    def check(self) -> None:
        """Fail if it ended by itself, or was told something again."""
        super().check()
        assert not self._history.repeated, self._history.repeated[:5]

    def state(self) -> dict[str, Any]:
        """Return key -> value."""
        with self._lock:
            return self._history.state()


class Tailing:
    """`millstream tail`, whose lines are folded."""

    def __init__(self, address: str, path: Path, login: tuple[str, str] | None = None) -> None:
        self._address, self._path = address, path
        self._login = (
            {"MILLSTREAM_USER": login[0], "MILLSTREAM_PASSWORD": login[1]} if login else {}
        )
        self._log = path.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        words = ["tail", BUCKET, "--from-start", "--connect", self._address]
        with self._path.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millstream", *words],
                stdout=out, stderr=log, env={**os.environ, **self._login},
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Fail if it ended by itself."""
        assert self._process is not None
        assert self._process.poll() is None, f"tail ended: {self._log.read_text()}"

    def state(self) -> dict[str, Any]:
        """Return key -> value."""
        text = self._path.read_bytes()
        history = History()
        for line in map(json.loads, text[: text.rfind(b"\n") + 1].splitlines()):
            if line.get("event") == "rollback":
                history.undo(line["partition"], line["seqno"])
            elif "event" not in line:
                history.take(line["partition"], line["seqno"], line["key"], line["value"])
        assert not history.repeated, history.repeated[:5]
        return history.state()
