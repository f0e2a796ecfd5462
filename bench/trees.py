"""The index tree alone, in processor time: loading, changing, scanning, reducing.

    trees.py [ROWS]

How it measures:
1. Nodes are in LMDB, in a folder of its own, without syncs: disks are not what is compared here.
2. Rows are like those of a view: keys of some 50 bytes in the order of a value, partitions mixed,
   values of some 40 bytes. The reducer adds up lengths of values at C speed: what reduce functions
   cost on top is theirs.
3. Processor time of the process, best of `ROUNDS`; `yardstick` is a fixed loop of Python in the
   same run, so that figures of different machines can be compared.

Elsewhere: the whole engine of views (views.py).
"""

import gc
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lmdb

from millstream.trees.core.nodes import NodeCache
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import Leaf, Operation, Root, Row
from millstream.trees.core.writer import TreeWriter

ROWS = 500_000
PARTITIONS = 64
ROUNDS = 3
CACHE_BYTES = 1 << 30
RANGES = 200
WIDE = 13  # bytes of a key that make a wide group
MASKS = {"all_but_one": (1 << PARTITIONS) - 1 & ~(1 << 5), "half": 0x5555555555555555, "one": 1}
Figures = dict[str, float]


class Lengths:
    """Adds up the lengths of values."""

    def reduce(self, leaves: Sequence[Leaf]) -> list[bytes]:
        return [b"%d" % sum(map(len, leaf.values)) for leaf in leaves]

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        return [b"%d" % sum(map(int, group)) for group in groups]


class Store:
    """Nodes in LMDB, one transaction per commit."""

    def __init__(self, folder: str) -> None:
        self.environment = lmdb.open(folder, map_size=1 << 34, sync=False, metasync=False)
        self.transaction = self.environment.begin(buffers=False)
        self.next_number = 1

    def read(self, number: int) -> bytes:
        return self.transaction.get(number.to_bytes(8, "big"))  # type: ignore[no-any-return]

    def put(self, nodes: dict[int, bytes]) -> None:
        self.commit(nodes, ())

    def commit(self, nodes: dict[int, bytes], freed: Iterable[int]) -> None:
        self.transaction.abort()
        with self.environment.begin(write=True) as transaction:
            pairs = ((number.to_bytes(8, "big"), data) for number, data in nodes.items())
            transaction.cursor().putmulti(pairs, append=True)
            for number in freed:
                transaction.delete(number.to_bytes(8, "big"))
        self.transaction = self.environment.begin(buffers=False)


def row(number: int, version: int = 0) -> Row:
    key = b"\x05%016d\x00document-%012d\x00\x00\x15" % (number * 37, number)
    value = b'\x92\xaa"%016d"\xaa{"n":%08d,"v":%09d}' % (number * 37, number, version)
    return key, number * 7919 % PARTITIONS, value


def timed(act: Callable[[], Any], rounds: int = ROUNDS) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        act()
        best = min(best, time.process_time() - began)
    return best


def yardstick() -> float:
    def loop() -> None:
        total = 0
        for number in range(1_000_000):
            total += number & 7

    return timed(loop)


def load(store: Store, rows: int, figures: Figures) -> Root:
    listed = [row(number) for number in range(rows)]
    seconds = timed(lambda: TreeWriter(store, 1, lambda _: None).load(listed, Lengths()))
    figures["load_rows_s"] = rows / seconds
    writer = TreeWriter(store, store.next_number, store.put)
    root = writer.load(listed, Lengths())
    assert root is not None
    store.put(writer.written)
    store.next_number = writer.next_number
    figures["rows_per_node"] = rows / store.environment.stat()["entries"]
    figures["disk_bytes_per_row"] = store.environment.stat()["overflow_pages"] * 4096 / rows
    return root


