"""Buckets of a node, made with doubles of their engines."""

from support.kv.node_buckets import make

__all__ = ["make"]
