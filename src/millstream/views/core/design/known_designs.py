"""All that a node uses of a design document, read in one go.

Invariants:
1. A `KnownDesign` is small, or quickly sent to another process, however large the document is. Of
   parts that are too large it only has why they are not used.

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
    """What a node uses of one revision of a design document."""

    code: DesignCode
    """Its functions, but for those of views."""
    told: ToldDesign
    """Its views, in the form that the index process gets."""
    indexes: list[Index]
    """Its JSON indexes."""
    shared: bytes | None
    """Its text in the form that other nodes get; None: the stored text."""


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
