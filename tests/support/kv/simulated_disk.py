"""A disk that fails, is cut or loses power before any effect, and a by-id map kept on it.

Each write, truncation, sync, creation, rename, removal and by-id transaction is one effect;
`before` is called with its kind and the file's name first and may raise:

- `Crash`: the process ends there; a write may have been cut short;
- `OSError`: the call fails. A write may have been cut short. What a failed sync of a file should
  have made durable counts as written from then on, as the page cache of Linux has it: later syncs
  leave it out, and it is gone with the power, or when the cache is forgotten, unless it is written
  again.

Invariants:
1. A kill keeps what was written. Power loss (`lose_power`) keeps, of each block that is not
   durable, the old bytes, the new ones or rubbish; of the directory any subset of the changes
   since its last sync; of by-id any state committed since its last sync, or nothing.
2. Bytes that were durable and were not written again never change; one that was written over,
   where there were no zeros, is old or new.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from millstream.errors import UnavailableError
from millstream.storage.core.by_id import Piece

BLOCK_BYTES = 32
WRITE, TRUNCATE, SYNC = "write", "truncate", "sync"
CREATE, RENAME, REMOVE, SYNC_DIRECTORY = "create", "rename", "remove", "sync_directory"
BY_ID = "by_id"
SYNCS = (SYNC, SYNC_DIRECTORY)


class Crash(Exception):
    """The process ends before an effect."""


FAULTS = ("kill", "power", "full", "write", "sync")


@dataclass(eq=False)
class Fault:
    """Strikes at the effect after `left` others of those it concerns.

    kill, power: the process ends there, alone or with the machine; full: no space; write, sync:
    the disk fails.
    """

    kind: str
    left: int

    def strikes(self, effect: str) -> bool:
        if self._concerns(effect):
            self.left -= 1
        return self.left < 0

    def _concerns(self, effect: str) -> bool:
        if self.kind == "sync":
            return effect in SYNCS
        if self.kind in ("full", "write"):
            return effect in (WRITE, CREATE, TRUNCATE, BY_ID)
        return True

    def error(self, effect: str) -> Exception:
        if self.kind == "full" and effect == BY_ID:
            return UnavailableError("no space for by-id", code="disk_full")
        if self.kind == "full":
            return OSError(errno.ENOSPC, "No space left on device")
        if self.kind in ("write", "sync"):
            return OSError(errno.EIO, "Input/output error")
        return Crash()


def nothing_happens(kind: str, name: str) -> None: ...


@dataclass(eq=False)
class Content:
    """A file: what the process reads, and what is durable of it."""

    name: str
    inode: int
    ctime: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    dirty: tuple[int, int] | None = None
    """From where to where the next sync writes, in whole blocks."""

    def touch(self, begin: int, end: int) -> None:
        if begin < end or begin % BLOCK_BYTES:
            begin -= begin % BLOCK_BYTES
            end += -end % BLOCK_BYTES
            known = self.dirty
            self.dirty = (
                (begin, end) if known is None else (min(begin, known[0]), max(end, known[1]))
            )

    def sync(self) -> None:
        size = len(self.data)
        if len(self.synced) != size:
            del self.synced[size:]
            self.synced.extend(bytes(size - len(self.synced)))
        if self.dirty is not None:
            begin, end = self.dirty
            part = self.data[begin:end]
            self.synced[begin : begin + len(part)] = part
        self.dirty = None


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, content: Content) -> None:
        self.disk, self.content = disk, content

    def write_at(self, offset: int, data: bytes) -> None:
        try:
            self.disk.before(WRITE, self.content.name)
        except (Crash, OSError):
            self._put(offset, data[: self.disk.rng.randint(0, len(data))])
            raise
        self._put(offset, data)

    def _put(self, offset: int, data: bytes) -> None:
        content = self.content
        if data:
            end, size = offset + len(data), len(content.data)
            content.touch(min(offset, size), end)
            if end > size:
                content.data.extend(bytes(end - size))
            content.data[offset:end] = data
            content.ctime = next(self.disk.numbers)

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self.content.data[offset : offset + size])

    def read_resident(self, offset: int, size: int) -> bytes:
        """All of it, a part, or nothing is in memory."""
        data, luck = self.read_at(offset, size), self.disk.rng.random()
        if luck < 0.2:
            raise BlockingIOError("not in memory")
        return data if luck < 0.8 else data[: self.disk.rng.randint(1, size)]

    def truncate(self, size: int) -> None:
        self.disk.before(TRUNCATE, self.content.name)
        content = self.content
        content.touch(min(size, len(content.data)), max(size, len(content.data)))
        del content.data[size:]
        content.data.extend(bytes(size - len(content.data)))
        content.ctime = next(self.disk.numbers)

    def sync(self) -> None:
        try:
            self.disk.before(SYNC, self.content.name)
        except OSError:
            self.content.dirty = None
            raise
        self.content.sync()

    def forget_cache(self) -> None:
        """What no sync will write any more turns out to be whatever is on the disk."""
        content = self.content
        if content.dirty is None:
            content.data = self.disk.mixed(content.data, content.synced)
            content.synced = content.data[:]

    def size(self) -> int:
        return len(self.content.data)

    def identity(self) -> tuple[int, int]:
        return self.content.inode, self.content.ctime

    def close(self) -> None:
        pass


class SimulatedDisk:
    """Files, one directory and the states of by-id. `numbers` gives inodes, times and boots."""

    def __init__(self, rng: random.Random, numbers: Iterator[int]) -> None:
        self.rng, self.numbers, self.boot = rng, numbers, next(numbers)
        self.before: Callable[[str, str], None] = nothing_happens
        self.files: dict[str, Content] = {}
        self.synced: dict[str, Content] = {}
        self.changes: list[tuple[tuple[str, Content | None], ...]] = []
        self.by_id: list[dict[bytes, bytes]] = [{}]
        """The newest last; power loss falls back to any of them, or to nothing."""

    def names(self) -> list[str]:
        return sorted(self.files)

    def open(self, name: str, *, create: bool = False) -> SimulatedFile:
        if name not in self.files:
            if not create:
                raise FileNotFoundError(name)
            content = Content(name, next(self.numbers), next(self.numbers))
            self._change(CREATE, name, (name, content))
        return SimulatedFile(self, self.files[name])

    def _change(self, kind: str, name: str, *change: tuple[str, Content | None]) -> None:
        self.before(kind, name)
        self.changes.append(change)
        self._apply(self.files, change)

    @staticmethod
    def _apply(files: dict[str, Content], change: Iterable[tuple[str, Content | None]]) -> None:
        for name, content in change:
            if content is None:
                files.pop(name, None)
            else:
                files[name] = content

    def rename(self, source: str, target: str) -> None:
        self._change(RENAME, target, (target, self.files[source]), (source, None))
        self.files[target].name = target

    def remove(self, name: str) -> None:
        if name not in self.files:
            raise FileNotFoundError(name)
        self._change(REMOVE, name, (name, None))

    def sync_directory(self) -> None:
        self.before(SYNC_DIRECTORY, "")
        self.synced, self.changes = dict(self.files), []

    def describe(self, name: str) -> str:
        return f"disk/{name}"

    def boot_id(self) -> str:
        return str(self.boot)

    def random_bytes(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    # -- what is left

    def lose_power(self) -> None:
        rng = self.rng
        for change in self.changes:
            if rng.random() < 0.5:
                self._apply(self.synced, change)
        self.files, self.changes, self.boot = dict(self.synced), [], next(self.numbers)
        for content in self.files.values():
            content.data = self.mixed(content.data, content.synced)
            content.synced = content.data[:]
            content.dirty = None
        del self.by_id[rng.randint(0, len(self.by_id)) :]
        if not self.by_id:
            self.by_id = [{}]

    def mixed(self, new: bytearray, old: bytearray) -> bytearray:
        if new == old:
            return new
        rng = self.rng
        share = rng.choice((0, 0.4, 0.7, 1))
        size = rng.choice((len(new), len(old)))
        mixed = bytearray()
        for at in range(0, size, BLOCK_BYTES):
            fresh = bytes(new[at : at + BLOCK_BYTES]).ljust(BLOCK_BYTES, b"\0")
            stale = bytes(old[at : at + BLOCK_BYTES]).ljust(BLOCK_BYTES, b"\0")
            if fresh != stale and rng.random() >= share:
                fresh = rng.choice((stale, stale, self._rubbish(fresh, stale)))
            mixed += fresh
        return mixed[:size]

    def _rubbish(self, fresh: bytes, stale: bytes) -> bytes:
        noise = self.rng.randbytes(BLOCK_BYTES)
        return bytes(
            a if a == b else c if not b else (a, b)[c & 1]
            for a, b, c in zip(fresh, stale, noise, strict=True)
        )

    def copied(self, rng: random.Random, numbers: Iterator[int]) -> SimulatedDisk:
        """Another directory with the same contents: every file is a new one."""
        disk = SimulatedDisk(rng, numbers)
        disk.boot = self.boot
        for name, content in self.files.items():
            disk.files[name] = Content(
                name, next(numbers), next(numbers), content.data[:], content.data[:]
            )
        disk.synced, disk.by_id = dict(disk.files), [self.by_id[-1]]
        return disk


class SimulatedById:
    """The by-id map of a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk

    def get(self, key: bytes) -> bytes | None:
        return self.disk.by_id[-1].get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.disk.by_id[-1].get(key) for key in keys]

    def count(self) -> int:
        return len(self.disk.by_id[-1])

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        return iter(sorted(key for key in self.disk.by_id[-1] if key.startswith(prefix)))

    def page(self, low: bytes, high: bytes, count: int, *, descending: bool) -> list[bytes]:
        keys = (key for key in self.disk.by_id[-1] if low <= key < high)
        return sorted(keys, reverse=descending)[:count]

    def apply_steps(self, pieces: Iterable[Piece]) -> Iterator[None]:
        state = dict(self.disk.by_id[-1])
        for puts, removals in pieces:
            for key in removals:
                state.pop(key, None)
            state.update(puts)
            yield
        self.disk.before(BY_ID, "")
        self.disk.by_id.append(state)

    def clear(self) -> None:
        self.disk.before(BY_ID, "")
        self.disk.by_id.append({})

    def checksum(self) -> tuple[int, str]:
        return 0, ""

    def seal(self, found: tuple[int, str]) -> None: ...

    def distrust(self) -> None:
        raise AssertionError("by-id names what the log does not have")

    def close(self, *, is_durable: bool) -> None:
        if is_durable:
            self.disk.before(BY_ID, "")
            del self.disk.by_id[:-1]
