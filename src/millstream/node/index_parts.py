"""The index parts of a node in a managed cluster: its index records, and what its indexes do.

Each node keeps the newest index record of every partition that it heard of, in a file beside the
indexes: `buckets/UUID/index_parts.json`. They say which partitions are indexed here, and which
node answers for what. The index process is told by the description of the bucket.

    parts.bucket_up(uuid)                                   # reads the file
    await parts.take_maps(uuid, index_map, data_map, nodes)
    await parts.carry_out(uuid, steps)                      # of orders
    await parts.refresh()                                   # asks the index process
    parts.parts()                                           # what is known of it

Invariants:
1. What `take_maps` and `carry_out` were asked for is durable when they return. From then on no
   query is sent to an index process that does not know it.
2. A bucket whose records were adopted never again answers by its data map.
3. What the indexes have is asked for every `ASK_S`. A report of it is never older than two such
   times: after that it counts as unknown.
4. When a stop returns, no answer begins any more, and the part reports what it can have shown.
5. A slow index process holds up no data: only a stop waits for it.

Elsewhere: what records mean (`cluster.core.kept_parts`), orders (`cluster.core.admission`), the
index process (`node.indexes`, `views.aio.serving.owned_parts`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.cluster.core.admission import AdoptIndex, Freeze, StopPart
from millstream.cluster.core.elements import NodeRecord
from millstream.cluster.core.kept_parts import (
    Indexed,
    KeptPart,
    adopted,
    frozen,
    indexed_of,
    parts_from_json,
    parts_to_json,
    report_of,
    state_of,
    stopped,
)
from millstream.cluster.core.orders import Place
from millstream.cluster.core.reports import PartReport
from millstream.errors import CorruptionError, UnavailableError
from millstream.model.cluster_maps import NO_FLOOR, DataMap, Floor, IndexMap, IndexRecord, MapKey
from millstream.node.indexes import Indexes
from millstream.runtime.files import write_atomically
from millstream.runtime.tasks import Tasks
from millstream.views.aio.serving.bucket_order import FollowedNode, Member, OwnedParts

__all__ = ["ASK_S", "INDEX_PARTS_FILE", "IndexParts", "IndexStep"]

_LOG = logging.getLogger(__name__)
INDEX_PARTS_FILE: Final = "index_parts.json"
ASK_S: Final = 0.5
"""How often the index process is asked how far its indexes are."""
_NO_DESIGNS: Final = "none"
"""Digest of no index at all."""
_Told = tuple[MapKey, Floor, Floor, bool, bool, Floor | None]
IndexStep = AdoptIndex | Freeze | StopPart


class _Bucket:
    """What is known of one bucket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: dict[int, KeptPart] = {}
        self.is_doubtful = False
        """The file was damaged: parts answer nothing under the first record they get."""
        self.data: DataMap | None = None
        self.nodes: Mapping[str, NodeRecord] = {}
        self.told: Mapping[int, Indexed] = {}
        self.told_at = 0.0
        self.outside_at: float | None = None
        """When a writer outside was heard last; None: none keeps an index."""
        self.count = 0
        """Number of that answer of the index process."""
        self.cleaning: frozenset[int] = frozenset()
        self.shown: dict[int, Floor] = {}
        """The most that this node has reported of what it owns."""
        self.is_certain = False
        """Whether all design documents of the bucket are known."""
        self.stopped: dict[int, Indexed] = {}
        """How far parts were that have stopped."""
        self.is_awaited = False
        """The index process is asked once it has the newest description."""
        self.lock = asyncio.Lock()


