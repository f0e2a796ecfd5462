"""The indexes of a bucket, verified offline.

Elsewhere: what is checked (`views.core.index_check`).
"""

from __future__ import annotations

from pathlib import Path

from millstream.errors import CorruptionError
from millstream.views.aio.index_store import LmdbIndexStore
from millstream.views.core.index_check import IndexCheck, check_index

__all__ = ["check_indexes"]


def check_indexes(path: Path) -> list[IndexCheck]:
    """Check all indexes of a directory that no process uses; changes nothing.

    Directories with an ending hold what was set aside: no server opens them.

    Args:
        path: with one directory per index, called by its signature; it need not exist.
    """
    folders = sorted(path.iterdir()) if path.is_dir() else []
    return [_check(each) for each in folders if each.is_dir() and not each.suffix]


def _check(folder: Path) -> IndexCheck:
    try:
        store = LmdbIndexStore.unchanged(folder)
    except CorruptionError as error:
        return IndexCheck(folder.name, damage=str(error))
    if store is None:
        return IndexCheck(folder.name)
    try:
        return check_index(store, folder.name)
    finally:
        store.close()
