"""What a group's member keeps after very many writes: journal, memory, and how long a step takes.

Invariants:
1. One real replica, a group of one, over its real journal in a folder; every batch is synced.
   A step's time is processor time, so that a busy machine does not count.
2. Values are of 100 bytes, keys drawn from `--keys`, seeded: the state stops growing, the log not.

Elsewhere: speed of whole nodes (coordination.py), the bounds (docs/reference/limits.md).

Usage: python bench/coordination_snapshots.py [--writes 1000000] [--keys 100000]
"""

import argparse
import random
import resource
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from millstream.coordination.core.group_state import GroupState
from millstream.runtime.disk import OsDisk
from millstream.runtime.process import calm_collector
from millstream.vsr.core.disk.journal import Journal, format_group
from millstream.vsr.core.effects import (
    CallSoon,
    DiskDone,
    Event,
    Image,
    Request,
    Soon,
    Start,
    Timer,
)
from millstream.vsr.core.entries import Body
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.replica.replica import Replica

BATCH = 64
GROUP, NODE = b"g" * 16, b"n" * 16
DISK_EFFECTS = ("Append", "Install", "WriteHardState", "WriteSnapshot", "AdoptSnapshot")


class Member:
    """A group of one, step by step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        disk = OsDisk(folder)
        format_group(disk, founded(GROUP, NODE, (NODE,)))
        self.journal = Journal(disk)
        self.replica = Replica(GroupState(), random.Random(1).random)
        self.longest_ms = self.longest_disk_ms = 0.0
        self.later: deque[Event] = deque()
        self.step(Start(Image(self.journal.root.hard_state)))

    def step(self, *events: Event) -> None:
        """Take events, and all that they bring about, but for work that may wait."""
        began = time.thread_time()
        effects = self.replica.step(time.monotonic() * 1000, 0, *events)
        self.longest_ms = max(self.longest_ms, (time.thread_time() - began) * 1000)
        for effect in effects:
            if type(effect).__name__ in DISK_EFFECTS:
                began = time.perf_counter()
                self.journal.carry_out(effect)  # type: ignore[arg-type]
                self.longest_disk_ms = max(
                    self.longest_disk_ms, (time.perf_counter() - began) * 1000
                )
                self.step(DiskDone(effect.op))  # type: ignore[union-attr]
            elif isinstance(effect, CallSoon):
                self.later.append(Soon())

    def turn(self, requests: list[Event]) -> None:
        """Take requests, and then what was to come soon."""
        self.step(*requests)
        for _ in range(len(self.later)):
            self.step(self.later.popleft())

    def disk_bytes(self) -> int:
        """Return what all files have."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


def request(ticket: int, rng: random.Random, keys: int) -> Request:
    """Return a change of one register."""
    return Request(ticket, Body(argv=(b"SET", b"%d" % rng.randrange(keys), rng.randbytes(100))))


def main() -> int:
    """Write, and print what was kept at most."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--writes", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    args = parser.parse_args()
    rng, say = random.Random(7), sys.stdout.write
    calm_collector()
    with tempfile.TemporaryDirectory() as folder:
        member = Member(Path(folder) / "group")
        while not member.replica.leading:
            member.turn([Timer()])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        most_disk = most_log = 0
        began = time.process_time()
        for done in range(0, args.writes, BATCH):
            member.turn([request(n, rng, args.keys) for n in range(done, done + BATCH)])
            if done % (256 * BATCH) == 0:
                most_disk = max(most_disk, member.disk_bytes())
            log = member.replica.log
            most_log = max(most_log, log.op_lsn - log.base.lsn)
        spent = time.process_time() - began
        stable = member.replica.stable
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        size = stable.size if stable else 0
        say(f"{args.writes:,} writes, {args.keys:,} registers\n")
        say(f"snapshots {member.replica.report().snapshot}, the last of {size:,} bytes\n")
        say(f"at most: log {most_log:,} entries, files {most_disk / 2**20:.0f} MiB, ")
        say(f"memory {memory / 1024:.0f} MiB\n")
        say(f"longest: step {member.longest_ms:.1f} ms, disk {member.longest_disk_ms:.0f} ms\n")
        say(f"processor {spent / args.writes * 1e6:.0f} us a write\n")
        member.journal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
