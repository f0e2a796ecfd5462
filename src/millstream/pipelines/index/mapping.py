"""What an executor does for an index: reads ranges, maps them, stages what came of it.

The maps are those of the node (`views.aio.indexing.index_mapping`), fed with the same frames and
sides: documents look the same, and JavaScript runs in the same sandbox.

Invariants:
1. A task that is tried again, or runs twice, stages files of other names; which of them count,
   the driver says.
2. Partitions that could not be read to the end are told, never passed over.
3. Rows of a first build leave memory as sorted runs on the executor's disk.
4. A mapper is kept between tasks of one worker, for one index at a time.

Elsewhere: which ranges (`planning`), where the files go (`shard`).
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.errors import RoutingError, StreamError
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.reading import NodeRanges
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.shard import IndexAddress, IndexShard
from millstream.runtime.process import calm_collector
from millstream.upr.core.descriptions import cut_run, is_of_a_pair
from millstream.views.aio.indexing.first_rows import FirstRows
from millstream.views.aio.indexing.index_mapping import IndexMapper, MappedChanges
from millstream.views.aio.sandbox.modules import load_modules
from millstream.views.core.design.design_documents import parse_design
from millstream.views.core.design.documents import Changes
from millstream.views.core.index.header import MAP_ERRORS_KEPT_MAX, MapFailure
from millstream.views.core.index.staged import blocks_of
from millstream.wire.mcbp import HEADER

__all__ = ["MAP_BYTES", "MAP_CHANGES", "MapSpec", "TaskDone", "run_task"]

MAP_CHANGES: Final = 1000
"""Changes that are mapped at a time."""
MAP_BYTES: Final = 8 * 1024 * 1024
"""Fewer where they have so many bytes."""
_HEADER_BYTES: Final = 24


class MapSpec(msgspec.Struct, frozen=True):
    """What all tasks of a commit have in common; travels to executors."""

    source: SourceOptions
    address: IndexAddress
    bucket_uuid: str
    design: bytes
    """The design document as JSON."""
    signature: str
    fence: int
    is_first: bool
    modules: tuple[str, ...] = ()


class Failures(msgspec.Struct):
    """Failures of map functions in one partition: the last ones, and the number of others."""

    last: list[MapFailure] = []
    before: dict[int, int] = {}


class TaskDone(msgspec.Struct):
    """What a task made: names of staged files, and of which partitions."""

    changes: int = 0
    back: list[str] = []
    trees: list[list[str]] = []
    documents: list[str] = []
    failures: dict[int, Failures] = {}
    partitions: list[int] = []
    """The partitions of the task."""
    lost: list[int] = []
    """Partitions that were not read to the end."""

    @property
    def runs(self) -> list[str]:
        """All its files."""
        return [*self.back, *self.documents, *(name for names in self.trees for name in names)]


_mappers: dict[tuple[str, str], IndexMapper] = {}


def run_task(spec: MapSpec, plans: Sequence[PartPlan]) -> TaskDone:
    """Read some ranges, map them, and stage what came of it.

    Raises:
        UnavailableError: the node cannot be reached; the task is to be tried again.
        ConditionError: `index_fenced`: another writer has taken over.
    """
    mapper = _mapper_of(spec)
    done = TaskDone(partitions=[plan.partition for plan in plans])
    maker: _FirstFiles | _DocumentFiles
    with tempfile.TemporaryDirectory(prefix="millstream-index-") as folder:
        if spec.is_first:
            maker = _FirstFiles(len(parse_design(_object(spec.design)).trees), Path(folder))
        else:
            maker = _DocumentFiles(Path(folder))
        try:
            try:
                for changes in _changes(spec.source, plans):
                    done.changes += len(changes.frames)
                    maker.add(mapper.map(changes))
            except (StreamError, RoutingError):
                # A lease or a history is gone, or nobody serves one: it is not said of which.
                done.lost = done.partitions
                return done
            maker.stage(IndexShard(spec.address), spec.fence, done)
            done.failures = maker.failures(done.partitions)
        finally:
            maker.close()
    return done


def _mapper_of(spec: MapSpec) -> IndexMapper:
    key = (spec.signature, spec.bucket_uuid)
    mapper = _mappers.get(key)
    if mapper is None:
        calm_collector()  # rows wait in memory by the hundred thousand
        load_modules(spec.modules)
        for other in _mappers.values():
            other.close()
        _mappers.clear()
        mapper = _mappers[key] = IndexMapper(parse_design(_object(spec.design)), spec.bucket_uuid)
    return mapper


def _object(text: bytes) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])


def _changes(source: SourceOptions, plans: Sequence[PartPlan]) -> Iterator[Changes]:
    """Yield changes with their sides, `MAP_CHANGES` or `MAP_BYTES` and some more at a time."""
    ranges = NodeRanges(source, with_values=True, with_meta=True)
    frames: list[bytes] = []
    sides: list[bytes] = []
    size = 0
    try:
        for chunk in ranges.stream([plan.range for plan in plans]):
            at = 0
            while at < len(chunk):
                if not is_of_a_pair(chunk, at):  # a marker, an advance
                    at += _HEADER_BYTES + HEADER.unpack_from(chunk, at)[6]
                    continue
                begin = at
                run, at = cut_run(chunk, begin)
                frames += run.frames
                sides += run.sides
                size += at - begin
                if len(frames) >= MAP_CHANGES or size >= MAP_BYTES:
                    yield Changes(frames, sides)
                    frames, sides, size = [], [], 0
        if frames:
            yield Changes(frames, sides)
    finally:
        ranges.close()


class _FirstFiles:
    """Sorted rows of the back-index and of each tree."""

    def __init__(self, tree_count: int, folder: Path) -> None:
        self._rows = FirstRows(tree_count, folder)

    def add(self, mapped: MappedChanges) -> None:
        self._rows.add(mapped)

    def stage(self, shard: IndexShard, fence: int, done: TaskDone) -> None:
        names: list[list[str]] = []
        for portions in self._rows.portions():
            name = _new_name()
            shard.stage(fence, name, chain.from_iterable(map(blocks_of, portions)))
            names.append([name])
        done.back, done.trees = names[0], names[1:]

    def failures(self, partitions: Iterable[int]) -> dict[int, Failures]:
        found = {}
        for partition in partitions:
            last, before = self._rows.failures_of(partition)
            if last:
                found[partition] = Failures(last, before)
        return found

    def close(self) -> None:
        self._rows.close()


class _DocumentFiles:
    """Changed documents with all they contribute now."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
        self._failures: dict[int, Failures] = {}

    def add(self, mapped: MappedChanges) -> None:
        self._file.writelines(blocks_of(mapped.documents))
        for partition, failure in mapped.failures:
            kept = self._failures.setdefault(partition, Failures([], {}))
            kept.last.append(failure)
            if len(kept.last) > MAP_ERRORS_KEPT_MAX:
                tree = kept.last.pop(0).tree
                kept.before[tree] = kept.before.get(tree, 0) + 1

    def stage(self, shard: IndexShard, fence: int, done: TaskDone) -> None:
        if done.changes:
            name = _new_name()
            self._file.seek(0)
            shard.stage(fence, name, iter(lambda: self._file.read(64 * 1024), b""))
            done.documents = [name]

    def failures(self, _: Iterable[int]) -> dict[int, Failures]:
        return self._failures

    def close(self) -> None:
        self._file.close()


def _new_name() -> str:
    return f"r{secrets.token_hex(12)}"