class IndexParts:
    """The index parts of one node; begins with `start`, ends with `stop`.

    Args:
        node: its id.
        folder: the directories of its buckets are in it, by uuid.
        indexes: describes buckets to the index process.
    """

    def __init__(self, node: str, folder: Path, indexes: Indexes) -> None:
        self._node, self._folder, self._indexes = node, folder, indexes
        self._buckets: dict[str, _Bucket] = {}
        self._lease_ms: int | None = None
        self._tasks = Tasks()
        indexes.ownership = self

    def start(self) -> None:
        """Begin to ask the index process."""
        self._tasks.start(self._keep_asking(), name="parts of the index")

    async def stop(self) -> None:
        """Ask no more."""
        await self._tasks.stop()

    # -- the right to answer

    def set_lease(self, lease_ms: int | None) -> None:
        """Set until when the node is in step; None: it is not.

        Args:
            lease_ms: on the clock of `time.monotonic_ns() // 1_000_000`.
        """
        self._lease_ms = lease_ms

    @property
    def is_in_step(self) -> bool:
        """Whether the node may answer by its index records."""
        return self._lease_ms is not None and time.monotonic_ns() // 1_000_000 < self._lease_ms

    # -- buckets

    def bucket_up(self, uuid: str) -> None:
        """Read what is durable of a bucket. Blocks; raises OSError."""
        if uuid not in self._buckets:
            self._buckets[uuid] = self._read(self._folder / uuid / INDEX_PARTS_FILE)

    def bucket_gone(self, uuid: str) -> None:
        """Forget a bucket; its directory is removed by others."""
        self._buckets.pop(uuid, None)

    def is_managed(self, uuid: str) -> bool:
        """Return whether a bucket has an index map."""
        known = self._buckets.get(uuid)
        return known is not None and (bool(known.parts) or known.is_doubtful)

    def _read(self, path: Path) -> _Bucket:
        known = _Bucket(path)
        try:
            known.parts = parts_from_json(path.read_bytes())
        except FileNotFoundError:
            pass
        except CorruptionError as error:
            _LOG.error("%s: %s; its parts answer nothing before they are ordered to", path, error)
            known.is_doubtful = True
        return known

    # -- what is told

    def parts(self) -> dict[str, dict[int, PartReport]]:
        """Return the parts that are here, by uuid and partition."""
        return {uuid: self._parts_of(known) for uuid, known in self._buckets.items()}

    def index_record(self, place: Place) -> IndexRecord | None:
        """Return the adopted index record of a partition."""
        known = self._buckets.get(place.bucket)
        part = None if known is None else known.parts.get(place.partition)
        return None if part is None else part.record

    def _parts_of(self, known: _Bucket) -> dict[int, PartReport]:
        is_new = time.monotonic() - known.told_at <= 2 * ASK_S
        found: dict[int, PartReport] = {}
        for partition, part in known.parts.items():
            told = known.told.get(partition) if is_new else None
            if part.is_stopped:  # it stands where it was
                told = known.stopped.get(partition, told)
            if told is not None and not known.is_certain:
                told = told._replace(designs="", own_designs="")
            if told is not None and known.outside_at is not None:
                silent_ms = int((time.monotonic() - known.outside_at) * 1000)
                told = told._replace(outside_ms=silent_ms)
            is_cleaning = partition in known.cleaning
            report = report_of(part, self._node, told, is_cleaning=is_cleaning)
            if report is not None:
                found[partition] = report
        return found

    # -- what is ordered

    async def take_maps(
        self,
        uuid: str,
        index_map: IndexMap | None,
        data_map: DataMap | None,
        nodes: Mapping[str, NodeRecord],
    ) -> None:
        """Take whole maps of a bucket; older ones and older records are passed over.

        Args:
            uuid: of the bucket.
            index_map: None: there is none.
            data_map: says which node each partition is read from. None: there is none.
            nodes: the members of the cluster, by id.

        Raises:
            CorruptionError: `other_map`.
            UnavailableError: `disk_error`.
        """
        self.bucket_up(uuid)
        known = self._buckets[uuid]
        async with known.lock:
            before = self._sources(known), self._members(known)
            if data_map is not None and (known.data is None or data_map.key >= known.data.key):
                known.data = data_map
            known.nodes = nodes
            parts = dict(known.parts)
            for partition, record in enumerate(() if index_map is None else index_map.records):
                self._adopt(known, parts, partition, record)
            is_new = await self._keep(known, parts)
            if is_new or before != (self._sources(known), self._members(known)):
                self._describe(uuid, known)

    async def carry_out(self, bucket: str, steps: Sequence[IndexStep]) -> None:
        """Carry out steps of orders, of any partitions of a bucket.

        Raises:
            CorruptionError: `other_map`.
            UnavailableError: `disk_error`; `index_unavailable`: how far a part is that should stop
                is not known, or whether it has stopped.
        """
        self.bucket_up(bucket)
        known = self._buckets[bucket]
        ended = [step.place.partition for step in steps if isinstance(step, StopPart)]
        if ended:
            await self._check_measured(bucket, known, ended)
        async with known.lock:
            parts = dict(known.parts)
            for step in steps:
                partition = step.place.partition
                if isinstance(step, AdoptIndex):
                    self._adopt(known, parts, partition, step.record)
                elif partition in parts:
                    change = frozen if isinstance(step, Freeze) else stopped
                    parts[partition] = change(parts[partition])
            if await self._keep(known, parts):
                self._describe(bucket, known)
        if ended:
            await self._see_stopped(bucket, known, [p for p in ended if p in parts])

    async def _see_stopped(self, uuid: str, known: _Bucket, partitions: Sequence[int]) -> None:
        """Wait until parts answer no more, and keep how far they were.

        Raises:
            UnavailableError: `index_unavailable`.
        """
        await self._indexes.until_told(uuid)
        await self._check_measured(uuid, known, partitions)
        known.stopped |= {p: known.told[p] for p in partitions}

    async def _check_measured(self, uuid: str, known: _Bucket, partitions: Sequence[int]) -> None:
        """Ask how far parts are, and raise if that cannot be known now: they are not stopped then.

        Raises:
            UnavailableError: `index_unavailable`.
        """
        await self.refresh(uuid)
        for partition in partitions:
            part, told = known.parts.get(partition), known.told.get(partition)
            if part is not None and (told is None or told.at != part.record.at):
                raise UnavailableError(
                    f"how far part {partition} of the index is cannot be known now; try again",
                    code="index_unavailable",
                )

    def _describe(self, uuid: str, known: _Bucket) -> None:
        """Let the index process know of changed parts, and ask it once it does."""
        if not self.is_managed(uuid):
            return
        self._indexes.describe_again(uuid)
        if not known.is_awaited:
            known.is_awaited = True
            self._tasks.start(self._ask_once_told(uuid, known), name=f"parts of {uuid}")

    async def _ask_once_told(self, uuid: str, known: _Bucket) -> None:
        with suppress(UnavailableError):
            await self._indexes.until_told(uuid)
        known.is_awaited = False
        await self.refresh(uuid)

    def _adopt(
        self, known: _Bucket, parts: dict[int, KeptPart], partition: int, record: IndexRecord
    ) -> None:
        before = parts.get(partition)
        parts[partition] = adopted(before, record)
        if before is None and known.is_doubtful:
            parts[partition] = stopped(parts[partition])

    async def _keep(self, known: _Bucket, parts: dict[int, KeptPart]) -> bool:
        """Make parts durable, then use them; return whether they are new."""
        if parts == known.parts:
            return False
        try:
            await asyncio.to_thread(write_atomically, known.path, parts_to_json(parts))
        except OSError as error:
            raise UnavailableError(
                f"{known.path} cannot be written: {error}; check the disk", code="disk_error"
            ) from error
        known.parts = parts
        owned = {p for p, part in parts.items() if part.record.owner == self._node}
        known.shown = {p: floor for p, floor in known.shown.items() if p in owned}
        return True

    # -- the index process

    async def refresh(self, uuid: str | None = None) -> None:
        """Ask the index process how far the indexes are, of one bucket or of all.

        Which history a source follows it knows from some two seconds ago.
        """
        uuids = list(self._buckets) if uuid is None else [uuid]
        for each in uuids:
            known = self._buckets.get(each)
            if known is not None and self.is_managed(each):
                await self._ask(each, known)

    async def _keep_asking(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(ASK_S)

    async def _ask(self, uuid: str, known: _Bucket) -> None:
        began = time.monotonic()
        answer = await self._indexes.parts(uuid, known.count)
        if answer is None:
            known.told, known.count = {}, 0
            return
        known.is_certain = answer["is_certain"]
        silent_s = answer.get("outside_s")
        known.outside_at = None if silent_s is None else began - silent_s
        known.count = answer.get("count", 0)
        if known.count and "parts" not in answer:  # nothing has happened
            known.told_at = began
            return
        if "parts" not in answer:
            told = {p: indexed_of(part.record, _NO_DESIGNS) for p, part in self._here(known)}
        else:
            found = msgspec.convert(answer["parts"], dict[int, _Told], str_keys=True)
            told = {
                p: Indexed(one[0], answer["designs"], *one[1:], answer["own_designs"])
                for p, one in found.items()
            }
        for partition, part in self._here(known):
            if part.record.owner == self._node and partition in told:
                one = told[partition]
                shown = max(one.shown, known.shown.get(partition, NO_FLOOR))
                known.shown[partition] = shown
                told[partition] = one._replace(shown=shown)
        known.told, known.told_at = told, began
        known.cleaning = frozenset(answer.get("cleaning", ()))

    def _here(self, known: _Bucket) -> Iterable[tuple[int, KeptPart]]:
        return ((p, one) for p, one in known.parts.items() if self._node in one.record.placed)

    def described(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the description of a bucket, by its index map if it has one."""
        uuid = order["uuid"]
        if not self.is_managed(uuid):
            return order
        known = self._buckets[uuid]
        by_state: dict[str | None, list[int]] = {}
        for partition, part in sorted(known.parts.items()):
            by_state.setdefault(state_of(part, self._node), []).append(partition)
        here, follows = self._sources(known)
        owned = OwnedParts(
            self._node,
            {p: part.record for p, part in known.parts.items()},
            self._members(known),
            here,
            [p for p, part in self._here(known) if part.is_frozen],
        )
        return order | {
            "active": by_state.get("active", []),
            "passive": by_state.get("passive", []),
            "resting": [],
            "nodes": [],
            "owed": {},
            "follows": follows,
            "owned": owned,
        }

    def _members(self, known: _Bucket) -> dict[str, Member]:
        return {
            node: Member(one.name, one.host, one.ports["http"])
            for node, one in known.nodes.items()
            if "http" in one.ports
        }

    def _sources(self, known: _Bucket) -> tuple[list[int], list[FollowedNode]]:
        """Return the partitions that are read here, and the other nodes that are read."""
        by_node: dict[str, list[int]] = {}
        for partition, record in enumerate(() if known.data is None else known.data.records):
            if record.active is not None:
                by_node.setdefault(record.active, []).append(partition)
        here = by_node.pop(self._node, [])
        places = [(known.nodes.get(node), by_node[node]) for node in sorted(by_node)]
        return here, [
            FollowedNode(one.host, one.ports["kv"], partitions)
            for one, partitions in places
            if one is not None and "kv" in one.ports
        ]
