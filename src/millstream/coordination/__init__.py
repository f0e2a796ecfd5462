"""Coordination: small replicated state that nodes and applications agree on.

Importing this package loads nothing heavy: `Client` is found when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.coordination.aio.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'millstream.coordination' has no attribute {name!r}")
    from millstream.coordination.aio import client

    return client.Client
