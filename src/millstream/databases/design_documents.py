"""The design documents of a node's buckets, checked before they are stored.

Invariants:
1. JavaScript functions are compiled in a separate sandbox, in a thread, so the loop is not
   blocked.
2. At most `COMPILES_MAX` documents are compiled at a time; others wait.
3. Only the index process knows the Python functions, so it decides whether one exists.

Elsewhere: the documents (`kv.aio.documents.design_documents`), what a design document may contain
(`views.core.design.design_documents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from millstream.databases.buckets import Buckets
from millstream.databases.design_reading import SMALL_BYTES, known_design
from millstream.databases.own_bucket import OwnBucket
from millstream.errors import UnavailableError, UsageError
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.runtime.long_calls import run_apart
from millstream.views.aio.sandbox.functions import compile_functions
from millstream.views.aio.sandbox.mapping import open_mapper
from millstream.views.core.design.design_code import DesignCode, read_code
from millstream.views.core.design.design_documents import (
    DesignDocument,
    parse_design,
    read_design,
    told_design,
)
from millstream.views.core.design.known_designs import KnownDesign

__all__ = ["COMPILES_MAX", "HEARD_PAUSE_S", "HEARD_TRIES_MAX", "Designs"]

COMPILES_MAX: Final = 2
HEARD_TRIES_MAX: Final = 25
"""How often to check whether other nodes have said which design documents they have."""
HEARD_PAUSE_S: Final = 0.2
"""Pause before the next check."""


class Designs:
    """Implements `gateway.core.api.node.DesignApi`.

    Args:
        buckets: of the node.
        check_functions: looks up the functions of a design document (bucket, name, its JSON) in
            the index process; raises `unknown_function`, or why the index process cannot be asked.
        own: the served buckets, by uuid.
    """

    def __init__(
        self,
        buckets: Buckets,
        check_functions: Callable[[str, str, bytes], Awaitable[None]],
        own: Mapping[str, OwnBucket],
    ) -> None:
        self._own = own
        self._buckets = buckets
        self._check_functions = check_functions
        self._compiles = asyncio.Semaphore(COMPILES_MAX)

    async def read(self, bucket: str, name: str) -> StoredDesign | None:
        """Return a document or its tombstone; None if there was never one.

        For a document on another node, return what that node said last.
        """
        try:
            return await self._buckets.designs(bucket).read(name)
        except UnavailableError as error:
            if error.code != "not_my_partition":
                raise
        return next((one for one in await self.all(bucket) if one.name == name), None)

    async def check(self, bucket: str, name: str, body: bytes) -> None:
        """Reject a document that is no design document or whose functions do not compile."""
        self._buckets.designs(bucket)
        if len(body) <= SMALL_BYTES:
            code, design, told = _examined(name, body)
        else:
            code, design, told = await run_apart(_examined, name, body)
        if code.validates or code.filters or code.updates:
            async with self._compiles:
                await asyncio.to_thread(compile_functions, code)
        if design is not None and design.language == "javascript":
            async with self._compiles:
                await asyncio.to_thread(_compile, design)
        elif design is not None and design.language != "query":
            await self._check_functions(bucket, name, told)

    async def write(
        self, bucket: str, name: str, body: bytes | None, rev: str | None, *, is_durable: bool
    ) -> StoredDesign:
        """Replace the revision `rev` (None: there is no document) by a body; None deletes."""
        designs = self._buckets.designs(bucket)
        return await designs.write(name, body, rev, is_durable=is_durable)

    async def known(self, bucket: str, stored: StoredDesign) -> KnownDesign:
        """Return what a design document that is not deleted says."""
        return await known_design(self._buckets.engine(bucket).bucket.uuid, stored)

    async def all(self, bucket: str) -> list[StoredDesign]:
        """Return all design documents that are not deleted, by name."""
        for last in range(HEARD_TRIES_MAX - 1, -1, -1):
            own = self._own[self._buckets.engine(bucket).bucket.uuid]
            try:
                return await own.stored_designs()
            except UnavailableError as error:
                if error.code != "not_my_partition" or not last:
                    raise
            await asyncio.sleep(HEARD_PAUSE_S)
        raise AssertionError("the last try returns or raises")


def _examined(name: str, body: bytes) -> tuple[DesignCode, DesignDocument | None, bytes]:
    """Return the functions of a document, its views if it has any, and what is told of it.

    Raises:
        UsageError: `invalid_design_doc`.
    """
    content = read_design(body)
    code = read_code("", name, "", body, content)
    for fault in code.faults.values():
        raise UsageError(fault, code="invalid_design_doc")
    if not content.get("views") and isinstance(content.get("views", {}), dict):
        return code, None, b""
    return code, parse_design(content, name), told_design(content).text


def _compile(design: DesignDocument) -> None:
    open_mapper(design).close()
