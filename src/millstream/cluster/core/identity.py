"""What a node keeps in its data directory of the cluster that it is a member of.

Elsewhere: the file (`data_directory.cluster_file`), how it comes about (`cluster.aio.joining`).
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Identity"]


class Identity(NamedTuple):
    """The cluster of a node. A node that has it serves by the cluster's maps from its start."""

    cluster: str
    """The cluster's uuid."""
    name: str
    """Of the cluster."""
    peer: str = ""
    """HOST:PORT at which the node joins the coordination pool; empty: it was the first node."""
