"""Checks the entries of a store of local documents against their digest, in a separate process.

LMDB trusts its pages: a damaged page may crash the process that reads it. So a store without a
valid checksum of the whole file is first read by a child: `python -m
millstream.kv.aio.documents.local_scan DIR`. The child changes nothing, and prints why the store is
damaged, or nothing.

Elsewhere: the entries, and the caller (`local_store`).
"""

from __future__ import annotations

import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Final

import lmdb

__all__ = [
    "DIGEST_KEY", "OWNER_KEY", "as_digest", "digest_of", "is_readable", "scan_apart", "weight",
]  # fmt: skip

DIGEST_KEY: Final = b"d"
OWNER_KEY: Final = b"b"
_DIGEST_BYTES: Final = 16
_SCAN_S_MAX: Final = 300.0
_ALTERED: Final = "its entries are not what was written"
_NO_DIGEST: Final = "it has no digest"


def weight(key: bytes, value: bytes) -> int:
    """Return what an entry adds to the digest."""
    hashed = blake2b(len(key).to_bytes(2) + key, digest_size=_DIGEST_BYTES)
    hashed.update(value)
    return int.from_bytes(hashed.digest())


def as_digest(total: int) -> bytes:
    """Return the digest of entries with this sum of weights."""
    return (total % (1 << 8 * _DIGEST_BYTES)).to_bytes(_DIGEST_BYTES)


def digest_of(transaction: lmdb.Transaction) -> bytes:
    """Return the digest of all entries."""
    total = 0
    with transaction.cursor() as cursor:
        for key, value in cursor:
            if key != DIGEST_KEY:
                total += weight(bytes(key), bytes(value))
    return as_digest(total)


def is_readable(path: Path) -> bool:
    """Return whether all entries of a store can be read, whatever their content. Blocks."""
    return scan_apart(path)[1] in ("", _ALTERED)


def scan_apart(path: Path) -> tuple[bool, str]:
    """Return whether a store has a digest, and why its entries do not match it. Blocks."""
    command = [sys.executable, "-m", __name__, str(path)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=_SCAN_S_MAX,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return True, f"it was not read within {_SCAN_S_MAX:g} s"
    if done.returncode:
        return True, "its pages are damaged"
    said = done.stdout.decode().strip()
    return said != _NO_DIGEST, "" if said == _NO_DIGEST else said


def _scan(path: Path) -> str:
    try:
        with lmdb.open(str(path), readonly=True, lock=False) as environment:
            pages = environment.info()["last_pgno"] + 1
            if (path / "data.mdb").stat().st_size < pages * environment.stat()["psize"]:
                return f"it is shorter than its {pages} pages"
            with environment.begin() as transaction:
                kept = transaction.get(DIGEST_KEY)
                if kept == digest_of(transaction):
                    return ""
                return _NO_DIGEST if kept is None else _ALTERED
    except (lmdb.Error, OSError) as error:
        return str(error)


if __name__ == "__main__":
    sys.stdout.write(_scan(Path(sys.argv[1])))
