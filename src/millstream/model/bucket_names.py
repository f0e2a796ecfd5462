"""Validation of names, partition counts and memory quotas of buckets.

Invariants:
1. A name never becomes a path: directories are named by the bucket's uuid.
2. A name may be used in a URL path with `/`, `%`, `+` and `$` percent-encoded. It never begins
   with `_`, which is reserved for administration, except `_replicator`.

Elsewhere: the buckets (`databases.buckets`).
Source: the name rules of CouchDB (lower case, digits, `_$()+-/`) and Couchbase (both cases,
digits, `_-.%`), combined.
"""

from __future__ import annotations

import re
from typing import Final

from millstream.errors import UsageError
from millstream.model.limits import (
    BUCKET_NAME_BYTES_MAX,
    MEMORY_QUOTA_BYTES_MIN,
    PARTITIONS_MAX,
)

__all__ = [
    "REPLICATOR",
    "checked_bucket_name",
    "checked_memory_quota",
    "checked_partition_count",
]

REPLICATOR: Final = "_replicator"
"""The database whose documents are jobs."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_$()+/.%-]*")


def checked_bucket_name(name: str) -> str:
    """Return the name if it is a valid bucket name.

    Raises:
        UsageError: `bad_bucket_name`.
    """
    if name == REPLICATOR:
        return name
    if len(name) > BUCKET_NAME_BYTES_MAX or not _NAME.fullmatch(name):
        shown = name[:40] + "..." if len(name) > 40 else name
        raise UsageError(
            f"bucket name {shown!r}: 1 to {BUCKET_NAME_BYTES_MAX} characters, beginning with a "
            "letter or digit, of letters, digits and _ $ ( ) + / . % -",
            code="bad_bucket_name",
        )
    return name


def checked_partition_count(count: int) -> int:
    """Return the partition count if it is valid.

    Raises:
        UsageError: `bad_partitions`.
    """
    if not 1 <= count <= PARTITIONS_MAX or count & (count - 1):
        raise UsageError(
            f"{count} partitions: must be a power of two from 1 to {PARTITIONS_MAX}",
            code="bad_partitions",
        )
    return count


def checked_memory_quota(quota_bytes: int) -> int:
    """Return the memory quota if it is valid.

    Raises:
        UsageError: `bad_memory_quota`.
    """
    if quota_bytes < MEMORY_QUOTA_BYTES_MIN:
        raise UsageError(
            f"a memory quota of {quota_bytes} bytes: must be at least {MEMORY_QUOTA_BYTES_MIN}",
            code="bad_memory_quota",
        )
    return quota_bytes
