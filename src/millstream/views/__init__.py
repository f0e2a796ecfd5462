"""Map/reduce views: row order, reduce functions, design documents, queries, sandboxes.

Elsewhere: where rows are kept and how they are kept current (`pipelines`).
"""

from __future__ import annotations

from millstream.views.core.design.registered import register

__all__ = ["register"]
