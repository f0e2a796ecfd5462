"""What was learned of buckets, kept in the directory of a node that only indexes.

Layout: `followed/<bucket uuid>/learned.json`, beside the indexes of the bucket.

Invariants:
1. A file is replaced as a whole, durably.
2. One that cannot be read costs nothing: the bucket is learned again.

Elsewhere: what it says (`node.learned`), who writes it (`node.index_node`).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from millstream.cluster.cluster_state import Learned
from millstream.runtime.files import write_atomically

__all__ = ["FOLLOWED", "find_learned", "keep_learned"]

_LOG = logging.getLogger(__name__)
FOLLOWED: Final = "followed"
_LEARNED: Final = "learned.json"


def find_learned(path: Path) -> list[tuple[Path, Learned]]:
    """Return the buckets in a directory `followed`, which need not exist, and their folders."""
    found = []
    for file in sorted(path.glob(f"*/{_LEARNED}")):
        try:
            found.append((file.parent, msgspec.json.decode(file.read_bytes(), type=Learned)))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            _LOG.warning("%s is not used: %s", file, error)
    return found


def keep_learned(path: Path, learned: Learned) -> None:
    """Keep what is known of a bucket in its folder; raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    write_atomically(path / _LEARNED, msgspec.json.encode(learned))
