"""`millstream check DIR`: verify a data directory while no server uses it.

Elsewhere: the checking (`data_directory.check`), going on without something
(`data_directory.acceptance`).
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from millstream.cli.progress import progress_of
from millstream.coordination.aio.node_files_check import NodeFilesCheck
from millstream.coordination.core.pool.group_check import GroupCheck
from millstream.data_directory.acceptance import accept as go_on_without
from millstream.data_directory.check import BucketCheck, DirectoryCheck, check_directory
from millstream.errors import CorruptionError
from millstream.node.engine_settings import engine_directories
from millstream.views.core.index.index_check import IndexCheck

__all__ = ["command"]


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")],
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="WHAT",
            help="Go on without what is missing or damaged there, as the error says; repeatable.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read every record of a data directory; verify checksums, indexes and what records say.

    Without --accept nothing is changed. Exit code 1 if anything is missing or damaged. --json has
    the figures of each partition, too. Engines in DIR/engine-N are read, too; --accept is for one.
    """
    for what in accept or ():
        print(f"accepted: {go_on_without(directory, what)}", file=sys.stderr)
    # the first engine has the directory itself
    directories = [directory, *engine_directories(directory).values()]
    with _progress() as progress:
        checks = [check_directory(one, _Telling(progress)) for one in directories]
    if json:
        first, *others = [{**asdict(found), "is_sound": found.is_sound} for found in checks]
        print(msgspec.json.encode(first | ({"engines": others} if others else {})).decode())
    for one, found in zip(directories, checks, strict=True):
        if not json and len(checks) > 1:
            print(f"{one}:")
        if not json:
            _show(found)
    for found in checks:
        _raise_damage(found)


def _raise_damage(found: DirectoryCheck) -> None:
    """Raise what the exit code says.

    Raises:
        CorruptionError: anything is damaged.
    """
    if found.damage:
        raise CorruptionError("the node's own files are damaged")
    if found.coordination is not None and not found.coordination.is_sound:
        raise CorruptionError("the node's own files of coordination are damaged")
    for kind, checked in (("buckets", found.buckets), ("groups", found.groups)):
        if damaged := sum(not one.is_sound for one in checked):
            raise CorruptionError(f"{damaged} of {len(checked)} {kind} are damaged")


class _Telling:
    """Shows at a terminal which bucket is checked, and which share of its log was."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, bucket: BucketCheck, share: float) -> None:
        if bucket.name not in self._bars:
            self._bars[bucket.name] = self._progress.add_task(f"bucket {bucket.name}", total=1.0)
        self._progress.update(self._bars[bucket.name], completed=share)


def _progress() -> Progress:
    return progress_of(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        is_transient=True,
    )


def _show(found: DirectoryCheck) -> None:
    for damage in found.damage:
        print(f"DAMAGED: {damage}")
    print(f"node {found.uuid or 'unknown'}, format {found.format}, users {found.users}")
    for bucket in found.buckets:
        print(_line(bucket))
        for index in bucket.indexes:
            print(_index_line(index))
    if found.coordination is not None:
        print(_coordination_line(found.coordination))
    for group in found.groups:
        print(_group_line(group))


def _line(bucket: BucketCheck) -> str:
    if bucket.damage:
        return f"bucket {bucket.name}: DAMAGED: {bucket.damage}"
    if bucket.damaged_attachments:
        count = bucket.damaged_attachments
        return f"bucket {bucket.name}: DAMAGED: {count} attachments are missing or altered"
    if bucket.is_followed:
        return f"bucket {bucket.name}: its documents are on other nodes"
    log, total = bucket.log, bucket.total
    line = (
        f"bucket {bucket.name}: ok, {total('changes'):,} changes: "
        f"{total('documents'):,} documents, {total('tombstones'):,} deletions, "
        f"{total('replaced'):,} replaced, {total('dead'):,} rolled back; "
        f"{total('marks'):,} marks, high seqnos {total('high_seqno'):,}; {log.records:,} records, "
        f"{log.bytes:,} bytes in {log.segments} segments, {log.compacted_segments} compacted"
    )
    if log.by_id:
        line += f"; by-id {log.by_id}"
    if bucket.map_revision:
        line += f"; map {bucket.map_revision}, this is {bucket.node_name}"
    return line + _left(bucket.torn_bytes, bucket.leftover_files)


def _left(torn_bytes: int, files: int) -> str:
    """Return what the next start takes away of an interrupted one."""
    torn = f", a torn tail of {torn_bytes:,} bytes that the next start cuts" if torn_bytes else ""
    return torn + (f", {files} files that the next start removes" if files else "")


def _index_line(index: IndexCheck) -> str:
    if index.damage:
        return f"  index {index.signature}: DAMAGED: {index.damage}"
    line = (
        f"  index {index.signature}: ok, {sum(index.rows):,} rows of {index.documents:,} "
        f"documents in {len(index.rows)} trees; commit {index.commit}, "
        f"{index.kept_roots} kept roots, {index.nodes:,} nodes"
    )
    return line + (f", {index.unused_nodes:,} of them unused" if index.unused_nodes else "")


def _coordination_line(own: NodeFilesCheck) -> str:
    if own.damage:
        return f"coordination: DAMAGED: {own.damage}"
    if not own.node_id:
        return "coordination: ok, nothing was begun yet"
    line = f"coordination: ok, node {own.node_id}, {own.incarnation:,} starts, {own.groups} groups"
    if own.refusal:
        line += f", refused by the other nodes: {own.refusal}"
    return line + (f", {own.healed} files that the next start writes again" if own.healed else "")


def _group_line(group: GroupCheck) -> str:
    if group.damage:
        return f"group {group.folder}: DAMAGED: {group.damage}"
    if group.is_unfinished:
        return f"group {group.folder}: ok, being founded; the next start goes on with it"
    if not group.node_id:
        gone = f"{group.leftover_files} files that the next start removes"
        return f"group {group.folder}: ok, {gone}"
    line = (
        f"group {group.folder}: ok, epoch {group.epoch}, view {group.view}, entries "
        f"{group.first_lsn:,} to {group.last_lsn:,}"
    )
    if group.snapshot:
        line += f", snapshot {group.snapshot}"
    if group.healed:
        line += f", {group.healed} damaged twins that the next start writes again"
    return line + _left(group.torn_bytes, group.leftover_files)
