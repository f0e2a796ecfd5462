"""The functions of a node's design documents: which are called, and from which revision.

Invariants:
1. The newest revision of a design document is used, durable or not.
2. A change that one design document rejects is not passed to the next one.
3. If the `validate_doc_update` of a design document cannot be run, every change is rejected, since
   nobody knows what it would have rejected. The design document itself can be changed and deleted.

Elsewhere: running the functions (`views.aio.sandbox.functions`), the documents
(`databases.design_documents`).
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import ConditionError, MillstreamError
from millstream.gateway.core.api.node import DesignApi
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.views.aio.sandbox.functions import FunctionPool
from millstream.views.core.design.design_code import (
    VALIDATE,
    DesignCode,
    DocumentChange,
    Updated,
)

__all__ = ["DesignFunctions"]


class DesignFunctions:
    """Implements `gateway.core.api.node.FunctionApi`.

    Args:
        designs: of the node.
        pool: where the functions run; a new pool by default.
    """

    def __init__(self, designs: DesignApi, pool: FunctionPool | None = None) -> None:
        self._designs = designs
        self._pool = pool or FunctionPool()

    def close(self) -> None:
        """Stop all running functions."""
        self._pool.close()

    async def validate(
        self, bucket: str, changes: Sequence[DocumentChange], user: bytes, security: bytes
    ) -> list[MillstreamError | None]:
        """Run all validation functions on changes; return for each why it is rejected, or None."""
        found: list[MillstreamError | None] = [None] * len(changes)
        for design in await self._designs.all(bucket):
            good = [at for at, refusal in enumerate(found) if refusal is None]
            asked = [changes[at] for at in good]
            refusals = await self._refusals(bucket, design, asked, user, security)
            for at, refusal in zip(good, refusals, strict=True):
                found[at] = refusal
        return found

    async def validates(self, bucket: str) -> bool:
        """Return whether any design document validates changes."""
        designs = await self._designs.all(bucket)
        codes = [await self._code(bucket, design) for design in designs]
        return any(code.validates for code in codes)

    async def _refusals(
        self,
        bucket: str,
        design: StoredDesign,
        changes: Sequence[DocumentChange],
        user: bytes,
        security: bytes,
    ) -> Sequence[MillstreamError | None]:
        code = await self._code(bucket, design)
        if not code.validates:
            return [None] * len(changes)
        if VALIDATE in code.faults:
            fault = MillstreamError(
                f"_design/{design.name} cannot judge changes: {code.faults[VALIDATE]}; mend or "
                "delete it",
                code="invalid_design_doc",
            )
            return [fault] * len(changes)
        return await self._pool.validate(code, changes, user, security)

    async def filter(
        self, bucket: str, design: str, name: str, documents: Sequence[bytes], request: bytes
    ) -> list[bool]:
        """Return which documents pass a filter."""
        code = await self._found(bucket, design)
        return await self._pool.filter_batch(code, name, documents, request)

    async def filter_by_view(
        self, bucket: str, design: str, view: str, documents: Sequence[bytes]
    ) -> list[bool]:
        """Return for which documents the map function of a view emits anything."""
        return await self._pool.view_batch(await self._found(bucket, design), view, documents)

    async def update(
        self, bucket: str, design: str, name: str, document: bytes | None, request: bytes
    ) -> Updated:
        """Call an update function."""
        code = await self._found(bucket, design)
        return await self._pool.update(code, name, document, request)

    async def _found(self, bucket: str, design: str) -> DesignCode:
        found = await self._designs.read(bucket, design)
        if found is None or found.is_deleted:
            raise ConditionError("deleted" if found else "missing", code="not_found")
        return await self._code(bucket, found)

    async def _code(self, bucket: str, design: StoredDesign) -> DesignCode:
        return (await self._designs.known(bucket, design)).code
