"""An index in LMDB: nodes, headers and free lists, with one transaction per commit.

    DIR/<generation>/data.mdb, lock.mdb     the largest generation is in force
    DIR/<generation>.new/                   what a compaction has written so far

Keys are a letter and a number (u64, big-endian): `n` a node, `h` a header, `f` a free list. `m`
alone says what the environment belongs to. An LMDB file never shrinks. So a compaction copies
everything into a new environment: nodes in the order of their numbers while commits go on, and in
its last step what changed meanwhile, headers and free lists. Then the new environment replaces the
old one by a rename.

Invariants:
1. A commit is one transaction. When it returns, it is on the disk except for the page that names
   it. A kill loses nothing. A loss of power loses at most the last commits, and no half of one.
2. A read lives for one call: a reader left open would stop the reuse of pages.
3. An environment of another format, signature or collation is not used. `rebuilt_because` gives
   the reason, and the index begins empty.

Elsewhere: what the bytes mean (docs/reference/index-format.md), what is kept (`views.core`).
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Final

import lmdb
import msgspec

from millstream.errors import CorruptionError, UnavailableError
from millstream.model.limits import UINT64_MAX
from millstream.runtime.files import sync_directory
from millstream.runtime.lmdb_files import lacked_space, open_environment
from millstream.views.core.index.header import INDEX_FORMAT
from millstream.views.core.index.kept_roots import FreeList
from millstream.views.core.index.node_store import StoreCommit, Stored, StoreSizes

__all__ = ["INDEX_MAP_BYTES", "LmdbIndexStore"]

INDEX_MAP_BYTES: Final = 64 * 1024 * 1024 * 1024
"""Address space reserved for the environment of one index, and its largest size. The file grows as
needed. A process has address space for some 2,000 environments."""
READERS_MAX: Final = 126
"""Most threads that read one index at a time."""
NUMBERS_PER_READ_MAX: Final = 10_000
_NODE, _HEADER, _FREE, _META = b"n", b"h", b"f", b"m"
_NUMBER: Final = Struct(">Q")
_NEW: Final = ".new"


_Transaction = Any  # the package's own types differ from release to release


class _Meta(msgspec.Struct):
    """What an environment belongs to."""

    format: int
    signature: str
    collation: str


class LmdbIndexStore:
    """The store of one index in a directory, made if missing. One process uses it at a time.

    Args:
        path: the index's own directory.
        signature: of the definition.
        collation: version of the row order.
        map_bytes: see INDEX_MAP_BYTES.

    Attributes:
        rebuilt_because: why the files could not be used, so that the index begins empty; else "".

    Raises:
        CorruptionError: `index_damaged`; `remove` the directory, and the index is built anew.
        UnavailableError: `disk_full`.
        OSError: the directory cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        signature: str,
        collation: str,
        *,
        map_bytes: int = INDEX_MAP_BYTES,
    ) -> None:
        self._path = Path(path)
        self._map_bytes = map_bytes
        self._meta = _Meta(INDEX_FORMAT, signature, collation)
        self._lock = threading.Lock()  # between reads, and the moment of a change of environments
        self._copy: _Copy | None = None
        self.rebuilt_because = ""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tidy()
        self._generation = max(_generations(self._path), default=0)
        if self._generation and (why := self._why_foreign()):
            self.rebuilt_because = why
            shutil.rmtree(self._folder)
            self._generation = 0
        if not self._generation:
            self._begin()
        self._environment = self._opened(self._folder)

    @staticmethod
    def remove(path: str | os.PathLike[str]) -> None:
        """Remove an index. Nothing may have it open."""
        shutil.rmtree(path, ignore_errors=True)

    @classmethod
    def unchanged(cls, path: str | os.PathLike[str]) -> LmdbIndexStore | None:
        """Open an index read-only. None if it was made and never begun.

        Raises:
            CorruptionError: `index_damaged`.
        """
        made = cls.__new__(cls)
        made._path, made._lock, made._copy = Path(path), threading.Lock(), None
        made._generation = max(_generations(made._path), default=0)
        if not made._generation:
            return None
        try:
            made._environment = lmdb.open(os.fspath(made._folder), readonly=True, lock=False)
        except lmdb.Error as error:
            raise _damaged(made._path, error) from error
        if _is_short(made._environment, made._folder):
            made._environment.close()
            raise _damaged(made._path, "its file is shorter than its pages")
        return made

    @property
    def _folder(self) -> Path:
        return self._path / str(self._generation)

    def _tidy(self) -> None:
        """Remove the remains of a killed start or compaction."""
        for folder in self._path.glob("*" + _NEW):
            shutil.rmtree(folder, ignore_errors=True)
        for generation in sorted(_generations(self._path))[:-1]:
            shutil.rmtree(self._path / str(generation), ignore_errors=True)

    def _why_foreign(self) -> str:
        environment = self._opened(self._folder)
        try:
            with environment.begin() as transaction:
                found = msgspec.msgpack.decode(transaction.get(_META) or b"\xc0")
        except (lmdb.Error, msgspec.DecodeError) as error:
            raise _damaged(self._path, error) from error
        finally:
            environment.close()
        if not isinstance(found, dict):
            raise _damaged(self._path, "it does not say what it belongs to")
        for name in ("format", "signature", "collation"):
            if found.get(name) != (wanted := getattr(self._meta, name)):
                return f"{name} {found.get(name)!r} is not {wanted!r}"
        return ""

    def _begin(self) -> None:
        """Make an empty environment. It gets its place once it says what it belongs to."""
        environment = self._opened_new()
        self._put_meta(environment)
        environment.close()
        self._take_place()

    @property
    def _next_folder(self) -> Path:
        return self._path / f"{self._generation + 1}{_NEW}"

    def _opened_new(self) -> lmdb.Environment:
        folder = self._next_folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return self._opened(folder)

    def _take_place(self) -> None:
        """Put the new environment in force, durably. Its descriptors stay valid."""
        folder = self._next_folder
        placed = self._path / str(self._generation + 1)
        folder.rename(placed)
        try:
            sync_directory(self._path)
        except OSError:
            placed.rename(folder)
            raise
        self._generation += 1

    def _put_meta(self, environment: lmdb.Environment) -> None:
        try:
            with environment.begin(write=True) as transaction:
                transaction.put(_META, msgspec.msgpack.encode(self._meta))
        except lmdb.Error as error:
            raise self._not_written(error) from error

    def _not_written(self, error: lmdb.Error) -> UnavailableError | CorruptionError:
        if lacked_space(self._path, error):
            return _disk_full(self._path, error)
        return _damaged(self._path, error)

    def _opened(self, folder: Path) -> lmdb.Environment:
        try:
            environment = open_environment(
                folder,
                map_size=self._map_bytes,
                metasync=False,
                readahead=False,
                max_readers=READERS_MAX,
                max_spare_txns=READERS_MAX,
            )
        except lmdb.MemoryError as error:
            raise UnavailableError(
                f"the index in {self._path} cannot be opened, the process has no room for "
                f"it: {error}; remove indexes from this node",
                code="too_many_indexes",
            ) from error
        except lmdb.DiskError as error:
            raise _disk_full(self._path, error) from error
        except lmdb.Error as error:
            raise _damaged(self._path, error) from error
        if _is_short(environment, folder):  # pages that are not in the file kill who reads them
            environment.close()
            raise _damaged(self._path, "its file is shorter than its pages")
        return environment

    def close(self) -> None:
        """Close the store. Everything is durable."""
        self._give_up()
        with self._lock:
            if not self._environment.flags()["readonly"]:
                self._environment.sync(True)
            self._environment.close()

    # -- reading

    def stored(self) -> Stored:
        """Return headers and free lists by commit."""
        try:
            with self._lock, self._environment.begin() as transaction:
                headers = dict(_with_letter(transaction, _HEADER))
                return Stored(headers, dict(_with_letter(transaction, _FREE)))
        except lmdb.Error as error:
            raise _damaged(self._path, error) from error

    def read(self, number: int) -> bytes:
        """Return a node."""
        key = _NODE + _NUMBER.pack(number)
        try:
            with self._lock:
                transaction = self._environment.begin()
                node: bytes | None = transaction.get(key)
                transaction.abort()  # sooner than by forgetting it, and cheaper than `with`
        except lmdb.Error as error:
            raise _damaged(self._path, error) from error
        if node is None:
            raise _damaged(self._path, f"node {number} is missing")
        return node

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all nodes, ascending; no transaction is open between two reads."""
        start = 0
        while found := self._some_numbers(start):
            yield from found
            start = found[-1] + 1

    def _some_numbers(self, start: int) -> list[int]:
        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                if not cursor.set_range(_NODE + _NUMBER.pack(start)):
                    return []
                keys = islice(cursor.iternext(values=False), NUMBERS_PER_READ_MAX)
                return [_number_of(key) for key in keys]
        except lmdb.Error as error:
            raise _damaged(self._path, error) from error

    def sizes(self) -> StoreSizes:
        """Return the size on disk."""
        with self._lock:
            file_bytes = (self._folder / "data.mdb").stat().st_size
            stat = self._environment.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return StoreSizes(file_bytes, pages * stat["psize"], stat["entries"])

    # -- writing

    def write_ahead(self, nodes: Mapping[int, bytes]) -> None:
        """Write nodes that a later commit will need."""
        with self._writing(self._environment) as transaction:
            _put_nodes(transaction, nodes)

    def remove_from(self, number: int) -> None:
        """Remove all nodes from this number on."""
        assert self._copy is None, "only what a kill left behind is removed so"
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            if not cursor.set_range(_NODE + _NUMBER.pack(number)):
                return
        with self._writing(self._environment) as transaction:
            _remove(transaction, FreeList(ranges=((number, UINT64_MAX),)))

    def commit(self, commit: StoreCommit) -> None:
        """Make one commit."""
        number = _NUMBER.pack(commit.commit)
        with self._writing(self._environment) as transaction:
            _put_nodes(transaction, commit.nodes)
            transaction.put(_HEADER + number, commit.header)
            for each, data in commit.free_lists.items():
                transaction.put(_FREE + _NUMBER.pack(each), data)
            for each in commit.dropped_headers:
                transaction.delete(_HEADER + _NUMBER.pack(each))
            for each in commit.dropped_free_lists:
                transaction.delete(_FREE + _NUMBER.pack(each))
            for free in commit.removed:
                _remove(transaction, free)
        if self._copy is not None:
            self._copy.removed.extend(commit.removed)

    @contextmanager
    def _writing(self, environment: lmdb.Environment) -> Iterator[_Transaction]:
        try:
            with environment.begin(write=True) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise self._not_written(error) from error

    # -- compaction

    def compact_step(self, nodes_max: int) -> bool:
        """Copy some nodes into a new environment. The last step puts it in force."""
        try:
            if self._copy is None:
                self._copy = _Copy(self._opened_new())
                self._put_meta(self._copy.environment)
            if self._copy_some(self._copy, nodes_max):
                return False
            self._finish(self._copy)
        except BaseException:  # also when interrupted: half a copy is none
            self._give_up()
            raise
        return True

    def _copy_some(self, copy: _Copy, nodes_max: int) -> bool:
        """Copy nodes. Return whether there may be more."""
        found: list[tuple[bytes, bytes]] = []
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            if cursor.set_range(_NODE + _NUMBER.pack(copy.next_number)):
                found.extend(islice(cursor.iternext(), nodes_max))
        with self._writing(copy.environment) as transaction, transaction.cursor() as cursor:
            _, added = cursor.putmulti(found, append=True)
        assert added == len(found), "a copy goes back"
        if found:
            copy.next_number = _number_of(found[-1][0]) + 1
        return len(found) == nodes_max

    def _finish(self, copy: _Copy) -> None:
        """Copy the small rest, sync, and replace the old environment by the new one."""
        stored = self.stored()
        with self._writing(copy.environment) as transaction:
            for free in copy.removed:
                _remove(transaction, free)
            for letter, values in ((_HEADER, stored.headers), (_FREE, stored.free_lists)):
                for each, data in values.items():
                    transaction.put(letter + _NUMBER.pack(each), data)
        copy.environment.sync(True)
        old_folder = self._folder
        self._take_place()
        with self._lock:
            old, self._environment = self._environment, copy.environment
            old.close()
        self._copy = None
        shutil.rmtree(old_folder, ignore_errors=True)

    def _give_up(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.environment.close()
            shutil.rmtree(self._next_folder, ignore_errors=True)


class _Copy:
    """A compaction under way."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self.environment = environment
        self.next_number = 0
        self.removed: list[FreeList] = []


