"""The indexes of a bucket, verified offline, each in a process of its own.

LMDB trusts its pages: one whose own header is damaged may end the process that reads it. That ends
the child here, and its index is reported as damaged.

Elsewhere: what is checked (`views.core.index_check`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from millstream.errors import CorruptionError
from millstream.views.aio.index_store import LmdbIndexStore
from millstream.views.core.index_check import IndexCheck, check_index

__all__ = ["check_indexes", "main"]


def check_indexes(path: Path) -> list[IndexCheck]:
    """Check all indexes of a directory that no process uses; changes nothing.

    Directories with an ending hold what was set aside: no server opens them.

    Args:
        path: with one directory per index, called by its signature; it need not exist.
    """
    folders = sorted(path.iterdir()) if path.is_dir() else []
    return [_checked(each) for each in folders if each.is_dir() and not each.suffix]


def _checked(folder: Path) -> IndexCheck:
    command = [sys.executable, "-m", "millstream.views.aio.index_check", os.fspath(folder)]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if child.returncode == 0:
        return msgspec.json.decode(child.stdout, type=IndexCheck)
    return IndexCheck(
        folder.name,
        damage=f"whoever reads the index in {folder} ends with {child.returncode}; remove that "
        "directory: it is built anew",
    )


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


def main(folder: str) -> None:
    """Check one index and print what was found as JSON: the child's part."""
    sys.stdout.buffer.write(msgspec.json.encode(_check(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1])
