r"""Small TOML files of the node: with a format number and a checksum of the whole file.

    sealed = true\n ... # crc32 0badcafe\n

The last line is a comment to TOML; its checksum covers all bytes before it. A file of an older
version has neither of the two lines.

Invariants:
1. Any change to a sealed file is detected as damage, also if it is still valid TOML.

Elsewhere: their content (`data_directory.ownership`, `data_directory.inventory`,
`data_directory.bucket_files`).
"""

from __future__ import annotations

import re
import time
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Final
from zlib import crc32

from millstream.errors import CorruptionError, UsageError

__all__ = ["FORMAT", "as_text", "read_toml", "sealed", "utc_now"]

FORMAT: Final = 1
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_SEALED: Final = "sealed = true\n"
_CHECKSUM: Final = re.compile(rb"# crc32 ([0-9a-f]{8})\n\Z")


def utc_now() -> str:
    """Return the present time as in TOML and JSON, to the second."""
    return time.strftime(_TIME, time.gmtime())


def as_text(value: object) -> str:
    """Return a value read from TOML as it was written; times as `utc_now` returns them."""
    return value.strftime(_TIME) if isinstance(value, datetime) else str(value)


def sealed(content: str) -> bytes:
    """Return the bytes of a file with this content."""
    data = (_SEALED + content).encode()
    return b"%s# crc32 %08x\n" % (data, crc32(data))


def read_toml(path: Path, hint: str = "") -> dict[str, object]:
    """Read a small TOML file; its `sealed` says whether it has a checksum.

    Args:
        path: of the file.
        hint: end of an error message: how to continue.

    Raises:
        CorruptionError: `bad_file`.
        UsageError: `newer_format`.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        content = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorruptionError(f"{path} is damaged: {error}{hint}", code="bad_file") from error
    checksum = _CHECKSUM.search(data)
    if checksum is not None or "sealed" in content:
        body = data[: checksum.start()] if checksum is not None else b""
        if checksum is None or checksum[1] != b"%08x" % crc32(body) or "sealed" not in content:
            raise CorruptionError(
                f"{path} is damaged: its checksum does not match{hint}", code="bad_file"
            )
    written = content.get("format")
    if not isinstance(written, int):
        raise CorruptionError(f"{path} is damaged: it names no format{hint}", code="bad_file")
    if written > FORMAT:
        raise UsageError(
            f"{path} has format {written}; this Millstream knows formats up to {FORMAT}: "
            "use the newer Millstream that wrote it",
            code="newer_format",
        )
    return content
