"""What concerns several nodes at once: which copy of a partition is the active one.

Decisions are in `millstream.cluster.core.promotion`.
"""
