"""What one process can measure of the engine, without a socket: one row each, one JSON line out.

    engine_rows.py ROW [--data DIRECTORY] [--items N]

Processor time of this process, best of `ROUNDS`, beside a limit measured in the same process: the
least that any program must do for the same bytes. Values make frames of 272 bytes in memory, and
of 326 in the log.

Elsewhere: who starts the rows, and the rows with clients (engine.py).
"""

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millstream import Node
from millstream.kv.core.flush import FlushPlan
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.queue.mutation_queue import Entry, MutationQueue
from millstream.model.partitions import partition_of
from millstream.model.position import FailoverEntry
from millstream.runtime.disk import OsDisk
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core.store import LogStore

Figures = dict[str, Any]
PARTITIONS = 64
ROUNDS = 3
KEYS = 100_000
FEW_KEYS = 1000
KEY_BYTES = 15
COMMIT_CHANGES = 5000
VALUE_BYTES = 256
FRAME_HEAD_BYTES = 24 + 31
QUEUED_BYTES = 272
"""Of a frame that is appended, and whose memory is measured."""
READ_BYTES = 512 * 1024
QUEUE_BYTES_MAX = 1 << 30


class NoLog:
    """The log of partitions that are in memory as a whole."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AssertionError(f"{name} of the log was asked for")


def new_entry(seqno: int, last_branch: int) -> FailoverEntry:
    """Return a failover entry with a branch that is larger."""
    return FailoverEntry(secrets.randbits(47) + 1, seqno, last_branch + 1)


def new_partitions() -> list[Partition]:
    """Return empty partitions in memory."""
    return [
        Partition(
            partition_id, failover_log=(new_entry(0, 0),), high_seqno=0, purge_seqno=0,
            is_resident=True, log=NoLog(), queue_bytes_max=QUEUE_BYTES_MAX // PARTITIONS,
        )
        for partition_id in range(PARTITIONS)
    ]  # fmt: skip


def open_store(directory: Path) -> LogStore:
    """Open the log and the by-id map in a bucket's directory."""
    return LogStore.open(
        OsDisk(directory / "log"), LmdbByIdMap(directory / "byid"),
        partition_count=PARTITIONS, new_entry=new_entry,
    )  # fmt: skip


def key_of(number: int) -> bytes:
    """Return the key the load generator gives a number."""
    return b"bench-%09d" % number


def best_s(work: Callable[[], Any]) -> float:
    """Return the least processor time of several runs, in seconds."""

    def once() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return min(once() for _ in range(ROUNDS))


def requests(partitions: list[Partition], numbers: list[int], value_bytes: int) -> list[Any]:
    """Return (store of the partition, key, key + value) as a session cuts them."""
    value = bytes(value_bytes)
    return [
        (partitions[partition_of(key, PARTITIONS)].store, key, key + value)
        for key in map(key_of, numbers)
    ]


# -- append


def append(_options: argparse.Namespace) -> Figures:
    """Changes of random keys, each superseding an older one in the queue.

    Of few keys, whose documents stay in the processor's cache, and of many, whose do not.
    """
    return {"few": _append(FEW_KEYS), "many": _append(KEYS)}


def _append(keys: int) -> Figures:
    partitions, chance = new_partitions(), random.Random(1)
    value_bytes = QUEUED_BYTES - FRAME_HEAD_BYTES - KEY_BYTES
    everyone = requests(partitions, list(range(keys)), value_bytes)
    _store_all(everyone)
    some = [everyone[chance.randrange(keys)] for _ in range(KEYS)]
    spent = best_s(lambda: _store_all(some))
    table: dict[bytes, bytes] = {}
    slots: list[bytes] = []

    def least() -> None:
        add, head = slots.append, bytes(FRAME_HEAD_BYTES)
        for _, key, tail in some:
            table[key] = frame = head + tail
            add(frame)

    return {"per_s": KEYS / spent, "limit_per_s": KEYS / best_s(least)}


def _store_all(some: list[Any]) -> None:
    now_ns = time.time_ns()
    for store, key, tail in some:
        store(key, tail, 0, 0, 0, now_ns)


# -- ingest