def _put_nodes(transaction: _Transaction, nodes: Mapping[int, bytes]) -> None:
    """Append nodes. Numbers only grow, and no letter sorts after theirs."""
    if nodes:
        with transaction.cursor() as cursor:
            pack = _NUMBER.pack
            pairs = [(_NODE + pack(number), nodes[number]) for number in sorted(nodes)]
            _, added = cursor.putmulti(pairs, append=True)
        assert added == len(pairs), "the number of a node was given before"


def _remove(transaction: _Transaction, free: FreeList) -> None:
    for number in free.numbers:
        transaction.delete(_NODE + _NUMBER.pack(number))
    for first, end in free.ranges:
        last = _NODE + _NUMBER.pack(end - 1)
        with transaction.cursor() as cursor:
            is_there = cursor.set_range(_NODE + _NUMBER.pack(first))
            while is_there and cursor.key() <= last:
                is_there = cursor.delete() and bool(cursor.key())


def _with_letter(transaction: _Transaction, letter: bytes) -> Iterator[tuple[int, bytes]]:
    with transaction.cursor() as cursor:
        if cursor.set_range(letter + _NUMBER.pack(0)):
            for key, data in cursor.iternext():
                if key[:1] != letter:
                    return
                yield _number_of(key), data


def _number_of(key: bytes) -> int:
    return int(_NUMBER.unpack_from(key, 1)[0])


def _generations(path: Path) -> list[int]:
    return [int(each.name) for each in path.iterdir() if each.name.isdecimal()]


def _is_short(environment: lmdb.Environment, folder: Path) -> bool:
    pages: int = environment.info()["last_pgno"] + 1
    page_bytes: int = environment.stat()["psize"]
    return (folder / "data.mdb").stat().st_size < pages * page_bytes


def _disk_full(path: Path, error: lmdb.Error) -> UnavailableError:
    return UnavailableError(f"cannot write the index in {path}: {error}", code="disk_full")


def _damaged(path: Path, what: object) -> CorruptionError:
    return CorruptionError(
        f"the index in {path} is damaged: {what}; remove that directory: it is rebuilt",
        code="index_damaged",
    )
