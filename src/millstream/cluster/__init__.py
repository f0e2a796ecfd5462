"""State shared by several nodes: which copy of a partition is the active one.

Decisions are in `millstream.cluster.core.promotion`.
"""
