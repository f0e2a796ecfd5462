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
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from millstream.databases.buckets import Buckets
from millstream.databases.own_bucket import OwnBucket
from millstream.errors import UnavailableError, UsageError
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.views.aio.sandbox.functions import compile_functions
from millstream.views.aio.sandbox.mapping import open_mapper
from millstream.views.core.design.design_code import read_code
from millstream.views.core.design.design_documents import DesignDocument, parse_design, read_design

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
        check_functions: looks up the functions of a design document (bucket, name, content) in the
            index process; raises `unknown_function`, or why the index process cannot be asked.
        own: the served buckets, by uuid.
    """

    def __init__(
        self,
        buckets: Buckets,
        check_functions: Callable[[str, str, dict[str, Any]], Awaitable[None]],
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

    async def check(self, bucket: str, name: str, content: dict[str, Any]) -> None:
        """Reject a document that is no design document or whose functions do not compile."""
        self._buckets.designs(bucket)
        try:
            body = json.dumps(content, ensure_ascii=False).encode()
        except ValueError as error:
            raise UsageError(
                f"a number is too long: {error}", code="invalid_design_doc"
            ) from error
        code = read_code("", name, "", body)
        for fault in code.faults.values():
            raise UsageError(fault, code="invalid_design_doc")
        content = read_design(body)
        if code.validates or code.filters or code.updates:
            async with self._compiles:
                await asyncio.to_thread(compile_functions, code)
        if content.get("views") or ("views" in content and not isinstance(content["views"], dict)):
            design = parse_design(content, name)
            if design.language == "query":
                return
            if design.language == "javascript":
                async with self._compiles:
                    await asyncio.to_thread(_compile, design)
            else:
                await self._check_functions(bucket, name, content)

    async def write(
        self, bucket: str, name: str, body: bytes | None, rev: str | None, *, is_durable: bool
    ) -> StoredDesign:
        """Replace the revision `rev` (None: there is no document) by a body; None deletes."""
        designs = self._buckets.designs(bucket)
        return await designs.write(name, body, rev, is_durable=is_durable)

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


def _compile(design: DesignDocument) -> None:
    open_mapper(design).close()
