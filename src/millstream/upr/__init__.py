"""The change stream (UPR, released as DCP): producers, consumers, positions in motion.

Public names are found when first used, so that a server loads no client and the reverse.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.upr.aio.client import Consumer
    from millstream.upr.aio.following import BucketReader
    from millstream.upr.aio.sinks import CallbackSink, JsonLinesSink, SqliteSink

__all__ = ["BucketReader", "CallbackSink", "Consumer", "JsonLinesSink", "SqliteSink"]

_HOMES = {
    "BucketReader": "millstream.upr.aio.following",
    "CallbackSink": "millstream.upr.aio.sinks",
    "Consumer": "millstream.upr.aio.client",
    "JsonLinesSink": "millstream.upr.aio.sinks",
    "SqliteSink": "millstream.upr.aio.sinks",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'millstream.upr' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