def apply(
    store: Store, root: Root | None, count: int, rows: int, commits: int, cache: NodeCache
) -> tuple[Root | None, float, float]:
    """Return the root, and seconds per commit: of the tree, and with the store."""
    rng = random.Random(store.next_number)
    tree = whole = 0.0
    for _ in range(commits):
        numbers = sorted(rng.sample(range(rows), count))
        operations: list[Operation] = [row(number, store.next_number) for number in numbers]
        began = time.process_time()
        writer = TreeWriter(store, store.next_number, cache=cache)
        root = writer.apply(root, operations, Lengths())
        tree += time.process_time() - began
        store.commit(writer.written, writer.freed)
        store.next_number = writer.next_number
        whole += time.process_time() - began
    return root, tree / commits, whole / commits


def scan(reader: TreeReader, wanted: int | None = None) -> int:
    return sum(len(leaf.keys) for leaf in reader.scan(wanted=wanted))


def read(reader: TreeReader, name: str, rows: int, figures: Figures) -> None:
    """Scans, reductions and counts; `name`: cold or warm."""
    rounds = 1 if name == "cold" else ROUNDS
    figures[f"scan_{name}_rows_s"] = rows / timed(lambda: scan(reader), rounds)
    rng = random.Random(1)
    keys = [sorted(rng.sample(range(rows), 2)) for _ in range(RANGES)]
    ranges = [((row(low)[0], True), (row(high)[0], False)) for low, high in keys]
    seconds = timed(lambda: [reader.reduce(*one) for one in ranges], rounds)
    figures[f"reduce_{name}_ms"] = seconds / RANGES * 1e3
    seconds = timed(lambda: [reader.count(*one) for one in ranges], rounds)
    figures[f"count_{name}_ms"] = seconds / RANGES * 1e3
    for mask, wanted in MASKS.items():
        seconds = timed(lambda wanted=wanted: reader.reduce(wanted=wanted), rounds)  # type: ignore[misc]
        figures[f"reduce_{mask}_{name}_ms"] = seconds * 1e3
        seconds = timed(lambda wanted=wanted: reader.count(wanted=wanted), rounds)  # type: ignore[misc]
        figures[f"count_{mask}_{name}_ms"] = seconds * 1e3
    seconds = timed(lambda: scan(reader, MASKS["half"]), rounds)
    figures[f"scan_half_{name}_rows_s"] = rows / 2 / seconds


def group(reader: TreeReader, rows: int, figures: Figures) -> None:
    def groups(width: int) -> int:
        return sum(1 for _ in reader.groups(lambda key: key[:width]))

    count = groups(WIDE)
    figures["groups_wide"] = count
    figures["groups_wide_s"] = count / timed(lambda: groups(WIDE))
    figures["groups_of_one_s"] = rows / timed(lambda: groups(1000), 1)


def change(store: Store, root: Root | None, rows: int, figures: Figures) -> None:
    cache = NodeCache(CACHE_BYTES)
    for count, commits in ((1000, 20), (10_000, 5)):
        root, tree, whole = apply(store, root, count, rows, commits, cache)
        figures[f"apply_{count}_rows_s"] = count / tree
        figures[f"apply_{count}_stored_rows_s"] = count / whole
    writer = TreeWriter(store, store.next_number)
    seconds = timed(lambda: writer.clean(root, 1 << 5, Lengths(), 1 << 30), 1)
    figures["clean_nodes_s"] = len(writer.freed) / seconds


def main(rows: int = ROWS) -> Figures:
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as the processes of a node do
    figures: Figures = {"rows": rows, "yardstick_ms": yardstick() * 1e3}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        root = load(store, rows, figures)
        read(TreeReader(store, root, None, Lengths()), "cold", rows, figures)
        warm = TreeReader(store, root, NodeCache(CACHE_BYTES), Lengths())
        scan(warm)
        read(warm, "warm", rows, figures)
        group(warm, rows, figures)
        del warm
        change(store, root, rows, figures)
    figures["yardstick_ms"] = min(figures["yardstick_ms"], yardstick() * 1e3)
    return figures


if __name__ == "__main__":
    for name, value in main(*map(int, sys.argv[1:])).items():
        print(f"{name:28} {value:14,.3f}")
