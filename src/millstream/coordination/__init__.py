"""Coordination: small replicated state that nodes and applications agree on.

Importing this package loads nothing heavy: each name is found when first used. `AsyncClient` is
the client of namespaces, `BlockingClient` the same without `await`, `Client` the one below, of
registers and of any command.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millstream.coordination.aio.client.async_client import AsyncClient
    from millstream.coordination.aio.client.blocking import BlockingClient
    from millstream.coordination.aio.client.group_client import Client

__all__ = ["AsyncClient", "BlockingClient", "Client"]

_MODULES: Final = {
    "AsyncClient": "millstream.coordination.aio.client.async_client",
    "BlockingClient": "millstream.coordination.aio.client.blocking",
    "Client": "millstream.coordination.aio.client.group_client",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'millstream.coordination' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
