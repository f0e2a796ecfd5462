"""The pool file of a node, stored twice: `pool` and `pool.copy` in the directory of coordination.

Invariants:
1. `pool` is replaced first, then its copy, each durably. Content counts as stored only in both. So
   later damage to one of them restores nothing older.
2. If both are whole, `pool` is in force. The next start writes the other one again.

Elsewhere: its format (`core.pool.file_format`), when it is written (`aio.pool_runner`).
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Final

from millstream.coordination.aio.node_file import directory_unusable
from millstream.coordination.core.pool.file_format import decode_node_file
from millstream.errors import CorruptionError
from millstream.runtime.files import write_atomically

__all__ = ["POOL_FILES", "keep_pool_file", "mend_pool_file", "read_pool_file"]

_LOG = logging.getLogger(__name__)
POOL_FILES: Final = ("pool", "pool.copy")


def keep_pool_file(directory: Path, content: bytes) -> None:
    """Make the content durable in both files. Blocks, raises OSError."""
    for name in POOL_FILES:
        write_atomically(directory / name, content)


def read_pool_file(directory: Path) -> tuple[bytes | None, int]:
    """Return what the pool kept, None if nothing yet, and how many files do not say so. Blocks.

    Raises:
        CorruptionError: `bad_pool_file`: there are files, and none is whole.
        UsageError: `newer_format`.
        OSError: a file cannot be read, though the disk may have it.
    """
    found = [_read(directory / name) for name in POOL_FILES]
    whole = next((content for content in found if content and _is_whole(content)), None)
    if whole is None:
        for content in found:
            if content is not None:
                decode_node_file(content)
        return None, 0
    return whole, sum(content != whole for content in found)


def mend_pool_file(directory: Path) -> bytes | None:
    """Return what the pool kept, which both files say from now on; errors as `read_pool_file`.

    Without space, or if it cannot be written, one file has to do until the next change. What
    cannot be read is `directory_unusable`.
    """
    try:
        content, others = read_pool_file(directory)
    except OSError as error:
        raise directory_unusable(directory, error) from error
    if content is not None and others:
        _LOG.error("one copy of the node's pool file in %s was damaged or older", directory)
        try:
            keep_pool_file(directory, content)
        except OSError as error:
            _LOG.error("the copy cannot be rewritten: %s", error)
    return content


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""  # it is there, and the disk cannot give it


def _is_whole(content: bytes) -> bool:
    try:
        decode_node_file(content)
    except CorruptionError:
        return False
    return True
