"""What one command costs on a list, set or queue of 100,000 items: run by hand.

Times are those of the processor: they stay about the same on a busy machine.

python bench/namespace_items.py [items]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Final

from millstream.coordination.core.namespace.machine import Namespace
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.entries import Body
from millstream.vsr.core.versions import Version

ITEMS: Final = 100_000
BATCH: Final = 1000
ROUNDS: Final = 2000


class Bench:
    def __init__(self) -> None:
        self.machine, self.lsn, self.dice = Namespace(), 0, random.Random(1)
        self.do(b"CREATENAMESPACE", b"/b")

    def do(self, *words: bytes) -> bytes:
        self.lsn += 1
        job = Job(self.machine.state, Asker(7), Version(0, 0, self.lsn), self.lsn)
        reply = self.machine.execute(job, list(words))
        assert not reply.startswith(b"-"), reply
        return reply

    def read(self, *words: bytes) -> bytes:
        reply = self.machine.read(Body(b"", (), words))
        assert not reply.startswith(b"-"), reply
        return reply

    def fill(self, kind: bytes, command: tuple[bytes, bytes], items: int) -> bytes:
        path = b"/b/" + kind
        self.do(b"CREATE", kind, path)
        for begin in range(0, items, BATCH):
            end = min(begin + BATCH, items)
            self.do(*command, path, *(b"item %08d" % number for number in range(begin, end)))
        return path


def timed(name: str, rounds: int, step: Callable[[], object]) -> None:
    slowest = 0.0
    begin = time.process_time()
    for _ in range(rounds):
        before = time.process_time()
        step()
        slowest = max(slowest, time.process_time() - before)
    each = (time.process_time() - begin) / rounds
    print(f"{name:32} {each * 1e6:10.1f} us   slowest {slowest * 1e6:10.1f} us")


def main(items: int) -> None:
    bench = Bench()
    do, read, dice = bench.do, bench.read, bench.dice
    path = bench.fill(b"LIST", (b"LIST", b"APPEND"), items - ROUNDS)

    def place() -> bytes:
        return b"%d" % dice.randrange(items - 2 * ROUNDS)

    timed("LIST APPEND", ROUNDS, lambda: do(b"LIST", b"APPEND", path, b"one more"))
    timed("LIST REMOVE at the end", ROUNDS, lambda: do(b"LIST", b"REMOVE", path, b"-1"))
    timed("LIST REMOVE anywhere", ROUNDS, lambda: do(b"LIST", b"REMOVE", path, place()))
    timed("LIST INSERT anywhere", ROUNDS, lambda: do(b"LIST", b"INSERT", path, place(), b"new"))
    timed("LIST SET anywhere", ROUNDS, lambda: do(b"LIST", b"SET", path, place(), b"other"))
    timed("LIST INDEX anywhere", ROUNDS, lambda: read(b"LIST", b"INDEX", path, place()))
    timed("LIST RANGE, 100 items", 200, lambda: read(b"LIST", b"RANGE", path, b"5000", b"5099"))
    timed("LIST FIND, not there", 20, lambda: read(b"LIST", b"FIND", path, b"no"))
    timed("LIST REMVAL, 4,000 there", 1, lambda: do(b"LIST", b"REMVAL", path, b"other"))
    timed("GET of a list", 5, lambda: read(b"GET", path))
    timed("LIST TRIM to half", 1, lambda: do(b"LIST", b"TRIM", path, b"%d" % (items // 2), b"-1"))
    timed("DELETE of a list", 1, lambda: do(b"DELETE", path))

    path = bench.fill(b"SET", (b"SET", b"ADD"), items - ROUNDS)
    count = iter(range(10**9))
    timed("SET ADD", ROUNDS, lambda: do(b"SET", b"ADD", path, b"more %d" % next(count)))
    timed("SET POP", ROUNDS, lambda: do(b"SET", b"POP", path))
    timed("SET HAS", ROUNDS, lambda: read(b"SET", b"HAS", path, b"item 00050000"))
    timed("SET MEMBERS, a page", 50, lambda: read(b"SET", b"MEMBERS", path))
    timed("SET INTER with itself", 3, lambda: read(b"SET", b"INTER", path, path))
    timed("DELETE of a set", 1, lambda: do(b"DELETE", path))

    path = bench.fill(b"QUEUE", (b"QUEUE", b"PUSH"), items - ROUNDS)
    timed("QUEUE PUSH", ROUNDS, lambda: do(b"QUEUE", b"PUSH", path, b"more"))
    timed("QUEUE TAKE", ROUNDS, lambda: do(b"QUEUE", b"TAKE", path))
    timed("QUEUE POP", ROUNDS, lambda: do(b"QUEUE", b"POP", path))
    do(b"QUEUE", b"TAKE", path, b"8000")
    job = Job(bench.machine.state, Asker(), Version(0, 0, bench.lsn + 1), 0)
    timed("end of who has 10,000 items", 1, lambda: bench.machine.end(job, (7,)))
    timed("QUEUE PURGE", 1, lambda: do(b"QUEUE", b"PURGE", path))

    do(b"CREATE", b"COUNTER", b"/b/c")
    timed("COUNTER INC", ROUNDS, lambda: do(b"COUNTER", b"INC", b"/b/c"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ITEMS)
