"""Millstream: a partitioned document database whose change stream is the product.

Importing this package loads nothing heavy: public names are found when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream.version import __version__

if TYPE_CHECKING:
    from millstream.client.kv import Client, connect
    from millstream.node.embedded import EmbeddedNode, Node

__all__ = ["Client", "EmbeddedNode", "Node", "__version__", "connect"]

_HOMES = {
    "Client": "millstream.client.kv",
    "EmbeddedNode": "millstream.node.embedded",
    "Node": "millstream.node.embedded",
    "connect": "millstream.client.kv",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'millstream' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
