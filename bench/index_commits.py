"""Commits of an index in processor time: first build, changes with their back-index, rollback.

    index_commits.py [DOCUMENTS] [FOLDER]

How it measures:
1. A real index: LMDB with its syncs, one tree with _count and _sum, 64 partitions, documents in
   random order, 1,000 per commit. A document has one row: of the same key with another value, or
   of another key (its old row goes, a new one comes, its entry in the back-index changes).
2. Mapping is not part of it: rows are made before the clock starts.
3. Processor time of the process with what the kernel does for it, best of `ROUNDS`; `yardstick` is
   a fixed loop of Python in the same run. Rollback and snapshot are in milliseconds of wall time,
   median.

Elsewhere: the tree alone (trees.py), the whole engine of views (views.py).
"""

import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from millstream.model.position import FailoverEntry, Position
from millstream.views.aio.indexing.index_store import LmdbIndexStore
from millstream.views.core.collation import encode_key
from millstream.views.core.index.back_index import back_key, back_value
from millstream.views.core.index.header import DocumentRows, Judged, PartRead, Row
from millstream.views.core.index.index import Index, IndexShape
from millstream.views.core.reduce.reductions import ViewReducer
from millstream.views.core.rows import row_key, row_value

DOCUMENTS = 200_000
PARTITIONS = 64
BATCH = 1000
BATCHES = 10
ROUNDS = 5
KEYS = 100_000
LOG = (FailoverEntry(7, 0, 1),)
JUDGED = {partition: Judged(LOG, 1 << 40) for partition in range(PARTITIONS)}
REDUCES = ("_count", "_sum")
SHAPE = IndexShape("bench", "bench", (ViewReducer(REDUCES),), (REDUCES,))


def closed(seqno: int) -> Position:
    return Position(7, seqno, seqno, seqno) if seqno else Position()


def doc_id(number: int) -> bytes:
    return b"flight-%08d-%04d" % (number * 2654435761 % 10**8, number % 7919)


def row(key: int, value: int) -> Row:
    return (0, encode_key(["AA", key]), b'["AA",%d]' % key, b"%d" % value)


class Bench:
    def __init__(self, folder: Path, documents: int) -> None:
        self.rng = random.Random(1)
        self.keys = [self.rng.randrange(KEYS) for _ in range(documents)]
        self.store = LmdbIndexStore(folder, SHAPE.signature, SHAPE.collation)
        self.index = Index(self.store, SHAPE, 0)
        self.index.set_states(range(PARTITIONS), [], 0)
        self.fence = self.index.take_over("bench", 0)
        self.seqno = self.now_ms = 0

    def load(self) -> float:
        back, tree = [], []
        for number, key in enumerate(self.keys):
            _, ekey, json_key, json_value = row(key, number % 1000)
            name, partition = doc_id(number), number % PARTITIONS
            back.append((back_key(partition, name), partition, back_value({0: [ekey]})))
            tree.append((row_key(ekey, name), partition, row_value([(json_key, json_value)])))
        back.sort()
        tree.sort()
        self.seqno = 1
        parts = {p: PartRead(closed(0), closed(1), LOG) for p in range(PARTITIONS)}
        spent = timed(lambda: self.index.load(self.fence, parts, JUDGED, back, [tree], 1))
        rows = len(tree)
        back.clear()
        tree.clear()
        gc.collect()
        gc.freeze()  # as in the index process
        gc.set_threshold(50_000, 20, 100)
        return rows / spent

    def changes(self, *, is_key_new: bool) -> float:
        spent = 0.0
        for _ in range(BATCHES):
            parts = self.parts(is_key_new)
            self.now_ms += 100
            spent += timed(lambda: self.index.publish(self.fence, parts, JUDGED, self.now_ms))  # noqa: B023
        return BATCH * BATCHES / spent

    def parts(self, is_key_new: bool) -> dict[int, PartRead]:
        found: list[list[DocumentRows]] = [[] for _ in range(PARTITIONS)]
        for number in self.rng.sample(range(len(self.keys)), BATCH):
            if is_key_new:
                self.keys[number] = self.rng.randrange(KEYS)
            emitted = [row(self.keys[number], self.rng.randrange(1000))]
            partition = number % PARTITIONS
            found[partition].append(DocumentRows(partition, doc_id(number), emitted))
        start, end = closed(self.seqno), closed(self.seqno + 1)
        self.seqno += 1
        return {p: PartRead(start, end, LOG, 0, rows) for p, rows in enumerate(found)}

    def rollback_ms(self) -> float:
        """Of one partition a change is lost: back to the root before it."""
        self.index.publish(self.fence, self.parts(True), JUDGED, self.now_ms)
        log = (FailoverEntry(8, self.seqno - 1, 2), *LOG)
        began = time.perf_counter()
        done = self.index.roll_back({0: Judged(log, 1 << 40)}, self.now_ms)
        spent = time.perf_counter() - began
        assert done.to_commit is not None
        self.seqno -= 1
        return spent * 1000

    def snapshot_ms(self) -> float:
        began = time.perf_counter()
        with self.index.snapshot(self.now_ms) as snapshot:
            snapshot.tree(0).reduce()
        return (time.perf_counter() - began) * 1000

    def compact(self) -> tuple[float, int, int]:
        before = self.store.sizes().file_bytes
        spent = 0.0
        is_done = False
        while not is_done:
            began = time.process_time()
            is_done = self.index.compact_step()
            spent += time.process_time() - began
        after = self.store.sizes().file_bytes
        return after / spent / 1e6, before >> 20, after >> 20


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def yardstick() -> float:
    return min(timed(lambda: sum(n * n for n in range(1_000_000))) for _ in range(ROUNDS))


def main() -> None:
    documents = int(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENTS
    where = sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        bench = Bench(Path(folder) / "index", documents)
        print(f"documents {documents:,}, yardstick {yardstick() * 1000:.1f} ms")
        print(f"first build          {bench.load():10,.0f} rows/s")
        for is_key_new, name in ((False, "values change"), (True, "keys change")):
            best = max(bench.changes(is_key_new=is_key_new) for _ in range(ROUNDS))
            print(f"{name:<20} {best:10,.0f} documents/s")
        spent = statistics.median(bench.rollback_ms() for _ in range(ROUNDS))
        print(f"rollback             {spent:10.2f} ms")
        spent = statistics.median(bench.snapshot_ms() for _ in range(ROUNDS))
        print(f"snapshot, total      {spent:10.2f} ms")
        rate, before, after = bench.compact()
        print(f"compaction           {rate:10.0f} MB/s, {before} MiB to {after}")
        bench.store.close()


if __name__ == "__main__":
    main()
