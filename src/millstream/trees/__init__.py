"""Sorted rows on disk: a copy-on-write B+tree with counts, reductions and partition bitmaps.

    from millstream.trees.core.reader import TreeReader
    from millstream.trees.core.shapes import NO_REDUCER, Leaf, NodeSource, Reducer, Root
    from millstream.trees.core.writer import TreeWriter

Self-contained: it knows numbered nodes as bytes, not where they are kept, nor what rows mean.
Layout, algorithms and figures: docs/design/0010-index-tree.md.
"""
