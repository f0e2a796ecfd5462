"""Sinks of Spark pipelines: what becomes of the rows of a change stream."""

from __future__ import annotations

from millstream.pipelines.sinks.repairing import KeyedTarget, Origin, RepairingSink

__all__ = ["KeyedTarget", "Origin", "RepairingSink"]
