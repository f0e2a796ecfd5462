"""The manifest of a backup: what it holds of each partition, and as of which position.

    manifest-000003.json
    {"format": "millstream-backup", "version": 1, "id": 3, "parent": 2, "created": "...Z",
     "bucket": "flights", "bucket_uuid": "<hex>", "partition_count": 64, "row_count": 120,
     "parts": [{"partition": 0, "kind": "changes", "position": ["<12 hex>", 9, 9, 9], "branch": 7,
                "purge_seqno": 0, "rollback_to": null, "failover_log": [["<12 hex>", 0, 7]],
                "files": [{"path": "...", "row_count": 120, "byte_count": 5123,
                           "sha256": "<64 hex>"}],
                "blobs": {"path": "...", ...}, "missing_blobs": 0}, ...]}

Invariants:
1. A manifest that can be read is whole: every partition has one part, every part a closed
   position, and what each kind of part needs is there. Nothing of another version is guessed at.
2. Texts are stable: the same manifest gives the same bytes.

Elsewhere: how parts of several manifests go together (`chain`), files (`directory`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from millstream.errors import CorruptionError, UsageError
from millstream.model.limits import PARTITIONS_MAX
from millstream.model.position import (
    FailoverEntry,
    FailoverLog,
    Position,
    position_from_json,
    position_to_json,
)

__all__ = [
    "MANIFEST_VERSION",
    "MANIFEST_VERSION_BLOBS",
    "DataFile",
    "Manifest",
    "Part",
    "PartKind",
    "manifest_from_json",
    "manifest_to_json",
]

MANIFEST_VERSION: Final = 1
MANIFEST_VERSION_BLOBS: Final = 2
"""Version of a backup with attachments. Releases without attachments must not restore it."""
FORMAT: Final = "millstream-backup"

PartKind = Literal["full", "changes", "branched"]
"""full: all there is, whatever was known before is void. changes: what is newer than the parent's
position. branched: the same from `rollback_to`, above which what was known is void."""


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file; `path` is relative to the backup's directory, with slashes."""

    path: str
    row_count: int
    byte_count: int
    sha256: str


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds of one partition.

    `position`: closed, what a reader of the whole chain has. `branch`: of the history it was read
    from. `purge_seqno`: deletions at or below may be missing from the chain. `failover_log`: of
    the partition, newest first. `blobs`: the list of the attachments that its rows name and the
    backup has; `missing_blobs`: how many it has not got, since the node had not.
    """

    partition: int
    kind: PartKind
    position: Position
    branch: int
    purge_seqno: int
    failover_log: FailoverLog
    rollback_to: int | None = None
    files: tuple[DataFile, ...] = ()
    blobs: DataFile | None = None
    missing_blobs: int = 0

    @property
    def all_files(self) -> tuple[DataFile, ...]:
        """Its files, and the list of its attachments."""
        return self.files if self.blobs is None else (*self.files, self.blobs)

    @property
    def row_count(self) -> int:
        """Rows of its files, marks included."""
        return sum(file.row_count for file in self.files)

    def as_full(self, files: Iterable[DataFile]) -> Part:
        """Return a part that replaces this one and all that it builds on."""
        return msgspec.structs.replace(
            self, kind="full", rollback_to=None, files=tuple(files), blobs=None, missing_blobs=0
        )

    def with_blobs(self, blobs: DataFile | None, missing: int) -> Part:
        """Return the same with what is known of its attachments."""
        return msgspec.structs.replace(self, blobs=blobs, missing_blobs=missing)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest says of the backup as a whole; `created` as ISO 8601 in UTC."""

    id: int
    parent: int | None
    created: str
    bucket: str
    bucket_uuid: str
    partition_count: int


class Manifest(Head, frozen=True, kw_only=True):
    """One backup; `parts` in the order of partitions."""

    parts: tuple[Part, ...]

    def part(self, partition_id: int) -> Part:
        """Return what it holds of a partition."""
        return self.parts[partition_id]

    @property
    def missing_blobs(self) -> int:
        """Attachments that its rows name and the node had not got."""
        return sum(part.missing_blobs for part in self.parts)

    @property
    def row_count(self) -> int:
        """Rows of all files."""
        return sum(part.row_count for part in self.parts)


class _Kind(msgspec.Struct):
    format: str = ""
    version: Any = None


class _Form(Head, frozen=True, kw_only=True):
    row_count: int
    parts: list[_PartForm]


class _PartForm(msgspec.Struct, kw_only=True):
    partition: int
    kind: PartKind
    position: list[str | int]
    branch: int
    purge_seqno: int
    rollback_to: int | None
    failover_log: list[tuple[str, int, int]]
    files: list[DataFile]
    blobs: DataFile | None = None
    missing_blobs: int = 0


