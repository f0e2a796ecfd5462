"""by-id as an LMDB environment, one per bucket.

Nothing is synced while running: what a killed process committed is in the page cache, what a
machine lost may be anything, also a damaged tree. So the file `origin` beside the environment
names the boot and the inode for which its pages may be trusted. While the map rests, and after a
clean stop, it has a checksum of the first `CHECK_AT_START_BYTES_MAX` of them, too. An environment
that does not match is removed and built anew from the log. After damage that is met later it is
not trusted either.

Invariants:
1. `origin` says "durable" only after the environment was synced, and no longer, durably, before
   the environment is changed again.
2. `origin` has a checksum only while nothing changes the environment.
3. A read lives for one call: a reader left open would stop the reuse of pages.

Elsewhere: what the keys and values are (`storage.core.by_id`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final
from zlib import crc32

import lmdb

from millstream.errors import CorruptionError, UnavailableError
from millstream.runtime.disk import boot_id
from millstream.runtime.files import write_atomically
from millstream.runtime.lmdb_files import lacked_space, open_environment
from millstream.storage.core.by_id import BY_ID_DAMAGED, Piece

__all__ = ["LmdbByIdMap"]

MAP_BYTES: Final = 64 * 1024 * 1024 * 1024
"""Address space reserved for one environment; the file grows as needed."""
READERS_MAX: Final = 64
KEYS_PER_READ_MAX: Final = 1000
CHECK_AT_START_BYTES_MAX: Final = 256 * 1024 * 1024
"""Pages that are compared with their checksum at a start: some two million keys, in 0.1 s if they
are in memory, as after a kill."""
READ_BYTES: Final = 1024 * 1024
"""Read at once meanwhile."""
_DURABLE: Final = "durable"


class LmdbByIdMap:
    """An ordered map of bytes in a directory, made if missing.

    Raises:
        UnavailableError: `by_id_unusable`, not even an empty environment can be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, map_bytes: int = MAP_BYTES) -> None:
        self._path = Path(path)
        self._map_bytes = map_bytes
        self._is_damaged = self._is_unchanged = self._is_sealed = self._is_changing = False
        self._changes = 0
        """Grows when a change begins, and when it ends."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._is_trusted():
            self._remove()
        try:
            self._environment = self._opened()
        except lmdb.Error:
            self._begin_anew()
        if self._is_short():  # pages that are not in the file kill the process that reads them
            self._environment.close()
            self._begin_anew()
        try:
            self._write_origin(boot_id())
        except OSError:
            self._environment.close()
            raise

    @classmethod
    def unchanged(cls, path: str | os.PathLike[str]) -> LmdbByIdMap | None:
        """Open a map to look at it, changing nothing; None if a start would not believe it."""
        made = cls.__new__(cls)
        made._path, made._is_damaged, made._is_unchanged = Path(path), False, True
        made._changes, made._is_sealed, made._is_changing = 0, False, False
        if not made._is_trusted():
            return None
        try:
            made._environment = lmdb.open(os.fspath(path), readonly=True, lock=False)
        except lmdb.Error:
            return None
        if made._is_short():
            made._environment.close()
            return None
        return made

    def _opened(self) -> lmdb.Environment:
        return open_environment(
            self._path,
            map_size=self._map_bytes,
            sync=False,
            metasync=False,
            readahead=False,
            max_readers=READERS_MAX,
            max_spare_txns=READERS_MAX,
        )

    def _begin_anew(self) -> None:
        self._remove()
        try:
            self._environment = self._opened()
        except lmdb.Error as error:
            raise UnavailableError(
                f"by-id in {self._path} cannot be opened: {error}",
                code="disk_full" if lacked_space(self._path, error) else "by_id_unusable",
            ) from error

    def _is_short(self) -> bool:
        pages = self._environment.info()["last_pgno"] + 1
        page_bytes = self._environment.stat()["psize"]
        return (self._path / "data.mdb").stat().st_size < pages * page_bytes

    # -- trust

    def _inode(self) -> int:
        return (self._path / "data.mdb").stat().st_ino

    def _is_trusted(self) -> bool:
        try:
            boot, inode, *checksum = (self._path / "origin").read_text().split()
            if int(inode) != self._inode() or (checksum and checksum[0] != self._checksum()):
                return False
            return boot in (boot_id(), _DURABLE)
        except (OSError, ValueError):
            return False

    def _checksum(self) -> str:
        """Return the crc32 of the pages, as far as a start may read them."""
        checksum, left = 0, CHECK_AT_START_BYTES_MAX
        with (self._path / "data.mdb").open("rb") as file:
            while left and (data := file.read(min(left, READ_BYTES))):
                checksum, left = crc32(data, checksum), left - len(data)
        return f"{checksum:08x}"

    def _write_origin(self, boot: str) -> None:
        origin = self._path / "origin"
        content = self._origin(boot, self._checksum() if boot == _DURABLE else "")
        if not origin.exists() or origin.read_bytes() != content:
            write_atomically(origin, content)
        self._is_sealed = False

    def _origin(self, boot: str, checksum: str) -> bytes:
        return f"{boot or 'unknown'} {self._inode()} {checksum}".rstrip().encode() + b"\n"

    def checksum(self) -> tuple[int, str]:
        """Return the checksum of the pages, and of which state they are. Blocks; in any thread."""
        return self._changes, self._checksum()

    def seal(self, found: tuple[int, str]) -> None:
        """Have the next start compare the pages with a checksum, if nothing changed them since.

        Not synced: it is for who was killed, as the pages are.
        """
        changes, checksum = found
        if changes == self._changes and not (self._is_changing or self._is_damaged):
            with suppress(OSError):  # then a start compares nothing
                self._put_origin(checksum)
                self._is_sealed = True

    def _unseal(self) -> None:
        """Take the checksum back before something is changed."""
        self._changes += 1
        if self._is_sealed:
            try:
                self._put_origin("")
            except OSError:  # no space: a start after a kill builds the map anew
                (self._path / "origin").unlink(missing_ok=True)
            self._is_sealed = False

    def _put_origin(self, checksum: str) -> None:
        beside = self._path / "origin.new"
        beside.write_bytes(self._origin(boot_id(), checksum))
        beside.replace(self._path / "origin")

    def _remove(self) -> None:
        for name in ("data.mdb", "lock.mdb", "origin"):
            (self._path / name).unlink(missing_ok=True)

    # -- the map

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key.

        Raises:
            CorruptionError: `by_id_damaged`; so do all methods that read or write the map.
        """
        try:
            transaction = self._environment.begin()
            value: bytes | None = transaction.get(key)
            transaction.abort()  # sooner than by forgetting it, and cheaper than `with`
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order; one transaction."""
        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                found: dict[bytes, bytes] = dict(cursor.getmulti(keys))
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return [found.get(key) for key in keys]

    def count(self) -> int:
        """Return how many keys there are."""
        entries: int = self._environment.stat()["entries"]
        return entries

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the keys with a prefix, in order; no transaction is open between two reads."""
        start = prefix
        while True:
            found = self._some_keys(prefix, start)
            yield from found
            if len(found) < KEYS_PER_READ_MAX:
                return
            start = found[-1] + b"\0"

    def _some_keys(self, prefix: bytes, start: bytes) -> list[bytes]:
        found: list[bytes] = []
        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                if cursor.set_range(start):
                    for key in cursor.iternext(values=False):
                        if not key.startswith(prefix) or len(found) == KEYS_PER_READ_MAX:
                            break
                        found.append(key)
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return found

    def page(self, low: bytes, high: bytes, count: int, *, descending: bool) -> list[bytes]:
        """Return the first keys of [low, high), from its end if `descending`; `count` at most."""
        found: list[bytes] = []
        try:
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                if not descending:
                    keys = cursor.iternext(values=False) if cursor.set_range(low) else iter(())
                elif cursor.set_range(high):
                    keys = cursor.iterprev(values=False) if cursor.prev() else iter(())
                else:  # all keys are below
                    keys = cursor.iterprev(values=False) if cursor.last() else iter(())
                for key in islice(keys, count):
                    if not low <= key < high:
                        break
                    found.append(key)
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return found

    def apply_steps(self, pieces: Iterable[Piece]) -> Iterator[None]:
        """Put and remove piece by piece in one transaction; see `ByIdMap`.

        In one thread: each put gives the interpreter's lock away, and beside a busy thread that
        costs several times the put itself.

        Raises:
            UnavailableError: `disk_full`.
        """
        self._unseal()
        self._is_changing = True
        try:
            with self._environment.begin(write=True) as transaction:
                for puts, removals in pieces:
                    for key in removals:
                        transaction.delete(key)
                    if puts:
                        with transaction.cursor() as cursor:
                            cursor.putmulti(puts)
                    yield
        except lmdb.Error as error:
            if not lacked_space(self._path, error):
                raise self._damaged(error) from error
            raise UnavailableError(
                f"cannot write by-id in {self._path}: {error}", code="disk_full"
            ) from error
        finally:
            self._changes += 1
            self._is_changing = False

    def clear(self) -> None:
        """Remove everything, whatever state it is in; nothing may be reading."""
        self._changes += 1
        self._environment.close()
        self._begin_anew()
        self._is_damaged = False
        self._write_origin(boot_id())

    def close(self, *, is_durable: bool) -> None:
        """Close; `is_durable`: make everything durable first, so that a new boot may trust it."""
        self._changes += 1
        if is_durable and not self._is_damaged:
            self._environment.sync(True)
        self._environment.close()
        if is_durable and not self._is_damaged:
            self._write_origin(_DURABLE)

    def distrust(self) -> None:
        """Let the next start rebuild the map: its content is wrong."""
        self._is_damaged, self._is_sealed = True, False
        if not self._is_unchanged:
            (self._path / "origin").unlink(missing_ok=True)

    def _damaged(self, error: lmdb.Error) -> CorruptionError:
        self.distrust()
        return CorruptionError(
            f"{self._path / 'data.mdb'} is damaged: {error}; restart: it is rebuilt from the log",
            code=BY_ID_DAMAGED,
        )
