"""Settings of a database on all nodes that share it: `_revs_limit` and `_security`.

Each setting has a number that grows each time it is set, on any node; the larger number wins
(`SharedSettings.joined`). A node that sets one asks all nodes for their numbers and sends the new
setting to all of them. A node that joins asks the others for settings and purge counts before it
first answers with its own.

Invariants:
1. An acknowledged setting is durable on all nodes of the map that serve the bucket.
2. A node asks each other node of the map once. Unreachable nodes are asked again every
   `ASK_PAUSE_S` at most, and delay no request by more than `ASK_S_MAX`.

Elsewhere: where the settings are stored (`databases.documents.local_documents`), counting purges
(`databases.purges`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import reduce
from typing import Final

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.local_documents import Documents
from millstream.databases.remote_node import NotServedError, RemoteNode
from millstream.databases.routing import Router
from millstream.errors import MillstreamError, UnavailableError
from millstream.gateway.core.api.stored import (
    AskSettings,
    Done,
    KeepSettings,
    Numbered,
    SharedSettings,
)
from millstream.kv.core.bucket import Bucket

__all__ = ["ASK_PAUSE_S", "ASK_S_MAX", "DistributedSettings"]

ASK_S_MAX: Final = 2.0
"""How long to wait for the answers of nodes about settings."""
ASK_PAUSE_S: Final = 10.0
"""Pause before the nodes that did not answer are asked again."""
Change = Callable[[SharedSettings], SharedSettings]


class _Heard:
    """Which nodes were asked about one bucket, and the state of that."""

    def __init__(self) -> None:
        self.nodes = set[NodeAt]()
        self.next_s = 0.0
        self.turn = asyncio.Lock()


class DistributedSettings:
    """The settings of a node's buckets.

    Args:
        own: the settings of this node.
        route: returns the router of a bucket.
        monotonic_s: clock.
    """

    def __init__(
        self,
        own: Documents,
        route: Callable[[str], Router],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own, self._route = own, route
        self._monotonic_s = monotonic_s
        self._heard: dict[str, _Heard] = {}

    def _of(self, bucket: str) -> tuple[Router, list[NodeAt], _Heard]:
        router = self._route(bucket)
        return router, router.others(), self._heard.setdefault(router.uuid, _Heard())

    def drop(self, bucket: Bucket) -> None:
        """A bucket is no longer served: forget which nodes were asked."""
        self._heard.pop(bucket.uuid, None)

    async def learn(self, bucket: str) -> None:
        """Take over the settings of other nodes, if they were not asked yet."""
        router, others, heard = self._of(bucket)
        if heard.nodes.issuperset(others) or self._monotonic_s() < heard.next_s:
            return
        heard.next_s = self._monotonic_s() + ASK_PAUSE_S
        wanted = [node for node in others if node not in heard.nodes]
        asking = (_ask_quickly(router.link_to(node), router.uuid) for node in wanted)
        said = await asyncio.gather(*asking)
        for node, (is_said, settings) in zip(wanted, said, strict=True):
            if is_said:
                heard.nodes.add(node)
            if settings is not None:
                await self._own.keep_settings(bucket, settings)

    async def change(self, bucket: str, change: Change) -> None:
        """Change a setting on all nodes.

        Args:
            bucket: of the settings.
            change: returns the new settings, with a new number.

        Raises:
            UnavailableError: `node_failed`, a node that must be told cannot be reached.
        """
        router, others, heard = self._of(bucket)
        links = [router.link_to(node) for node in others]
        async with heard.turn:
            said = await asyncio.gather(*(_ask(node, router.uuid) for node in links))
            known = self._own.shared_settings(bucket)
            newer = change(reduce(SharedSettings.joined, filter(None, said), known))
            serving = [node for node, one in zip(links, said, strict=True) if one is not None]
            newer = newer._replace(purges=0)  # each node counts its own purges
            kept = KeepSettings(router.uuid, newer)
            tellings = (node.ask(kept, Done) for node in serving)
            told = await asyncio.gather(*tellings, return_exceptions=True)
            await self._own.keep_settings(bucket, newer)
        for node, one in zip(serving, told, strict=True):
            if isinstance(one, MillstreamError):
                raise UnavailableError(
                    f"node {node.at} does not have what was set for {bucket!r}, other nodes do; "
                    f"set it again: {one}",
                    code="node_failed",
                ) from one
            if isinstance(one, BaseException):
                raise one

    async def set_revs_limit(self, bucket: str, limit: int) -> None:
        """Set the number of generations kept from the next change on; raises as `change`."""
        await self.change(
            bucket,
            lambda known: known._replace(
                revs_limit=Numbered(known.revs_limit.number + 1, b"%d" % limit)
            ),
        )

    async def set_security(self, bucket: str, content: bytes) -> None:
        """Replace `_security`; raises as `change`."""
        await self.change(
            bucket,
            lambda known: known._replace(security=Numbered(known.security.number + 1, content)),
        )


async def _ask(node: RemoteNode, uuid: str) -> SharedSettings | None:
    """Return the settings of a node; None: it does not serve the bucket."""
    try:
        return (await node.ask(AskSettings(uuid), KeepSettings)).settings
    except NotServedError:
        return None


async def _ask_quickly(node: RemoteNode, uuid: str) -> tuple[bool, SharedSettings | None]:
    """Return whether a node answered, and its settings."""
    try:
        async with asyncio.timeout(ASK_S_MAX):
            return True, await _ask(node, uuid)
    except (MillstreamError, TimeoutError):
        return False, None
