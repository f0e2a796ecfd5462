"""The known state of buckets, stored in the directory of a node that only indexes.

Layout: `followed/<bucket uuid>/learned.json`, beside the indexes of the bucket.

Invariants:
1. A file is replaced as a whole, durably.
2. An unreadable file loses nothing: the state of the bucket is learned again.

Elsewhere: the content (`cluster.cluster_state`), the writer (`node.index_node`).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from millstream.cluster.cluster_state import BucketState
from millstream.runtime.files import write_atomically

__all__ = ["FOLLOWED", "find_learned", "keep_learned"]

_LOG = logging.getLogger(__name__)
FOLLOWED: Final = "followed"
_LEARNED: Final = "learned.json"


def find_learned(path: Path) -> list[tuple[Path, BucketState]]:
    """Return the buckets in a directory `followed`, which may be missing, and their folders."""
    found = []
    for file in sorted(path.glob(f"*/{_LEARNED}")):
        try:
            found.append((file.parent, msgspec.json.decode(file.read_bytes(), type=BucketState)))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            _LOG.warning("%s is not used: %s", file, error)
    return found


def keep_learned(path: Path, learned: BucketState) -> None:
    """Store the known state of a bucket in its folder; raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    write_atomically(path / _LEARNED, msgspec.json.encode(learned))
