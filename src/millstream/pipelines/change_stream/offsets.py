"""The offsets that Spark logs: for each partition a position, its branch, and how it is read.

    {"bucket": "flights", "bucket_uuid": "<hex>", "keyPrefix": "", "v": 1,
     "p": {"0": [uuid, seqno, snap_start, snap_end, branch, lease, load, purge(, rb)], ...}}

`keyPrefix` is the option of the query, absent where it is not known. `waits` may follow: how often
in a row nothing could be asked. It is no part of the place. `uuid` is 12 hex digits. `lease` and
`purge` may be null. `rb` is left out where there is none.

Invariants:
1. Equal offsets have equal text: keys are sorted, numbers are plain integers. Spark compares
   offsets as text only.
2. `branch` only grows within a partition; branch 0 stands for "nothing was ever read".
3. `lease_id` is never reused, so that going back always makes a text that was not logged before.
4. `load` grows by one whenever reading begins at 0 again after seqno > 0.
5. `rollback_to` is set in every entry whose branch or load differs from the one before it: the
   seqno that state must be rolled back to, and from which reading goes on.

Elsewhere: how entries follow one another (`planner`), what is read between two (`ranges`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from millstream.errors import UsageError

__all__ = [
    "OFFSET_VERSION",
    "Offset",
    "OffsetEntry",
    "lag_between",
    "offset_from_json",
    "offset_to_json",
]

OFFSET_VERSION: Final = 1
_UUID_DIGITS: Final = 12


class OffsetEntry(NamedTuple):
    """One partition's part of an offset; the default is the place before the first change.

    `lease_id`: the range that ends here is read under this lease. `purge_seqno`: the fifth member
    of the position, set only inside the first snapshot of a load.
    """

    uuid: int = 0
    seqno: int = 0
    snap_start: int = 0
    snap_end: int = 0
    branch: int = 0
    lease_id: int | None = None
    load: int = 1
    purge_seqno: int | None = None
    rollback_to: int | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the reader holds a complete snapshot, confirmed."""
        return self.seqno == self.snap_start == self.snap_end


class Offset(NamedTuple):
    """A whole offset; `entries` maps partition ids. `key_prefix` None: not known."""

    bucket: str
    bucket_uuid: str
    entries: Mapping[int, OffsetEntry]
    key_prefix: str | None = None

    def entry(self, partition_id: int) -> OffsetEntry:
        """Return the entry of a partition; one that the offset lacks was never read."""
        return self.entries.get(partition_id, OffsetEntry())


def lag_between(read: Offset, latest: Offset) -> dict[int, int]:
    """Return how many seqnos each partition of `latest` is beyond what was read of it."""
    return {
        p: max(0, entry.seqno - read.entry(p).seqno) for p, entry in sorted(latest.entries.items())
    }


def offset_to_json(offset: Offset) -> dict[str, Any]:
    """Return the form that Spark logs; its key order is stable."""
    scope = {} if offset.key_prefix is None else {"keyPrefix": offset.key_prefix}
    return {
        "bucket": offset.bucket,
        "bucket_uuid": offset.bucket_uuid,
        **scope,
        "p": {str(p): _entry_to_json(offset.entries[p]) for p in sorted(offset.entries)},
        "v": OFFSET_VERSION,
    }


def offset_from_json(form: object) -> Offset:
    """Reverse `offset_to_json`.

    Raises:
        UsageError: `bad_offset`: not an offset of this source, or of a version it does not know.
    """
    if not isinstance(form, Mapping):
        raise _bad(f"expected a JSON object, got {form!r:.80}")
    version = form.get("v")
    if version != OFFSET_VERSION:
        raise _bad(
            f"version {version!r} is not known, only {OFFSET_VERSION}; read this checkpoint "
            "with the release that wrote it, or begin a new one"
        )
    bucket, bucket_uuid, entries = form.get("bucket"), form.get("bucket_uuid"), form.get("p")
    if not (isinstance(bucket, str) and isinstance(bucket_uuid, str)):
        raise _bad("bucket and bucket_uuid must be text")
    if not isinstance(entries, Mapping):
        raise _bad("p must map partitions to entries")
    prefix = form.get("keyPrefix")
    if not (prefix is None or isinstance(prefix, str)):
        raise _bad("keyPrefix must be text")
    return Offset(bucket, bucket_uuid, dict(_entries_from_json(entries.items())), prefix)


def _entry_to_json(entry: OffsetEntry) -> list[str | int | None]:
    form: list[str | int | None] = [f"{entry.uuid:0{_UUID_DIGITS}x}", *entry[1:8]]
    return form if entry.rollback_to is None else [*form, entry.rollback_to]


def _entries_from_json(items: Iterable[tuple[Any, Any]]) -> Iterable[tuple[int, OffsetEntry]]:
    for name, form in items:
        if not (isinstance(name, str) and name.isdecimal()):
            raise _bad(f"{name!r} is no partition")
        try:
            yield int(name), _entry_from_json(form)
        except (TypeError, ValueError) as error:
            raise _bad(f"partition {name}: {error}") from error


def _entry_from_json(form: Any) -> OffsetEntry:
    if not isinstance(form, list) or len(form) not in (8, 9):
        raise ValueError(f"expected 8 or 9 members, got {form!r:.80}")
    uuid, *numbers = form
    rollback_to = numbers[7] if len(numbers) == 8 else None
    needed = [*numbers[:4], numbers[5]]
    allowed = [number for number in (numbers[4], numbers[6], rollback_to) if number is not None]
    if any(type(number) is not int or number < 0 for number in [*needed, *allowed]):
        raise ValueError(f"expected whole numbers, got {form!r:.120}")
    entry = OffsetEntry._make([int(uuid, 16), *numbers[:7], rollback_to])
    if not entry.snap_start <= entry.seqno <= entry.snap_end:
        raise ValueError(f"seqno {entry.seqno} is outside its snapshot")
    return entry


def _bad(reason: str) -> UsageError:
    return UsageError(f"not an offset of the millstream source: {reason}", code="bad_offset")