def ingest(options: argparse.Namespace) -> Figures:
    """Group commits of 5,000 changes: accepted, encoded, written, synced, and in the by-id map."""
    found: Figures = {}
    random_numbers = random.Random(2)
    order = list(range(options.items))
    random_numbers.shuffle(order)
    partitions, store = new_partitions(), open_store(options.data)
    store.withdraw_receipt()
    plan = FlushPlan[None](partitions)
    docs = requests(partitions, order, VALUE_BYTES)
    updates = [docs[random_numbers.randrange(options.items)] for _ in order]
    for name, some in (("docs", docs), ("updates", updates)):
        sizes: list[int] = []
        spent = {"accepted": 0.0, "encoded": 0.0, "appended": 0.0, "absorbed": 0.0, "by_id": 0.0}
        began = time.perf_counter()
        for at in range(0, len(some), COMMIT_CHANGES):
            _commit(some[at : at + COMMIT_CHANGES], plan, store, spent, sizes)
        wall_s = time.perf_counter() - began
        started = time.process_time()
        store.commit_by_id()
        spent["by_id"] = time.process_time() - started
        all_s = sum(spent.values())
        found[name] = {
            "per_s": len(some) / all_s,
            "storage_per_s": len(some) / (all_s - spent["accepted"]),
            "wall_per_s": len(some) / wall_s,
            "us": {step: 1e6 * seconds / len(some) for step, seconds in spent.items()},
            **_physical_limit(options.data / "limit", sizes, len(some)),
        }
    store.close()
    return found


def _commit(
    some: list[Any],
    plan: FlushPlan[None],
    store: LogStore,
    spent: dict[str, float],
    sizes: list[int],
) -> None:
    marks = [time.process_time()]
    _store_all(some)
    marks.append(time.process_time())
    while (taken := plan.freeze()) is not None:
        commit = store.encode(taken.batches)
        marks.append(time.process_time())
        store.append(commit)
        marks.append(time.process_time())
        store.absorb(commit)
        plan.persisted(taken)
        marks.append(time.process_time())
        sizes.append(len(commit.data))
        spent["encoded"] += marks[-3] - marks[-4]
        spent["appended"] += marks[-2] - marks[-3]
        spent["absorbed"] += marks[-1] - marks[-2]
    spent["accepted"] += marks[1] - marks[0]


def _physical_limit(path: Path, sizes: list[int], count: int) -> Figures:
    """Write and sync the same bytes, in the same pieces, into a file that is already there."""
    blocks = [os.urandom(size) for size in sizes[:4]]
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(descriptor, bytes(sum(sizes)))
    os.fsync(descriptor)
    started, began, at = time.process_time(), time.perf_counter(), 0
    for number, size in enumerate(sizes):
        os.pwrite(descriptor, blocks[number % len(blocks)][:size], at)
        os.fdatasync(descriptor)
        at += size
    found = {
        "limit_per_s": count / (time.process_time() - started),
        "limit_wall_per_s": count / (time.perf_counter() - began),
    }
    os.close(descriptor)
    path.unlink()
    return found


# -- reading a bucket that a node has written


def bucket_in(data: Path) -> Path:
    """Return the directory of the only bucket of a node."""
    (found,) = [path for path in (data / "buckets").iterdir() if (path / "log").is_dir()]
    return found


def find(options: argparse.Namespace) -> Figures:
    """Values that are not in memory, one by one: by-id, then the record, checked."""
    store, chance = open_store(bucket_in(options.data)), random.Random(3)
    keys = [key_of(chance.randrange(options.items)) for _ in range(KEYS)]
    wanted = [(partition_of(key, PARTITIONS), key) for key in keys]

    def work() -> None:
        for partition_id, key in wanted:
            if store.find(partition_id, key) is None:
                raise AssertionError(f"{key!r} is missing")

    spent = best_s(work)
    store.close()
    segment = max(
        (bucket_in(options.data) / "log").iterdir(), key=lambda path: path.stat().st_size
    )
    descriptor, size = os.open(segment, os.O_RDONLY), segment.stat().st_size
    places = [chance.randrange(size - 400) for _ in wanted]

    def least() -> None:
        for at in places:
            os.pread(descriptor, 352, at)

    found = {"per_s": KEYS / spent, "limit_per_s": KEYS / best_s(least)}
    os.close(descriptor)
    return found


