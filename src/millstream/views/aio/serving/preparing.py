"""Prepares reductions that queries of some of the partitions need, so that the first one is fast.

If a node does not answer for all partitions that an index has rows of (some were moved away,
replicas are indexed in advance), a reduction needs a value of every row. These values are read
here in a thread and kept (`trees.core.columns`, `trees.core.filtered`). After commits only the
changed ones are read.

Invariants:
1. One index is prepared at a time, and none whose prepared state is current.
2. Reduce functions of design documents are not called, because queries would wait for them.

Elsewhere: the set of indexes (`hosted_bucket`), one index (`hosted_index`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from millstream.errors import CorruptionError, MillstreamError
from millstream.views.aio.serving.hosted_index import HostedIndex
from millstream.views.core.index.header import Header

__all__ = ["PREPARE_REST_MIN", "PREPARE_S", "keep_prepared", "prepare"]

_LOG = logging.getLogger(__name__)
PREPARE_S: Final = 1.0
"""How often is looked for an index that is not prepared as it is now."""
PREPARE_REST_MIN: Final = 20
"""After preparing, rest at least this many times as long: so it takes a bounded share of the time.
"""


async def keep_prepared(
    indexes: Callable[[], Mapping[str, HostedIndex]],
    damaged: Callable[[HostedIndex, CorruptionError], None],
) -> None:
    """Prepare indexes again and again; never ends.

    Args:
        indexes: those that are open, by signature.
        damaged: told of one that cannot be read.
    """
    known: dict[str, Header] = {}
    pause_s = PREPARE_S
    while True:
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        opened = dict(indexes())
        known = {signature: known[signature] for signature in known if signature in opened}
        for signature, hosted in opened.items():
            header = hosted.index.newest
            if known.get(signature) is header or not _is_mixed(header):
                continue
            known[signature] = header
            try:
                with hosted.used():
                    await asyncio.to_thread(prepare, hosted)
            except CorruptionError as error:
                damaged(hosted, error)
            except MillstreamError as error:
                _LOG.info("index %s is not prepared: %s", signature, error)
        pause_s = max(PREPARE_S, PREPARE_REST_MIN * (time.monotonic() - began))


def prepare(hosted: HostedIndex) -> None:
    """Make what reductions of any partitions need, and those of the active ones. Blocks.

    Raises:
        UnavailableError: `too_many_snapshots`, `snapshot_expired`.
        CorruptionError: `index_damaged`.
    """
    with hosted.snapshot() as snapshot:
        wanted = snapshot.header.active & ~snapshot.header.void
        for view in hosted.design.views:
            asked = hosted.asked_view(view)
            if asked.reduce >= 0 and not asked.is_own_reduce:
                reducer = asked.reducer.only(asked.reduce)
                tree = snapshot.tree(asked.tree, reducer, asked.reduce)
                tree.prepare()
                tree.reduce(None, None, wanted)


def _is_mixed(header: Header) -> bool:
    """Whether the trees have rows that are not answered."""
    return any(root and root.partitions & ~header.active for root in header.trees)
