"""Polls other nodes for the state of their buckets.

Each watched node has a task of its own, so that a hanging node delays no other. The task requests
the node's list of buckets, and the state of each bucket that the list shows as changed.

Invariants:
1. The last report of a node stays known while the node is unreachable. It is forgotten when the
   node is no longer watched.
2. The owner is notified after each round with new information, and not otherwise.
3. A node's failure is logged once, with the reason.

Elsewhere: use of the reports (`cluster.cluster_state`), the requested pages
(`gateway.aio.peers.shared_pages`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import msgspec

from millstream.cluster.cluster_state import NodeAt, SharedBucket, SharedList, Told
from millstream.errors import MillstreamError, UnavailableError
from millstream.runtime.tasks import Tasks

if TYPE_CHECKING:
    import aiohttp

    from millstream.views.aio.serving.gathering import NodeAccess
    from millstream.views.aio.serving.node_link import HttpNode

__all__ = ["NODE_ASK_S", "NODE_SAYS_S_MAX", "ClusterPeers"]

_LOG = logging.getLogger(__name__)
NODE_ASK_S: Final = 1.0
"""How often another node is asked for the state of its buckets."""
NODE_SAYS_S_MAX: Final = 10.0
"""How long each answer may take."""
_Said = TypeVar("_Said", SharedList, SharedBucket)


class _Watched:
    """One node and its last report."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.said: SharedList | None = None
        """None: no report yet."""
        self.buckets: dict[str, SharedBucket] = {}
        self.error = "it has not answered yet"
        """Why it does not answer; empty while it does."""


class ClusterPeers:
    """Other nodes; ended by `stop`.

    Args:
        access: how they are reached and authenticated.
        wants: returns whether the state of the bucket with this uuid is needed.
        on_news: called when there is new information.
    """

    def __init__(
        self,
        access: NodeAccess,
        wants: Callable[[str], bool],
        on_news: Callable[[], None],
    ) -> None:
        self._access = access
        self._wants, self._on_news = wants, on_news
        self._watched: dict[NodeAt, _Watched] = {}
        self._session: aiohttp.ClientSession | None = None
        self._tasks = Tasks()

    async def stop(self) -> None:
        """Stop polling."""
        await self._tasks.stop()
        if self._session is not None:
            await self._session.close()

    def node(self, node: NodeAt) -> HttpNode:
        """Return the pages of a node."""
        from millstream.views.aio.serving.node_link import HttpNode, new_session

        if self._session is None:
            self._session = new_session()
        return HttpNode(self._session, str(node), node.host, node.http, self._access)

    # -- watched nodes

    def watch(self, nodes: Collection[NodeAt]) -> None:
        """Poll these nodes from now on, and no others."""
        for node in self._watched.keys() - set(nodes):
            task = self._watched.pop(node).task
            assert task is not None
            task.cancel()
        for node in nodes:
            if node not in self._watched:
                watched = self._watched[node] = _Watched()
                watched.task = self._tasks.start(
                    self._keep_asking(node, watched), name=f"asking node {node}"
                )

    def told_of(self, uuid: str) -> list[Told]:
        """Return the reports about a bucket, in the order in which nodes were watched."""
        return [
            Told(node, watched.said.kv, watched.buckets[uuid])
            for node, watched in self._watched.items()
            if watched.said is not None and uuid in watched.buckets
        ]

    def uuids(self) -> set[str]:
        """Return the uuids of the buckets with reports."""
        return {uuid for watched in self._watched.values() for uuid in watched.buckets}

    def is_gone(self, uuid: str) -> bool:
        """Return whether all nodes answer and none lists the bucket, served or not."""
        return all(
            not watched.error
            and uuid not in watched.buckets
            and (watched.said is None or uuid not in {one.uuid for one in watched.said.buckets})
            for watched in self._watched.values()
        )

    def silent(self) -> dict[NodeAt, str]:
        """Return the nodes that do not answer, and why."""
        return {node: one.error for node, one in self._watched.items() if one.error}

    # -- asking

    async def _keep_asking(self, node: NodeAt, watched: _Watched) -> None:
        while True:
            try:
                is_news = await self._ask(node, watched)
                if watched.error:
                    _LOG.info("node %s answers", node)
                is_news |= bool(watched.error)
                watched.error = ""
            except MillstreamError as error:
                if str(error) != watched.error:
                    _LOG.warning("the state of node %s is unknown: %s", node, error)
                is_news, watched.error = False, str(error)
            if is_news:
                self._on_news()
            await asyncio.sleep(NODE_ASK_S)

    async def _ask(self, node: NodeAt, watched: _Watched) -> bool:
        """Poll once; return whether anything is new.

        Raises:
            MillstreamError: why the information is incomplete.
        """
        said = await self._decoded(node, "/_millstream/shared", SharedList)
        is_news = said != watched.said
        watched.said = said
        listed = {bucket.uuid: bucket for bucket in said.buckets if self._wants(bucket.uuid)}
        for uuid in watched.buckets.keys() - listed.keys():
            del watched.buckets[uuid]
            is_news = True
        for uuid, bucket in listed.items():
            known = watched.buckets.get(uuid)
            if bucket.revision and (known is None or known.revision != bucket.revision):
                path = f"/_millstream/buckets/{quote(bucket.name, safe='')}/shared"
                found = await self._decoded(node, path, SharedBucket)
                if found.uuid == uuid:  # else it was created anew between the two answers
                    watched.buckets[uuid] = found
                    is_news = True
        return is_news

    async def _decoded(self, node: NodeAt, path: str, kind: type[_Said]) -> _Said:
        try:
            async with asyncio.timeout(NODE_SAYS_S_MAX):
                text = await self.node(node).ask("GET", path)
            return msgspec.json.decode(text, type=kind)
        except TimeoutError as error:
            raise UnavailableError(f"{node} did not answer in time", code="node_failed") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnavailableError(
                f"{node} is no HTTP port of a Millstream node of this version: {error}",
                code="node_failed",
            ) from error