def backfill(options: argparse.Namespace) -> Figures:
    """Every partition from the log in turns, checked, joined, and written to nowhere."""
    directory = bucket_in(options.data)
    store, counts = open_store(directory), [0]
    highs = [state.high_seqno for state in store.partitions]
    sink = os.open(os.devnull, os.O_WRONLY)

    def chunks(partition_id: int) -> Iterator[list[bytes]]:
        high = highs[partition_id]
        skip = store.superseded(partition_id, 0, high)
        for frames, _ in store.scan_frames(partition_id, 0, high, skip):
            yield frames

    def work() -> None:
        turns, counts[0] = [chunks(partition_id) for partition_id in range(PARTITIONS)], 0
        while turns:
            for turn in list(turns):
                frames = next(turn, None)
                if frames is None:
                    turns.remove(turn)
                else:
                    os.write(sink, b"".join(frames))
                    counts[0] += len(frames)

    def least() -> None:
        for path in (directory / "log").glob("*.seg"):
            descriptor = os.open(path, os.O_RDONLY)
            for at in range(0, path.stat().st_size, READ_BYTES):
                os.write(sink, os.pread(descriptor, READ_BYTES, at))
            os.close(descriptor)

    spent, least_s = best_s(work), best_s(least)
    store.close()
    return {"items": counts[0], "per_s": counts[0] / spent, "limit_per_s": counts[0] / least_s}


# -- memory


def memory(options: argparse.Namespace) -> Figures:
    """Resident bytes per document of a frame, of a queue's item, and of all the engine keeps."""
    bare, nobody = bytes(QUEUED_BYTES - 1), Entry(b"", b"", b"")
    value_bytes = QUEUED_BYTES - FRAME_HEAD_BYTES - KEY_BYTES

    def frames() -> Any:
        return [bare + b"x" for _ in range(options.items)]

    def queued() -> Any:
        queue = MutationQueue(0, QUEUE_BYTES_MAX)
        for _ in range(options.items):
            queue.append(nobody, bare + b"x")
        return queue

    def documents() -> Any:
        partitions = new_partitions()
        for number in range(options.items):
            key = key_of(number)
            partition = partitions[partition_of(key, PARTITIONS)]
            frame = partition.store(key, key + bytes(value_bytes), 0, 0, 0, 1)
            assert len(frame) == QUEUED_BYTES
        return partitions

    return {
        "limit": _growth_bytes(frames) / options.items,
        "queued": _growth_bytes(queued) / options.items,
        "document": _growth_bytes(documents) / options.items,
    }


def _growth_bytes(build: Callable[[], Any]) -> int:
    """Build something in a child process; return by how much that grew."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        before = _resident_bytes()
        kept = build()
        os.write(writer, b"%d" % (_resident_bytes() - before))
        os._exit(int(kept is None))
    _, status = os.wait()
    assert status == 0
    return int(os.read(reader, 32))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# -- opening


def start(options: argparse.Namespace) -> Figures:
    """Start a node over a directory, by the way it was left; end as `--then` says."""
    return asyncio.run(_start(options))


async def _start(options: argparse.Namespace) -> Figures:
    node = Node(options.data, **dict.fromkeys(("kv", "memcached", "http"), "127.0.0.1:0"))
    began = time.perf_counter()
    await node.start()
    found: Figures = {"seconds": time.perf_counter() - began}
    store = node.engine._buckets.running["default"].store
    found["pending"] = store.count_pending_by_id()
    if options.then == "stop":
        while store.count_pending_by_id() > options.items // 100:  # noqa: ASYNC110 - a benchmark
            await asyncio.sleep(0.01)
        found["by_id_seconds"] = time.perf_counter() - began
        await node.stop()
    return found


ROWS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "append": append, "ingest": ingest, "find": find, "backfill": backfill, "memory": memory,
    "start": start,
}  # fmt: skip


def main() -> None:
    """Measure one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--items", type=int, default=KEYS)
    parser.add_argument("--then", choices=("stop", "die"), default="die")
    options = parser.parse_args()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as the engine does
    print(json.dumps(ROWS[options.row](options)), flush=True)
    os._exit(0)  # a node that was not stopped dies as if killed


if __name__ == "__main__":
    main()
