"""What a node wants to know of a design document, in one.

Invariants:
1. What is known of a document is small, or quickly passed on to another process, however large the
   document is: what is too large is known as unusable.

Elsewhere: who keeps it (`databases.design_reading`), what is in a document (`design_documents`,
`design_code`).
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.views.core.design.design_code import DesignCode, read_code
from millstream.views.core.design.design_documents import (
    ToldDesign,
    read_design,
    shared_text,
    told_design,
)
from millstream.views.core.mango.planning import Index, indexes_of

__all__ = ["KnownDesign", "read_known"]


class KnownDesign(NamedTuple):
    """What is known of one revision of a design document."""

    code: DesignCode
    """The functions that are no views."""
    told: ToldDesign
    """For the index process."""
    indexes: list[Index]
    """JSON indexes."""
    shared: bytes | None
    """The document as other nodes are told it; None: as it is stored."""


def read_known(bucket: str, name: str, rev: str, body: bytes) -> KnownDesign:
    """Return what a design document says; arguments and errors as `read_code`."""
    content = read_design(body)
    told = told_design(content)
    shared = shared_text(body, content)
    return KnownDesign(
        read_code(bucket, name, rev, body, content), told,
        [] if told.views is None else indexes_of(name, content),
        None if shared is body else shared,
    )  # fmt: skip
