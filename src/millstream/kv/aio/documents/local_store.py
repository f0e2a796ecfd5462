"""`_local` documents and settings of a database, in LMDB.

    key: "l" | id of a `_local` document      value: versions, newest first
    key: "s" | name of a setting              value: bytes
    key: "b"                                  value: uuid of the bucket that it is of
    key: "d"                                  value: digest of all other entries

A version of a `_local` document is stored with a stamp: the durable position of the database when
it was written. A version whose stamp is no longer part of history does not count; the version
before it then does. So a checkpoint never refers to changes that the database has lost since.

Invariants:
1. What a write returned is durable.
2. At most `VERSIONS_MAX` versions of a document are kept, with growing distances between older
   ones. Of a deleted document only the deletion is kept, until there are too many entries.
3. Documents are bounded in number and size. A document that exceeds the limits can still be made
   smaller or deleted. Settings always fit.
4. Nothing is read before all entries were verified against the digest, which changes with them in
   one transaction. After a clean stop the file `sum` also has a checksum of the whole file.
5. A store that was created and is missing or damaged, or is another bucket's, is never created
   anew: opening it fails.

Elsewhere: the form of a stamp (`documents.tokens`), its check (`kv.aio.engine`).
Source: transitive checkpoints paper; docs/design/0029-documents.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import lmdb
import msgspec

from millstream.errors import ConditionError, CorruptionError, UnavailableError, UsageError
from millstream.kv.aio.documents.local_scan import (
    DIGEST_KEY,
    OWNER_KEY,
    as_digest,
    digest_of,
    is_readable,
    scan_apart,
    weight,
)
from millstream.runtime.files import sync_directory, write_atomically
from millstream.runtime.lmdb_files import open_environment
from millstream.runtime.tasks import in_thread

__all__ = [
    "LOCAL_DOCUMENTS_MAX", "LOCAL_ID_BYTES_MAX", "LOCAL_STORE_BYTES_MAX", "VERSIONS_MAX",
    "LocalStore", "Version", "accept_local", "check_local", "thinned",
]  # fmt: skip

_LOG = logging.getLogger(__name__)

VERSIONS_MAX: Final = 4
LOCAL_DOCUMENTS_MAX: Final = 100_000
"""Documents of one database."""
LOCAL_ID_BYTES_MAX: Final = 510
"""LMDB takes keys of 511 bytes, and one of them is the kind of the key."""
LOCAL_STORE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of one database, all versions together."""
_MAP_BYTES: Final = 16 * 1024 * 1024 * 1024
"""Address space; the file grows as needed."""
_LOCAL: Final = b"l"
_SETTING: Final = b"s"
_DATA: Final = "data.mdb"
_SUM: Final = "sum"
_READ_BYTES: Final = 1024 * 1024
_DEPTHS: Final = (1, 2, 4)
"""Upper bounds of the distances between kept versions, in writes."""


class Version(NamedTuple):
    """A `_local` document as it was written."""

    rev: int
    """0: it was deleted."""
    body: bytes
    stamp: str
    number: int
    """Counts the writes of its id, independent of the revision."""


_number_of: Final = attrgetter("number")
_decode: Final = msgspec.msgpack.Decoder(list[Version]).decode
_encode: Final = msgspec.msgpack.encode


def thinned(versions: Sequence[Version]) -> list[Version]:
    """Return the versions to keep, newest first: the newest, and others at growing distances."""
    kept = list(versions[:1])
    for version in versions[1:]:
        if len(kept) == VERSIONS_MAX:
            break
        is_last = version is versions[-1]
        if is_last or kept[-1].number - version.number >= _DEPTHS[len(kept) - 1]:
            kept.append(version)
    return kept


def _key(doc_id: str) -> bytes:
    """Return the key of a document; raises `illegal_docid`."""
    try:
        key = doc_id.encode()
    except UnicodeEncodeError as error:
        raise UsageError("Document id must be valid UTF-8", code="illegal_docid") from error
    if len(key) > LOCAL_ID_BYTES_MAX:
        raise UsageError(
            f"Id of a local document is longer than {LOCAL_ID_BYTES_MAX} bytes",
            code="illegal_docid",
        )
    return key


