"""What a node keeps in its data directory of the cluster that it is a member of.

Elsewhere: the file (`data_directory.cluster_file`), how it comes about (`cluster.aio.joining`).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from millstream.errors import UsageError

__all__ = ["CLUSTER_NAME", "CLUSTER_NAME_CHARS_MAX", "Identity", "checked_cluster_name"]

CLUSTER_NAME: Final = "millstream"
"""Of a cluster that nobody names."""
CLUSTER_NAME_CHARS_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Identity(NamedTuple):
    """The cluster of a node. A node that has it serves by the cluster's maps from its start."""

    cluster: str
    """The cluster's uuid."""
    name: str
    """Of the cluster."""
    peer: str = ""
    """HOST:PORT at which the node joins the coordination pool; empty: it was the first node."""


def checked_cluster_name(name: str) -> str:
    """Return the name if a cluster can have it.

    Raises:
        UsageError: `bad_cluster_name`.
    """
    if len(name) > CLUSTER_NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise UsageError(
            f"a cluster is named by 1 to {CLUSTER_NAME_CHARS_MAX} letters, digits, dots, hyphens "
            "and underscores, with a letter or digit first",
            code="bad_cluster_name",
        )
    return name
