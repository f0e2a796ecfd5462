"""A member's log in memory: entries in LSN order, with holes where a body was found damaged.

Invariants:
1. The hashes are one chain. A hole keeps its hash, so its content is known exactly.
2. Nothing at or below `base` is here: a snapshot stands for it.

Elsewhere: what is durable of it (`storage`), whose log counts (`log_choice`), files (the journal).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.vsr.core.entries import GENESIS, HEADER_BYTES, Entry, Header, Link

__all__ = ["Log", "Mark", "size_of", "size_of_all"]


class Mark(NamedTuple):
    """What a member reports of one place of its log: the hash, and whether the body is whole."""

    hash: bytes
    whole: bool


def size_of(entry: Entry) -> int:
    """Return the size of a mark in a message, in bytes."""
    return HEADER_BYTES + len(entry.body)


def size_of_all(entries: Sequence[Entry]) -> int:
    """Return the size of these marks in a message, in bytes."""
    return HEADER_BYTES * len(entries) + sum([len(body) for _, body in entries])


class Log:
    """Entries above `base`; LSNs are the first argument everywhere."""

    def __init__(self, base: Link = GENESIS) -> None:
        self.base = base
        """The end of what a snapshot stands for."""
        self._headers: list[Header] = []
        self._entries: list[Entry | None] = []
        self._holes: list[int] = []
        self.op_lsn = base.lsn
        """The last LSN."""
        self.head = base
        """What the next entry hangs on."""
        self.last: Header | None = None
        """The header at the end."""
        self.size = 0
        """Bytes of all entries above `base`, as in a message."""

    @property
    def holes(self) -> Sequence[int]:
        """The LSNs without a body, ascending."""
        return self._holes

    @property
    def whole_lsn(self) -> int:
        """Up to this LSN nothing is missing."""
        return self._holes[0] - 1 if self._holes else self.op_lsn

    def hash_at(self, lsn: int) -> bytes | None:
        """Return the hash of the entry at an LSN, None if it is not known here."""
        if lsn == self.base.lsn:
            return self.base.hash
        if self.base.lsn < lsn <= self.op_lsn:
            return self._headers[lsn - self.base.lsn - 1].hash
        return None

    def link_at(self, lsn: int) -> Link | None:
        """Return the link that follows the entry at an LSN, None if it is not known here."""
        if lsn == self.base.lsn:
            return self.base
        if self.base.lsn < lsn <= self.op_lsn:
            return self._headers[lsn - self.base.lsn - 1].link
        return None

    def entry_at(self, lsn: int) -> Entry | None:
        """Return the entry at an LSN if it is here and whole."""
        if self.base.lsn < lsn <= self.op_lsn:
            return self._entries[lsn - self.base.lsn - 1]
        return None

    def append(self, entry: Entry) -> None:
        """Add an entry at the end. It must fit there."""
        header = entry.header
        assert header.follows(self.head)
        self._put(header, entry)

    def extend(self, entries: Sequence[Entry], end: Link) -> None:
        """Add entries at the end.

        They must fit there. `end`: the log's end after them (`check_chain`).
        """
        headers = [header for header, _ in entries]
        self._headers += headers
        self._entries += entries
        self.size += _size_of_all(headers)
        self.head, self.op_lsn, self.last = end, end.lsn, headers[-1]

    def append_hole(self, header: Header) -> None:
        """Add a header whose body is damaged at the end."""
        assert header.follows(self.head)
        self._put(header, None)
        self._holes.append(header.lsn)

    def _put(self, header: Header, entry: Entry | None) -> None:
        self.head, self.op_lsn, self.last = header.link, header.lsn, header
        self.size += HEADER_BYTES + header.body_length
        self._headers.append(header)
        self._entries.append(entry)

    def _find_end(self) -> None:
        self.last = self._headers[-1] if self._headers else None
        self.head = self.base if self.last is None else self.last.link
        self.op_lsn = self.head.lsn

    def replace_above(self, lsn: int, suffix: Iterable[Entry]) -> None:
        """Keep the log up to `lsn`, and put `suffix` behind it."""
        assert self.base.lsn <= lsn <= self.op_lsn
        kept = lsn - self.base.lsn
        self.size -= _size_of_all(self._headers[kept:])
        del self._headers[kept:], self._entries[kept:]
        self._holes = [hole for hole in self._holes if hole <= lsn]
        self._find_end()
        for entry in suffix:
            self.append(entry)

    def begin_at(self, base: Link) -> None:
        """Forget the log. A snapshot stands for everything up to `base`."""
        self.base, self.size = base, 0
        self._headers, self._entries, self._holes = [], [], []
        self._find_end()

    def drop_prefix(self, lsn: int) -> None:
        """Forget the log up to `lsn`. A snapshot stands for it."""
        dropped = lsn - self.base.lsn
        assert 0 <= dropped <= len(self._headers)
        if dropped:
            link = self._headers[dropped - 1].link
            self.size -= _size_of_all(self._headers[:dropped])
            del self._headers[:dropped], self._entries[:dropped]
            self._holes = [hole for hole in self._holes if hole > lsn]
            self.base = link
            self._find_end()

    def after(self, lsn: int, count_max: int, bytes_max: int) -> list[Entry]:
        """Return entries directly behind `lsn`, up to a hole or a limit.

        At least one if any is here.
        """
        found: list[Entry] = []
        size, begin = 0, lsn - self.base.lsn
        for entry in self._entries[begin : begin + count_max] if begin >= 0 else ():
            if entry is None:
                break
            size += HEADER_BYTES + len(entry.body)
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    def ending_at(self, lsn: int, floor_lsn: int, count_max: int, bytes_max: int) -> list[Entry]:
        """Return the entries above `floor_lsn` that end at `lsn`. Limits cut the older ones."""
        found: list[Entry] = []
        size = 0
        while lsn - len(found) > floor_lsn and len(found) < count_max:
            entry = self.entry_at(lsn - len(found))
            if entry is None or (found and (size := size + size_of(entry)) > bytes_max):
                break
            found.append(entry)
        return found[::-1]

    def marks(self, lsn: int) -> tuple[Mark, ...]:
        """Return the marks of this log above `lsn`."""
        start = max(0, lsn - self.base.lsn)
        return tuple(
            Mark(header.hash, entry is not None)
            for header, entry in zip(self._headers[start:], self._entries[start:], strict=True)
        )


def _size_of_all(headers: Sequence[Header]) -> int:
    return HEADER_BYTES * len(headers) + sum([header.body_length for header in headers])