class LocalStore:
    """The store of one bucket; its directory is created at the first write. Blocks.

    Args:
        path: of the directory.
        is_valid: whether a version's stamp is part of history, or need not be.
        owner: uuid of the bucket; empty: any store is taken.
        must_be_there: something was stored before, so a missing store is a loss.
        on_begun: called in a thread after the first write, before it is acknowledged; it may raise
            OSError or MillstreamError.

    Raises:
        CorruptionError: `local_lost`: it is missing or damaged, or another bucket's.
        UnavailableError: `disk_error`.
    """

    def __init__(
        self,
        path: Path,
        is_valid: Callable[[Version], bool] = lambda _: True,
        *,
        owner: str = "",
        must_be_there: bool = False,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._owner = path, owner.encode()
        self.is_valid = is_valid
        self._on_begun = on_begun
        self._is_told = must_be_there
        self._has_sum = False
        self._environment: lmdb.Environment | None = None
        self._turn = asyncio.Lock()
        self._has_deleted = True
        """Whether deleted documents may be among the entries."""
        if must_be_there or (path / _DATA).exists():
            has_digest = check_local(path, must_be_there=must_be_there, owner=owner)
            self._has_sum = (path / _SUM).exists()
            environment = self._open()
            if not has_digest:
                with environment.begin(write=True) as transaction:
                    transaction.put(DIGEST_KEY, digest_of(transaction))
            if self._owner and _owner_in(environment) is None:  # of an older version
                with suppress(UnavailableError):  # the next start tries again
                    self._put(OWNER_KEY, self._owner)

    def _open(self) -> lmdb.Environment:
        if self._environment is None:
            is_new = not (self._path / _DATA).exists()
            try:
                self._path.mkdir(mode=0o700, exist_ok=True)
                self._environment = open_environment(
                    self._path, map_size=_MAP_BYTES, readahead=False, max_readers=64
                )
                if is_new:
                    sync_directory(self._path)
                    sync_directory(self._path.parent)
            except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
                raise _lost(self._path, str(error)) from error
            except (OSError, lmdb.Error) as error:
                is_full = isinstance(error, lmdb.DiskError) or (
                    isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT)
                )
                raise UnavailableError(
                    f"local documents in {self._path} cannot be opened: {error}",
                    code="disk_full" if is_full else "disk_error",
                ) from error
        return self._environment

    def close(self) -> None:
        """Close it."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def stop(self) -> None:
        """Close it, and write a checksum of the file. Blocks."""
        if self._environment is None:
            return
        self.close()
        try:
            write_atomically(self._path / _SUM, _sum_of(self._path))
        except OSError as error:
            _LOG.warning("%s has no checksum: %s", self._path, error)

    # -- documents

    def read(self, doc_id: str) -> Version | None:
        """Return the newest version that is part of history; None if there is none, or deleted.

        Raises:
            UsageError: `illegal_docid`.
        """
        found = self._valid(self._versions(_key(doc_id)))
        return None if found is None or not found.rev else found

    def _versions(self, key: bytes) -> list[Version]:
        if self._environment is None:
            return []
        with self._environment.begin() as transaction:
            value = transaction.get(_LOCAL + key)
        return [] if value is None else _decode(value)

    def _valid(self, versions: Sequence[Version]) -> Version | None:
        return next((one for one in versions if self.is_valid(one)), None)

    def all(self) -> list[tuple[str, Version]]:
        """Return all documents, by id."""
        if self._environment is None:
            return []
        found = []
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            if cursor.set_range(_LOCAL):
                for key, value in cursor:
                    if not key.startswith(_LOCAL):
                        break
                    version = self._valid(_decode(value))
                    if version is not None and version.rev:
                        found.append((key[1:].decode(), version))
        return found

    def stored(
        self, after: str, is_wanted: Callable[[str], bool], bytes_max: int
    ) -> tuple[list[tuple[str, list[Version]]], bool]:
        """Return all versions of wanted documents, deleted ones too, by id. Blocks.

        Args:
            after: only larger ids.
            is_wanted: whether the document of an id is wanted.
            bytes_max: no more documents are added once their bodies have this size.

        Returns:
            The documents, and whether there are no more.
        """
        found, size = list[tuple[str, list[Version]]](), 0
        if self._environment is None:
            return found, True
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            if cursor.set_range(_LOCAL + after.encode()):
                for key, value in cursor:
                    if not key.startswith(_LOCAL):
                        break
                    doc_id = key[1:].decode()
                    if doc_id <= after or not is_wanted(doc_id):
                        continue
                    if size >= bytes_max:
                        return found, False
                    found.append((doc_id, _decode(value)))
                    size += len(value)
        return found, True

    async def write(self, doc_id: str, body: bytes | None, rev: int | None, stamp: str) -> int:
        """Replace (None: delete) a document durably; return its revision, 0 if deleted.

        Args:
            doc_id: without `_local/`.
            body: a JSON object.
            rev: the revision to replace; None: any.
            stamp: position of the database.

        Raises:
            ConditionError: `conflict`; `not_found`, nothing to delete.
            UsageError: `illegal_docid`.
            UnavailableError: `too_many_local_documents`, `disk_full`.
        """
        key = _key(doc_id)
        async with self._turn:
            versions = self._versions(key)
            present = self._valid(versions)
            number = present.rev if present is not None else 0
            if rev is not None and rev != number:
                raise ConditionError("Document update conflict.", code="conflict")
            if body is None and not number:
                raise ConditionError("missing", code="not_found")
            count = versions[0].number + 1 if versions else 1
            if body is None:
                gone = _encode([Version(0, b"", stamp, count)])
                await in_thread(self._put, _LOCAL + key, gone)
                self._has_deleted = True
                return 0
            following = 1 if rev is None else rev + 1
            newest = Version(following, body, stamp, count)
            old = [one for one in versions if self.is_valid(one)]
            await in_thread(self._put_document, _LOCAL + key, thinned([newest, *old]))
            return following

    def newest(self, doc_id: str) -> Version | None:
        """Return the last written version, regardless of history; None: none was written."""
        versions = self._versions(_key(doc_id))
        return versions[0] if versions else None

    async def keep(self, doc_id: str, sent: Sequence[Version]) -> None:
        """Store durably what another node wrote, unless it is known already; raises as `write`.

        Args:
            doc_id: without `_local/`.
            sent: its versions, newest first; at least one.
        """
        async with self._turn:
            key, newest = _key(doc_id), sent[0]
            versions = self._versions(key)
            if versions and versions[0].number >= newest.number:
                return
            older = [one for one in sent[1:] if one.rev]
            known = {one.number for one in older}
            every = [*older, *(one for one in versions if one.rev and one.number not in known)]
            every.sort(key=_number_of, reverse=True)
            kept = thinned([newest, *every]) if newest.rev else [newest]
            await in_thread(self._put_document, _LOCAL + key, kept)
            self._has_deleted = self._has_deleted or not newest.rev

    def _put_document(self, key: bytes, versions: list[Version]) -> None:
        environment, value = self._open(), _encode(versions)
        entries_max = LOCAL_DOCUMENTS_MAX + bool(self._owner)
        if self._has_deleted and environment.stat()["entries"] > entries_max:
            self._forget_deleted(environment)
        stat = environment.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        is_full = pages * stat["psize"] + len(value) > LOCAL_STORE_BYTES_MAX
        if is_full or stat["entries"] > entries_max:  # one of them is the digest
            with environment.begin() as transaction:
                before = transaction.get(key)
            if is_full:
                value = _encode(versions[:1])
            if before is None or (is_full and len(value) > len(before)):
                raise UnavailableError(
                    f"a database has at most {LOCAL_DOCUMENTS_MAX} local documents, of "
                    f"{LOCAL_STORE_BYTES_MAX} bytes with their former versions; delete "
                    "checkpoints of replications that are not run any more",
                    code="too_many_local_documents",
                )
        self._put(key, value)

    def _forget_deleted(self, environment: lmdb.Environment) -> None:
        """Make room by removing the entries of deleted documents."""
        self._has_deleted = False
        self._withdraw_sum()
        with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            digest = int.from_bytes(transaction.get(DIGEST_KEY, b""))
            found = cursor.set_range(_LOCAL)
            while found and cursor.key().startswith(_LOCAL):
                # After a deletion the cursor is already at the next one.
                gone = not _decode(cursor.value())[0].rev
                if gone:
                    digest -= weight(cursor.key(), cursor.value())
                found = (cursor.delete() and bool(cursor.key())) if gone else cursor.next()
            transaction.put(DIGEST_KEY, as_digest(digest))

    def _put(self, key: bytes, value: bytes) -> None:
        environment = self._open()
        try:
            self._withdraw_sum()
            with environment.begin(write=True) as transaction:
                digest = int.from_bytes(transaction.get(DIGEST_KEY, b""))
                is_owned = not self._owner or transaction.get(OWNER_KEY) is not None
                new = {key: value} if is_owned else {OWNER_KEY: self._owner, key: value}
                for each, content in new.items():
                    before = transaction.get(each)
                    digest += weight(each, content) - (
                        0 if before is None else weight(each, before)
                    )
                    transaction.put(each, content)
                transaction.put(DIGEST_KEY, as_digest(digest))
            if not self._is_told:
                self._on_begun()
                self._is_told = True
        except (lmdb.Error, OSError) as error:  # LMDB reports an interrupted write as an error
            raise UnavailableError(
                f"local documents in {self._path} cannot be written: {error}", code="disk_full"
            ) from error

    def _withdraw_sum(self) -> None:
        """Remove the checksum of the file, durably, before the file changes."""
        if self._has_sum:
            (self._path / _SUM).unlink(missing_ok=True)
            sync_directory(self._path)
            self._has_sum = False

    # -- settings

    def setting(self, name: str) -> bytes | None:
        """Return a setting; None if it was not set."""
        if self._environment is None:
            return None
        with self._environment.begin() as transaction:
            value: bytes | None = transaction.get(_SETTING + name.encode())
        return value

    async def set(self, name: str, value: bytes) -> None:
        """Store a setting durably; raises as `write`."""
        async with self._turn:
            await in_thread(self._put, _SETTING + name.encode(), value)


# -- checks


def check_local(path: Path, *, must_be_there: bool, owner: str = "") -> bool:
    """Check the store in a directory that no process has open; return whether it has a digest.

    Changes nothing. Blocks. `owner`: as for `LocalStore`.

    Raises:
        CorruptionError: `local_lost`: it is missing or damaged, or another bucket's.
        OSError: it cannot be read.
    """
    has_digest = _check_entries(path, must_be_there=must_be_there)
    if owner and (path / _DATA).exists() and (path / _DATA).stat().st_size:
        try:
            with lmdb.open(str(path), readonly=True, lock=False) as environment:
                found = _owner_in(environment)
        except lmdb.Error as error:
            raise _lost(path, str(error)) from error
        if found not in (None, owner.encode()):
            raise _lost(path, f"it is of the bucket {found.decode(errors='replace')}")
    return has_digest


def _owner_in(environment: lmdb.Environment) -> bytes | None:
    with environment.begin() as transaction:
        found: bytes | None = transaction.get(OWNER_KEY)
    return found


def _check_entries(path: Path, *, must_be_there: bool) -> bool:
    data = path / _DATA
    if not data.exists():
        if must_be_there:
            raise _lost(path, "it is missing")
        return True
    if not data.stat().st_size:
        if must_be_there:
            raise _lost(path, "it is empty")
        return False
    if (path / _SUM).exists():
        if (path / _SUM).read_bytes() != _sum_of(path):
            raise _lost(path, "its checksum is another")
        return True
    has_digest, damage = scan_apart(path)
    if damage or (must_be_there and not has_digest):
        raise _lost(path, damage or "it has lost its digest")
    return has_digest


def accept_local(path: Path, owner: str = "") -> bool:
    """Accept the entries of a store as they are; False: they cannot be read. Blocks.

    `owner`: the bucket that it is of from now on. Raises OSError: it cannot be written.
    """
    if not (path / _DATA).exists() or not (path / _DATA).stat().st_size:
        return False
    if not is_readable(path):
        return False
    (path / _SUM).unlink(missing_ok=True)
    sync_directory(path)
    try:
        with (
            open_environment(path, map_size=_MAP_BYTES) as environment,
            environment.begin(write=True) as transaction,
        ):
            if owner:
                transaction.put(OWNER_KEY, owner.encode())
            transaction.put(DIGEST_KEY, digest_of(transaction))
    except lmdb.Error:
        return False
    return True


def _sum_of(path: Path) -> bytes:
    """Return the correct content of `sum` for the file as it is."""
    checksum = size = 0
    with (path / _DATA).open("rb") as file:
        while data := file.read(_READ_BYTES):
            checksum, size = crc32(data, checksum), size + len(data)
    return b"%d %08x\n" % (size, checksum)


def _lost(path: Path, reason: str) -> CorruptionError:
    return CorruptionError(
        f"{path / _DATA}, the local documents and settings of the database: {reason}; restore it "
        "from a backup",
        code="local_lost",
    )
