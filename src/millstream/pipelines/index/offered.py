"""Builds that nodes offer: large ones of indexes that the nodes themselves keep.

A pipeline of views that runs asks each node every `ASK_S` what it offers; a node that it builds
for hears as often that it does. A build is one commit; the node goes on with the index afterwards.

Invariants:
1. What fails is given up at once: the node, which hears no more of it, builds.
2. A node has one build under way here at a time.
3. A node hears of its build from a thread of its own until that is over, also while a stop waits
   for it: whatever else is away, or takes long, has no build taken back.

Elsewhere: what is offered when (`views.core.index.offers`), the commit (`writer`).

Source: docs/design/0017-views-on-spark.md.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.client.kv import Client
from millstream.errors import MillstreamError, UnavailableError
from millstream.pipelines.change_stream.control import open_client
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.index.nodes import hosts_of
from millstream.pipelines.index.on_spark import spark_tasks
from millstream.pipelines.index.setup import offered_at, offered_spec
from millstream.pipelines.index.shard import IndexAddress, offers_at
from millstream.pipelines.index.writer import Cycle, IndexWriter, RunTasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ASK_S", "TELL_S", "OfferedBuilds"]

ASK_S: Final = 2.0
"""How often nodes are asked; far below the time after which they take a pipeline for gone."""
TELL_S: Final = 3.0
"""How long a node may take to answer, before the next one is asked."""
STOP_WAIT_S: Final = 60.0
"""How long a stop waits for builds under way."""
_LOOK_S: Final = 0.05


class OfferedBuilds:
    """Does builds that nodes offer, until `is_stopping` is set.

    Args:
        source: how the bucket is read.
        modules: that register Python functions.
        index_nodes: HTTP addresses of nodes that only index.
        on_build: told of each build: where, whose, and how many seconds it took.
        on_failure: told why a build was not made.
        task_count: Spark tasks of one build.
    """

    def __init__(
        self,
        source: SourceOptions,
        on_build: Callable[[IndexAddress, Cycle, float], None],
        on_failure: Callable[[IndexAddress, MillstreamError], None],
        *,
        modules: tuple[str, ...] = (),
        index_nodes: tuple[str, ...] = (),
        task_count: int = 2,
    ) -> None:
        self._source = self._given = source
        self._on_build, self._on_failure = on_build, on_failure
        self._modules, self._index_nodes = modules, index_nodes
        self._task_count = task_count
        self.is_stopping = False
        self._client: Client | None = None
        self._failed: set[str] = set()
        """Design documents of which was told why their builds are not made."""
        self._building: dict[IndexAddress, threading.Thread] = {}

    def run(self, spark: SparkSession) -> None:
        """Ask and build."""
        tasks = spark_tasks(spark)
        asked_at = -ASK_S
        try:
            while not self.is_stopping:
                if time.monotonic() - asked_at >= ASK_S:
                    asked_at = time.monotonic()
                    self.ask(tasks)
                time.sleep(_LOOK_S)
        finally:
            self.close()

    def close(self) -> None:
        """Wait for the builds under way, and hold nothing more."""
        self.join(STOP_WAIT_S)
        if self._client is not None:
            self._client.close()

    def ask(self, run_tasks: RunTasks) -> None:
        """Ask all nodes once that nothing is built for, and begin what they offer.

        Who does not answer is asked again.
        """
        try:
            client = self._connected()
            for node in offered_at(client, self._source, self._index_nodes):
                self._ask(client, node, run_tasks)
        except MillstreamError:
            return

    def join(self, timeout_s: float) -> None:
        """Wait for the builds under way."""
        deadline = time.monotonic() + timeout_s
        for thread in self._building.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _connected(self) -> Client:
        if self._client is None:
            self._client = open_client(self._given)
        else:
            with suppress(UnavailableError):  # the nodes known are asked, each by itself
                self._client.refresh_map()
        hosts = hosts_of(self._given.hosts, self._client.cluster_map)
        self._source = replace(self._given, hosts=hosts)
        return self._client

    def _ask(self, client: Client, node: IndexAddress, run_tasks: RunTasks) -> None:
        at_work = self._building.get(node)
        if at_work is not None and at_work.is_alive():
            return
        try:
            offered = offers_at(node, [], TELL_S)
        except MillstreamError:
            return
        if not offered:
            return
        address = replace(node, design=offered[0])
        thread = threading.Thread(
            target=self._build, args=(client, self._source, address, run_tasks), daemon=True
        )
        self._building[node] = thread
        thread.start()

    def _build(
        self, client: Client, source: SourceOptions, address: IndexAddress, run_tasks: RunTasks
    ) -> None:
        began = time.monotonic()
        name = f"offered to Spark {secrets.token_hex(4)}"
        try:
            spec = offered_spec(client, source, address.design, self._modules)
            placed = msgspec.structs.replace(spec, address=address)
            with _told(address), IndexWriter(
                placed, run_tasks, name=name, task_count=self._task_count
            ) as writer:  # fmt: skip
                writer.take_over()
                cycle = writer.cycle(is_build=True)
        except MillstreamError as error:
            self._note(address, error)
            return
        self._failed.discard(address.design)
        if cycle is not None:
            self._on_build(address, cycle, time.monotonic() - began)

    def _note(self, address: IndexAddress, error: MillstreamError) -> None:
        if address.design not in self._failed:
            self._failed.add(address.design)
            self._on_failure(address, error)


@contextmanager
def _told(address: IndexAddress) -> Iterator[None]:
    """Within `with`, a node hears that its build is under way."""
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(ASK_S):
            with suppress(MillstreamError):  # it is told again
                offers_at(address, [address.design], TELL_S)

    threading.Thread(target=tell, name="millstream-offered", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
