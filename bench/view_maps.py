"""The Python map of the benchmark of views; its JavaScript twin is in views.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.views import register


@register("bench.by_group")
def by_group(document: dict[str, Any]) -> Iterator[tuple[list[int], int]]:
    """Emit an order's number under its group."""
    yield [document["group"], document["n"]], document["n"]
