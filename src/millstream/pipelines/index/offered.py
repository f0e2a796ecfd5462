"""Builds that nodes offer: large ones of indexes that the nodes themselves keep.

A pipeline of views that runs asks each node every `ASK_S` what it offers, and says what it builds
for it. A build is one commit; the node goes on with the index afterwards.

Invariants:
1. What fails is given up at once: the node, which hears no more of it, builds.
2. A node has one build under way here at a time.

Elsewhere: what is offered when (`views.core.offers`), the commit (`writer`).

Source: docs/design/0017-views-on-spark.md.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.client.kv import Client
from millstream.errors import MillstreamError
from millstream.pipelines.control import open_client
from millstream.pipelines.index.mapping import MapSpec
from millstream.pipelines.index.nodes import hosts_of
from millstream.pipelines.index.on_spark import spark_tasks
from millstream.pipelines.index.setup import offered_at, offered_spec
from millstream.pipelines.index.shard import IndexAddress, offers_at
from millstream.pipelines.index.writer import Cycle, IndexWriter, RunTasks
from millstream.pipelines.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ASK_S", "OfferedBuilds"]

ASK_S: Final = 2.0
"""How often nodes are asked; far below the time after which they take a pipeline for gone."""
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
        self._source = source
        self._on_build, self._on_failure = on_build, on_failure
        self._modules, self._index_nodes = modules, index_nodes
        self._task_count = task_count
        self.is_stopping = False
        self._client: Client | None = None
        self._failed: set[str] = set()
        """Design documents of which was told why their builds are not made."""
        self._building: dict[IndexAddress, tuple[str, threading.Thread]] = {}

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
        """Ask all nodes once, and begin what they offer; who does not answer is asked again."""
        try:
            client = self._connected()
            for node in offered_at(client, self._source, self._index_nodes):
                self._ask(client, node, run_tasks)
        except MillstreamError:
            return

    def join(self, timeout_s: float) -> None:
        """Wait for the builds under way."""
        deadline = time.monotonic() + timeout_s
        for _, thread in self._building.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _connected(self) -> Client:
        if self._client is None:
            self._client = open_client(self._source)
            hosts = hosts_of(self._source.hosts, self._client.cluster_map)
            self._source = replace(self._source, hosts=hosts)
        else:
            self._client.refresh_map()
        return self._client

    def _ask(self, client: Client, node: IndexAddress, run_tasks: RunTasks) -> None:
        name, thread = self._building.get(node, ("", None))
        is_at_work = thread is not None and thread.is_alive()
        try:
            offered = offers_at(node, [name] if is_at_work else [])
        except MillstreamError:
            return
        if not offered or is_at_work:
            return
        address = replace(node, design=offered[0])
        try:
            spec = offered_spec(client, self._source, address.design, self._modules)
        except MillstreamError as error:
            self._note(address, error)
            return
        placed = msgspec.structs.replace(spec, address=address)
        thread = threading.Thread(target=self._build, args=(placed, run_tasks), daemon=True)
        self._building[node] = address.design, thread
        thread.start()

    def _build(self, spec: MapSpec, run_tasks: RunTasks) -> None:
        began = time.monotonic()
        name = f"offered to Spark {secrets.token_hex(4)}"
        try:
            with IndexWriter(
                spec, run_tasks, name=name, task_count=self._task_count
            ) as writer:  # fmt: skip
                writer.take_over()
                cycle = writer.cycle(is_build=True)
        except MillstreamError as error:
            self._note(spec.address, error)
            return
        self._failed.discard(spec.address.design)
        if cycle is not None:
            self._on_build(spec.address, cycle, time.monotonic() - began)

    def _note(self, address: IndexAddress, error: MillstreamError) -> None:
        if address.design not in self._failed:
            self._failed.add(address.design)
            self._on_failure(address, error)
