"""Verifies indexes, each in its own process, also those that may have crashed a server.

LMDB trusts its pages: a damaged page may crash the process that reads it. Here it crashes the
child, and the index is reported as damaged. An index must not crash the index process again and
again. So each opening is counted in the file `opens` in its directory until it is closed. An index
that was opened several times and not closed is checked before it is opened again.

Invariants:
1. `check_indexes` changes nothing.

Elsewhere: what is checked (`views.core.index.index_check`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from millstream.errors import CorruptionError
from millstream.views.aio.indexing.index_store import LmdbIndexStore
from millstream.views.core.index.index_check import IndexCheck, check_index

__all__ = ["UNCLOSED_OPENS_MAX", "check_indexes", "main", "note_close", "note_open"]

UNCLOSED_OPENS_MAX: Final = 3
"""Openings without a close after which an index is checked."""
_OPENS: Final = "opens"


def check_indexes(path: Path) -> list[IndexCheck]:
    """Check all indexes of a directory that no process uses. Nothing is changed.

    Directories with a suffix were set aside: no server opens them.

    Args:
        path: has one directory per index, named by its signature; it need not exist.
    """
    folders = sorted(path.iterdir()) if path.is_dir() else []
    return [_checked(each) for each in folders if each.is_dir() and not each.suffix]


def note_open(folder: Path) -> None:
    """Count that an index is opened, and check it first if earlier openings were not closed.

    Blocks.

    Args:
        folder: the index's directory; made if missing.

    Raises:
        CorruptionError: `index_damaged`; it must not be opened.
        OSError: the directory cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    opens = _opens_of(folder)
    if opens >= UNCLOSED_OPENS_MAX:
        if damage := _checked(folder).damage:
            raise CorruptionError(damage, code="index_damaged")
        opens = 0
    (folder / _OPENS).write_text(f"{opens + 1}\n")


def note_close(folder: Path) -> None:
    """Note that an index was closed: nothing in it crashed this process."""
    (folder / _OPENS).unlink(missing_ok=True)


def _opens_of(folder: Path) -> int:
    try:
        return int((folder / _OPENS).read_text())
    except (OSError, ValueError):
        return 0


def _checked(folder: Path) -> IndexCheck:
    command = [
        sys.executable,
        "-m",
        "millstream.views.aio.indexing.index_check",
        os.fspath(folder),
    ]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if child.returncode == 0:
        return msgspec.json.decode(child.stdout, type=IndexCheck)
    return IndexCheck(
        folder.name,
        damage=f"reading the index in {folder} ended with {child.returncode}; "
        "remove that directory: it is rebuilt",
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
    """Check one index and print the result as JSON. This is the child's part."""
    sys.stdout.buffer.write(msgspec.json.encode(_check(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1])
