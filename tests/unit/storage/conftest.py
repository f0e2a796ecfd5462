"""A store in a temporary directory, and short ways to write to it."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millstream.model.position import FailoverEntry
from millstream.runtime.disk import OsDisk
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core.segment_log import LogSizes
from millstream.storage.core.store import FlushBatch, LogStore, StoredChange
from millstream.wire.frames import change_of, deletion, mutation, seqno_of

SMALL = LogSizes(2000, 8000, fill_from_bytes=4000, fill_bytes=1000)


@dataclass
class Directory:
    """A bucket directory; `write` gives seqnos and previous seqnos as the engine does."""

    path: Path
    sizes: LogSizes = SMALL
    partition_count: int = 4
    highs: dict[int, int] = field(default_factory=dict)
    entry_count: int = 0
    is_alone: bool = True
    begins_absent: bool = False

    def open(self) -> LogStore:
        self.store = LogStore.open(
            OsDisk(self.path / "log"),
            LmdbByIdMap(self.path / "byid", map_bytes=64 * 1024 * 1024),
            partition_count=self.partition_count,
            new_entry=self.new_entry,
            sizes=self.sizes,
            is_alone=self.is_alone,
            begins_absent=self.begins_absent,
        )
        self.highs = {p: state.high_seqno for p, state in enumerate(self.store.partitions)}
        return self.store

    def new_entry(self, seqno: int, last_branch: int) -> FailoverEntry:
        self.entry_count += 1
        return FailoverEntry(1000 + self.entry_count, seqno, last_branch + 1)

    def change(
        self, p: int, key: bytes, value: bytes | None, sidecar: bytes = b""
    ) -> StoredChange:
        before = self.store.find(p, key)
        self.highs[p] = seqno = self.highs[p] + 1
        if value is None:
            frame = deletion(p, key, seqno, 1, 1, 0)
        else:
            frame = mutation(p, key, value, seqno, 1, 1, 0, 0, 0)
        return StoredChange(frame, seqno_of(before.frame) if before else 0, b"lin", sidecar)

    def write(self, p: int, *pairs: tuple[bytes, bytes | None]) -> None:
        """One group commit with one batch."""
        self.store.withdraw_receipt()
        commit = self.store.encode([FlushBatch.of(p, [self.change(p, *pair) for pair in pairs])])
        self.store.append(commit)
        self.store.absorb(commit)

    def fill(self, count: int = 60) -> None:
        """Several segments of changes to twenty keys of two partitions."""
        for n in range(count):
            self.write(n % 2, (b"key%d" % (n % 20), b"%d" % n + bytes(150)))

    def crash(self) -> None:
        self.store.close()

    def segments(self) -> list[Path]:
        return sorted((self.path / "log").glob("*.seg"))

    def value(self, p: int, key: bytes) -> bytes | None:
        found = self.store.find(p, key)
        return None if found is None else change_of(found.frame).value

    def state(self, p: int, at: int = 2**60) -> dict[bytes, bytes]:
        """As of `at`, by scan."""
        skip = self.store.superseded(p, 0, at)
        cut = [
            change_of(change.frame)
            for chunk in self.store.scan(p, 0, at, skip)
            for change in chunk
        ]
        assert len({change.key for change in cut}) == len(cut)
        return {change.key: change.value for change in cut if not change.is_deleted}


@pytest.fixture
def directory(tmp_path):
    made = Directory(tmp_path / "bucket")
    yield made
    if hasattr(made, "store"):
        made.store.close()
