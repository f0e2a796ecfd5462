"""A node inside a program: `Node` in the caller's event loop, `EmbeddedNode` for blocking code.

Invariants:
1. Leaving the `with` block stops the node cleanly, also after an exception.
2. By default both listen on loopback with free ports, and create the buckets named.

Elsewhere: the node as separate processes (`node.processes.supervisor`).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Self, TypeVar

from millstream.errors import UnavailableError
from millstream.gateway.core.api.node import BucketStatus
from millstream.kv.core.bucket import Bucket
from millstream.model.limits import PARTITIONS_DEFAULT
from millstream.node.engine import Engine
from millstream.node.settings import FLUSH_INTERVAL_MS, Settings, load_settings
from millstream.runtime.loop_thread import LoopThread
from millstream.runtime.process import new_event_loop

__all__ = ["EmbeddedNode", "Node"]

FREE_PORT: Final = "127.0.0.1:0"
_Result = TypeVar("_Result")


def _settings(
    data_dir: str | os.PathLike[str],
    *,
    kv: str | None = FREE_PORT,
    http: str | None = FREE_PORT,
    memcached: str | None = None,
    buckets: Iterable[str] = (),
    users: Iterable[str] = (),
    python_modules: Iterable[str] = (),
    flush_interval_ms: int = FLUSH_INTERVAL_MS,
    memory_quota_bytes: int | None = None,
) -> Settings:
    given: dict[str, object] = {"data": os.fspath(data_dir), "flush-interval": flush_interval_ms}
    for name, address in (("kv", kv), ("http", http), ("memcached", memcached)):
        given[name] = False if address is None else address
    given |= {"no-coord": True, "no-ninep": True, "no-peer": True}
    if buckets := list(buckets):
        given["bucket"] = buckets
    if python_modules := list(python_modules):
        given["python-module"] = python_modules
    if memory_quota_bytes is not None:
        given["memory-quota"] = memory_quota_bytes
    if users := list(users):
        given["user"] = users
    return load_settings(given, os.environ if users else {})


class Node:
    """A node in the running event loop: `async with Node(directory) as node`.

    Args:
        data_dir: the data directory, created if missing.
        options: `kv`, `http`, `memcached`: "HOST:PORT", None for closed; `buckets`: "NAME" or
            "NAME:PARTITIONS" each; `users`: "NAME:PASSWORD" each, administrators;
            `python_modules`: names of modules that register functions for views;
            `flush_interval_ms`: longest wait of a write for its group commit;
            `memory_quota_bytes`: of each bucket that has no quota of its own.

    Raises:
        UsageError, UnavailableError, CorruptionError: as `node.engine.Engine.start`.
    """

    def __init__(self, data_dir: str | os.PathLike[str], **options: Any) -> None:
        self._settings = _settings(data_dir, **options)
        self._engine: Engine | None = None
        self.failure: Exception | None = None
        """Set when a bucket's disk failed; the node must be stopped and started again."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the node; on return every listener answers."""
        self._engine = await Engine.start(self._settings, on_fatal=self._failed)

    async def stop(self) -> None:
        """Write all data and stop cleanly; does nothing if not running."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.stop()

    @property
    def engine(self) -> Engine:
        """Return the running engine.

        Raises:
            UnavailableError: `not_running`.
        """
        if self._engine is None:
            raise UnavailableError("the node does not run; start it first", code="not_running")
        return self._engine

    @property
    def kv(self) -> str | None:
        """HOST:PORT of the kv listener."""
        return self.engine.addresses()["kv"]

    @property
    def http(self) -> str | None:
        """HOST:PORT of the HTTP listener."""
        return self.engine.addresses()["http"]

    @property
    def memcached(self) -> str | None:
        """HOST:PORT of the memcached listener."""
        return self.engine.addresses()["memcached"]

    def bucket(self, name: str) -> Bucket:
        """Return a bucket for use in this process and loop.

        Raises:
            KeyError: there is none of this name.
        """
        return self.engine.served[name]

    async def create_bucket(
        self,
        name: str,
        partitions: int = PARTITIONS_DEFAULT,
        memory_quota_bytes: int | None = None,
    ) -> BucketStatus:
        """Create a bucket; raises as `databases.buckets.Buckets.create`."""
        return await self.engine.create_bucket(name, partitions, memory_quota_bytes)

    async def delete_bucket(self, name: str) -> None:
        """Delete a bucket; raises as `databases.buckets.Buckets.delete`."""
        await self.engine.delete_bucket(name)

    def _failed(self, error: Exception) -> None:
        self.failure = error


class EmbeddedNode:
    """A node in its own thread, for scripts and notebooks: `with EmbeddedNode(dir) as node`.

    Takes the arguments of `Node`. A node that was not stopped is stopped when the program ends.
    """

    def __init__(self, data_dir: str | os.PathLike[str], **options: Any) -> None:
        self._node = Node(data_dir, **options)
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the node; on return every listener answers."""
        assert self._thread is None, "the node runs already"
        self._thread = LoopThread("millstream", new_event_loop())
        try:
            self._run(self._node.start())
        except BaseException:  # also when interrupted: the thread is not left running
            self._end_thread()
            raise
        atexit.register(self.stop)

    def stop(self) -> None:
        """Write all data and stop cleanly; does nothing if not running."""
        atexit.unregister(self.stop)
        if self._thread is not None:
            try:
                self._run(self._node.stop())
            finally:
                self._end_thread()

    @property
    def kv(self) -> str | None:
        """HOST:PORT of the kv listener."""
        return self._node.kv

    @property
    def http(self) -> str | None:
        """HOST:PORT of the HTTP listener."""
        return self._node.http

    @property
    def memcached(self) -> str | None:
        """HOST:PORT of the memcached listener."""
        return self._node.memcached

    @property
    def failure(self) -> Exception | None:
        """Set when a bucket's disk failed; the node must be stopped and started again."""
        return self._node.failure

    def create_bucket(
        self,
        name: str,
        partitions: int = PARTITIONS_DEFAULT,
        memory_quota_bytes: int | None = None,
    ) -> BucketStatus:
        """Create a bucket; raises as `databases.buckets.Buckets.create`."""
        return self._run(self._node.create_bucket(name, partitions, memory_quota_bytes))

    def delete_bucket(self, name: str) -> None:
        """Delete a bucket; raises as `databases.buckets.Buckets.delete`."""
        self._run(self._node.delete_bucket(name))

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        if self._thread is None:
            work.close()
            raise UnavailableError("the node does not run; start it first", code="not_running")
        return self._thread.run(work)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
