"""What a bucket remembers beside the documents that a pipeline writes to it: its companions.

Keys and contents, `NAME` being that of the sink and `P` a partition of the source:

    _millstream:NAME:P       the head: state, entries or the numbers of the chunks that hold them
    _millstream:NAME:P:N     chunk N: entries

An entry is a version that was written and may still be undone: it says which documents a rollback
concerns. Together they are the partition's ring.

Invariants:
1. An entry is durable before its document is written: whatever the bucket may hold is named.
2. Of one key there may be several entries. Any of them makes it a key that a rollback concerns,
   because nobody knows which of its writes arrived before a crash.
3. A head names chunks only that are durable; chunk numbers are never used twice.
4. A head also names the chunks that it supersedes. They are removed with its batch; if that was
   cut off, by the next one, before it writes a head.

Elsewhere: when it is read and written (`sinks.bucket_target`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from millstream.pipelines.sinks.batch_order import Writer
from millstream.pipelines.sinks.repairing import StoredVersion
from millstream.upr.core.repair import LoadState

__all__ = ["COMPANION_PREFIX", "Head", "Ring", "chunk_key", "head_key"]

COMPANION_PREFIX: Final = "_millstream:"
CHUNK_ENTRIES: Final = 20_000
"""Entries of one document; their keys have 250 bytes at most."""


class Head(msgspec.Struct):
    """The content of a head.

    `writer`: in that of the bucket as a whole (`repairing.WHOLE`), the newest batch that wrote
    anything.
    """

    state: LoadState
    entries: list[StoredVersion] = []
    chunks: list[int] = []
    next_chunk: int = 0
    stale: list[int] = []
    writer: Writer | None = None


_HEADS: Final = msgspec.msgpack.Decoder(Head)
_ENTRIES: Final = msgspec.msgpack.Decoder(list[StoredVersion])


def head_key(name: str, partition: int) -> str:
    """Return the key of a head."""
    return f"{COMPANION_PREFIX}{name}:{partition}"


def chunk_key(name: str, partition: int, chunk: int) -> str:
    """Return the key of a chunk."""
    return f"{head_key(name, partition)}:{chunk}"


class Ring:
    """The companions of one partition in the course of a batch."""

    def __init__(self, head: Head | None = None, entries: Iterable[StoredVersion] = ()) -> None:
        self.state = None if head is None else head.state
        self.stale: list[int] = []
        """Chunks that the newest head supersedes."""
        self.writer = None if head is None else head.writer
        """What the next head names."""
        self.left: list[int] = [] if head is None else head.stale
        """Chunks that the head that was read supersedes: there still if its batch was cut off."""
        self._head = head or Head(LoadState())
        self._by_key: dict[str, list[StoredVersion]] = {}
        self._added: list[StoredVersion] = []
        self._has_dropped = False
        for entry in (*self._head.entries, *entries):
            self._by_key.setdefault(entry.key, []).append(entry)

    @classmethod
    def decode(cls, head: bytes) -> Head:
        """Return a head; raises `msgspec.DecodeError`."""
        return _HEADS.decode(head)

    @classmethod
    def decode_chunk(cls, chunk: bytes) -> list[StoredVersion]:
        """Return the entries of a chunk; raises `msgspec.DecodeError`."""
        return _ENTRIES.decode(chunk)

    def newest(self, keys: Collection[str]) -> dict[str, StoredVersion]:
        """Return the highest version of each key that has entries."""
        return {
            key: max(self._by_key[key], key=lambda entry: (entry.version, entry.load))
            for key in keys
            if key in self._by_key
        }

    def keys_above(self, branch: int, seqno: int) -> list[str]:
        """Return the keys that have an entry of a lower branch and a higher seqno."""
        return [
            key
            for key, entries in self._by_key.items()
            if any(entry.branch < branch and entry.seqno > seqno for entry in entries)
        ]

    def keys_of_load(self, load: int) -> set[str]:
        """Return the keys that have an entry of this load or a later one."""
        return {
            key
            for key, entries in self._by_key.items()
            if any(entry.load >= load for entry in entries)
        }

    def add(self, entries: Sequence[StoredVersion]) -> None:
        """Name what is about to be written."""
        for entry in entries:
            held = self._by_key.setdefault(entry.key, [])
            if entry not in held:
                held.append(entry)
                self._added.append(entry)

    def drop(self, seqno: int) -> int:
        """Forget entries at or below; return the highest seqno forgotten, 0 for none."""
        highest = 0
        for key, entries in list(self._by_key.items()):
            kept = [entry for entry in entries if entry.seqno > seqno]
            if len(kept) < len(entries):
                highest = max(highest, *(e.seqno for e in entries if e.seqno <= seqno))
                self._has_dropped = True
                if kept:
                    self._by_key[key] = kept
                else:
                    del self._by_key[key]
        return highest

    def encode(self, state: LoadState) -> tuple[bytes | None, dict[int, bytes]]:
        """Return the head to be written, None if it is there already, and new chunks by number."""
        head = self._head
        is_same = state == self.state and self.writer == head.writer
        if is_same and not self._added and not self._has_dropped:
            return None, {}
        entries = [entry for held in self._by_key.values() for entry in held]
        chunks: dict[int, bytes] = {}
        after = Head(state, next_chunk=head.next_chunk, writer=self.writer)
        if len(entries) <= CHUNK_ENTRIES:
            after.entries = entries
        else:
            # Without a loss what is there stays, so that a long load does not write it each time.
            kept = [] if self._has_dropped or head.entries else head.chunks
            entries = self._added if kept else entries
            for at in range(0, len(entries), CHUNK_ENTRIES):
                chunks[after.next_chunk] = msgspec.msgpack.encode(entries[at : at + CHUNK_ENTRIES])
                after.next_chunk += 1
            after.chunks = [*kept, *chunks]
        after.stale = [chunk for chunk in head.chunks if chunk not in after.chunks]
        self.stale = after.stale
        self.state, self._head = state, after
        self._added, self._has_dropped = [], False
        return msgspec.msgpack.encode(after), chunks
