"""What stored design documents say, worked out once for each revision.

Invariants:
1. A document of more than `SMALL_BYTES` is read in a helper process, and what comes back is small:
   what it would take long to pass on is not used (`views.core.design`). So no document holds up
   the loop, however large it is.
2. A bucket that was dropped and created again gets nothing that was kept of the old one.
3. What is kept has at most `KEPT_BYTES_MAX`, or is one document.

Elsewhere: what is read of a document (`views.core.design`), the documents
(`kv.aio.documents.design_documents`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec

from millstream.errors import UsageError
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.runtime.long_calls import run_apart
from millstream.views.core.design.known_designs import KnownDesign, read_known

__all__ = ["KEPT_BYTES_MAX", "SMALL_BYTES", "KnownDesigns", "drop_designs", "known_design"]

SMALL_BYTES: Final = 16 * 1024
"""A document up to here is read in the loop."""
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of documents of which is kept what they say."""
_KNOWN_BYTES: Final = 1024
"""What is reckoned for a document besides."""
_Key = tuple[str, str, str, int, int, int]


class KnownDesigns:
    """What is kept of documents."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, tuple[KnownDesign, int]] = OrderedDict()
        self._reading: dict[_Key, asyncio.Future[KnownDesign]] = {}
        self._size = 0

    def drop(self, uuid: str) -> None:
        """Keep nothing of a bucket any more."""
        for key in [key for key in self._known if key[0] == uuid]:
            self._size -= self._known.pop(key)[1]

    async def of(self, uuid: str, stored: StoredDesign) -> KnownDesign:
        """Return what a design document that is not deleted says.

        Args:
            uuid: of its bucket.
            stored: the document.

        Raises:
            UsageError: `invalid_design_doc`: it is no object; no known way leads there.
            UnavailableError: `long_call_failed`.
        """
        try:
            return await self._of(uuid, stored)
        except msgspec.MsgspecError as error:
            raise UsageError(str(error), code="invalid_design_doc") from error

    async def _of(self, uuid: str, stored: StoredDesign) -> KnownDesign:
        key = (
            uuid, stored.name, stored.rev, stored.partition, stored.seqno, len(stored.body)
        )  # fmt: skip
        if (found := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return found[0]
        asked = (uuid, stored.name, stored.rev, stored.body)
        if len(stored.body) <= SMALL_BYTES:
            return self._keep(key, read_known(*asked))
        reading = self._reading.get(key)
        if reading is None or reading.get_loop() is not asyncio.get_running_loop():
            reading = asyncio.ensure_future(run_apart(read_known, *asked))
            self._reading[key] = reading
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        return self._keep(key, await asyncio.shield(reading))

    def _keep(self, key: _Key, known: KnownDesign) -> KnownDesign:
        if key not in self._known:
            shared = 0 if known.shared is None else len(known.shared)
            size = len(known.code.text) + len(known.told.text) + shared + _KNOWN_BYTES
            self._known[key] = known, size
            self._size += size
            while self._size > KEPT_BYTES_MAX and len(self._known) > 1:
                self._size -= self._known.popitem(last=False)[1][1]
        return known


_KNOWN: Final = KnownDesigns()
known_design: Final = _KNOWN.of
drop_designs: Final = _KNOWN.drop