def manifest_to_json(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest's file."""
    has_blobs = any(part.blobs or part.missing_blobs for part in manifest.parts)
    form: Mapping[str, Any] = {
        "format": FORMAT,
        "version": MANIFEST_VERSION_BLOBS if has_blobs else MANIFEST_VERSION,
        **_head(manifest),
        "row_count": manifest.row_count,
        "parts": [_part_to_json(part, has_blobs=has_blobs) for part in manifest.parts],
    }
    return msgspec.json.format(msgspec.json.encode(form), indent=1) + b"\n"


def manifest_from_json(text: bytes, name: str) -> Manifest:
    """Reverse `manifest_to_json`; `name` says in messages which file it is.

    Raises:
        UsageError: `other_format`: no manifest of this version.
        CorruptionError: `bad_manifest`.
    """
    try:
        kind = msgspec.json.decode(text, type=_Kind)
        if kind.format != FORMAT or kind.version not in (MANIFEST_VERSION, MANIFEST_VERSION_BLOBS):
            raise UsageError(
                f"{name} is {kind.format or 'no backup'!r} version {kind.version!r}, not "
                f"{FORMAT!r} version {MANIFEST_VERSION} or {MANIFEST_VERSION_BLOBS}; use the "
                "release that wrote it",
                code="other_format",
            )
        form = msgspec.json.decode(text, type=_Form)
        manifest = Manifest(
            **_head(form), parts=tuple(_part_from_json(part) for part in form.parts)
        )
        _check(manifest, form.row_count)
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"{name} is damaged: {error}; restore to an older manifest, or make a new backup",
            code="bad_manifest",
        ) from error
    return manifest


def _head(head: Head) -> dict[str, Any]:
    return {name: getattr(head, name) for name in Head.__struct_fields__}


def _check(manifest: Manifest, row_count: int) -> None:
    """Raise ValueError unless invariant 1 holds."""
    if not 0 < manifest.partition_count <= PARTITIONS_MAX:
        raise ValueError(f"{manifest.partition_count} partitions")
    if [part.partition for part in manifest.parts] != list(range(manifest.partition_count)):
        raise ValueError("partitions are missing or out of order")
    if row_count != manifest.row_count:
        raise ValueError(f"row_count {row_count}, but its files have {manifest.row_count}")
    if manifest.parent is not None and not 0 < manifest.parent < manifest.id:
        raise ValueError(f"parent {manifest.parent} of {manifest.id}")
    for part in manifest.parts:
        where = f"partition {part.partition}"
        if not part.position.is_closed or not part.failover_log:
            raise ValueError(f"{where}: position or failover log is not one of a backup")
        if (part.rollback_to is not None) != (part.kind == "branched"):
            raise ValueError(f"{where}: rollback_to goes with kind branched only")
        if manifest.parent is None and part.kind != "full":
            raise ValueError(f"{where}: {part.kind} without a parent")
        if any(_leaves(file.path) for file in part.all_files):
            raise ValueError(f"{where}: a file outside the backup")


def _leaves(path: str) -> bool:
    return path.startswith("/") or "\\" in path or ".." in path.split("/")


def _part_to_json(part: Part, *, has_blobs: bool) -> Mapping[str, Any]:
    blobs: dict[str, Any] = {}
    if has_blobs:
        listed = None if part.blobs is None else msgspec.to_builtins(part.blobs)
        blobs = {"blobs": listed, "missing_blobs": part.missing_blobs}
    return {
        "partition": part.partition,
        "kind": part.kind,
        "position": position_to_json(part.position),
        "branch": part.branch,
        "purge_seqno": part.purge_seqno,
        "rollback_to": part.rollback_to,
        "failover_log": [[f"{uuid:012x}", *rest] for uuid, *rest in part.failover_log],
        "files": [msgspec.to_builtins(file) for file in part.files],
        **blobs,
    }


def _part_from_json(form: _PartForm) -> Part:
    log = tuple(FailoverEntry(int(uuid, 16), *rest) for uuid, *rest in form.failover_log)
    numbers = [form.branch, form.purge_seqno, form.rollback_to or 0, form.missing_blobs]
    numbers += [number for entry in log for number in entry]
    if min(numbers) < 0:
        raise ValueError(f"negative number in partition {form.partition}")
    return Part(
        partition=form.partition, kind=form.kind, position=position_from_json(form.position),
        branch=form.branch, purge_seqno=form.purge_seqno, failover_log=log,
        rollback_to=form.rollback_to, files=tuple(form.files), blobs=form.blobs,
        missing_blobs=form.missing_blobs,
    )  # fmt: skip
