"""Data maps and index maps of a managed cluster: their records, keys and JSON.

A *record* says of one partition where its copies are. A *row* has a place for each wanted copy;
None is a place that no node fills. `rows` are in force together: a majority write needs a majority
of each of them, and a promotion its quorum of each. The last row is the wanted one, and its first
place is that of the copy that is to be active.

Invariants:
1. Maps are ordered by key (generation, revision). A key has one content.
2. A record has 1 to `ROWS_MAX` rows. A row names a node at most once. Rows differ in width while
   the number of replicas is being changed.
3. A copy that is being built counts for nothing, so it has no place in a row.
4. The JSON of a map names each node once, and numbers it elsewhere. The JSON of a single record,
   which orders and reports carry, names nodes.

Elsewhere: the places of these maps (`cluster.core.elements`), what rows demand
(`cluster.core.quorums`), maps made by hand (`model.bucket_map`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from millstream.errors import CorruptionError
from millstream.model.bucket_map import (
    BUCKET_NODES_MAX,
    COPIES_MAX,
    MAP_REVISION_MAX,
    BucketMap,
    NodeAddress,
)
from millstream.model.position import FailoverLog
from millstream.model.rows import Row

__all__ = [
    "BRANCH_MAX",
    "NO_FLOOR",
    "NO_KEY",
    "ROWS_MAX",
    "DataMap",
    "DataRecord",
    "Floor",
    "IndexMap",
    "IndexRecord",
    "MapKey",
    "bucket_map_of",
    "data_map_from_json",
    "data_map_to_json",
    "has_reached",
    "index_map_from_json",
    "index_map_to_json",
    "next_data_map",
    "next_index_map",
]

ROWS_MAX: Final = 8
"""Most rows in force at once. Each change of plan during a move adds one."""
BRANCH_MAX: Final = 2**53 - 1


class MapKey(NamedTuple):
    """The age of a map or a record; a larger one is newer."""

    generation: int
    revision: int

    def next(self) -> MapKey:
        """Return the key of the map that replaces the one of this key."""
        return MapKey(self.generation, self.revision + 1)


NO_KEY: Final = MapKey(0, 0)
"""Older than every map."""


class DataRecord(msgspec.Struct, frozen=True):
    """One partition in the data map."""

    at: MapKey
    """The map in which this record last changed."""
    active: str | None
    """Node of the copy that serves; None: none yet, or all copies were given up."""
    branch: int
    """The branch of the history that it serves. It never falls."""
    rows: tuple[Row, ...]
    building: tuple[str, ...] = ()
    """Nodes whose copies follow and do not count."""
    since: MapKey = NO_KEY
    """The map that added the last row. `NO_KEY` if there is only one row."""

    def __post_init__(self) -> None:
        _check_key(self.at, "at")
        _check_key(self.since, "since")
        _check(0 <= self.branch <= BRANCH_MAX, f"branch {self.branch}")
        _check(1 <= len(self.rows) <= ROWS_MAX, f"{len(self.rows)} rows")
        for row in self.rows:
            names = [name for name in row if name is not None]
            _check(1 <= len(row) <= COPIES_MAX, f"a row of {len(row)} places")
            _check(len(set(names)) == len(names), f"row {row} names a node twice")
        _check(len(set(self.building)) == len(self.building), "a copy is built twice")
        _check(not set(self.building) & set(self.voters), "a copy that counts is being built")

    @property
    def row(self) -> Row:
        """Return the wanted row."""
        return self.rows[-1]

    @property
    def is_moving(self) -> bool:
        """Whether several rows are in force."""
        return len(self.rows) > 1

    @property
    def voters(self) -> tuple[str, ...]:
        """Return the nodes whose copies count, each once."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row if name is not None))

    @property
    def placed(self) -> tuple[str, ...]:
        """Return the nodes that have, or should have, a copy."""
        return (*self.voters, *self.building)


class Floor(NamedTuple):
    """What the owner of an index part must have indexed before it answers."""

    branch: int
    """The branch of the history that was followed to this position."""
    seqno: int


NO_FLOOR: Final = Floor(0, 0)


def has_reached(log: FailoverLog, seqno: int, floor: Floor) -> bool:
    """Return whether an index part has everything that a floor demands.

    Where the history parted from that of the floor, the part needs no more than both have.

    Args:
        log: failover log of the history that the part follows, newest first; empty: it has read
            nothing yet, and whether the partition has anything is not known.
        seqno: up to which it has indexed.
        floor: to be reached.
    """
    if not log:
        return floor == NO_FLOOR
    if log[0].branch < floor.branch:
        return False
    parted = min(
        (entry.seqno for entry in log if entry.branch > floor.branch), default=floor.seqno
    )
    return seqno >= min(floor.seqno, parted)


class IndexRecord(msgspec.Struct, frozen=True):
    """One partition in the index map."""

    at: MapKey
    owner: str | None
    """Node whose index answers for the partition."""
    building: str | None = None
    """Node that makes a passive part."""
    floor: Floor = NO_FLOOR
    """What the part must have indexed before it answers. It never falls."""

    def __post_init__(self) -> None:
        _check_key(self.at, "at")
        _check(0 <= self.floor.branch <= BRANCH_MAX and self.floor.seqno >= 0, f"{self.floor}")
        _check(self.building is None or self.building != self.owner, "the owner builds its part")

    @property
    def placed(self) -> tuple[str, ...]:
        """Return the nodes that have, or should have, a part."""
        return tuple(name for name in (self.owner, self.building) if name is not None)


class DataMap(NamedTuple):
    """The data map of a bucket; `records` by partition."""

    key: MapKey
    bucket: str
    records: tuple[DataRecord, ...]

    def names(self) -> frozenset[str]:
        """Return the nodes that any record names."""
        return frozenset(
            name for one in self.records for name in (one.active, *one.placed) if name is not None
        )


class IndexMap(NamedTuple):
    """The index map of a bucket, of all its design documents; `records` by partition."""

    key: MapKey
    bucket: str
    records: tuple[IndexRecord, ...]

    def names(self) -> frozenset[str]:
        """Return the nodes that any record names."""
        return frozenset(name for one in self.records for name in one.placed)


def next_data_map(before: DataMap, changed: Mapping[int, DataRecord]) -> DataMap:
    """Return the next revision, in which these records are replaced.

    Keys are set here: `at` of each changed record, and `since` where the last row is another one.
    """
    key = before.key.next()
    records = list(before.records)
    for partition, record in changed.items():
        old = records[partition]
        assert record.branch >= old.branch, f"the branch of {partition} falls"
        is_added = record.row != old.row or len(record.rows) > len(old.rows)
        since = key if is_added else record.since
        if not record.is_moving:
            since = NO_KEY
        records[partition] = msgspec.structs.replace(record, at=key, since=since)
    return DataMap(key, before.bucket, tuple(records))


def next_index_map(before: IndexMap, changed: Mapping[int, IndexRecord]) -> IndexMap:
    """Return the next revision, in which these records are replaced."""
    key = before.key.next()
    records = list(before.records)
    for partition, record in changed.items():
        assert record.floor >= records[partition].floor, f"the floor of {partition} falls"
        records[partition] = msgspec.structs.replace(record, at=key)
    return IndexMap(key, before.bucket, tuple(records))


def bucket_map_of(data_map: DataMap, addresses: Mapping[str, NodeAddress]) -> BucketMap:
    """Return the map that clients are shown: it depends on the arguments alone.

    A row begins with the copy that serves. Then the other copies of the wanted row follow, as far
    as there are places. A node without an address is left out.

    Args:
        data_map: of a bucket.
        addresses: of nodes, by name.
    """
    width = max(len(record.row) for record in data_map.records)
    nodes = tuple(addresses[name] for name in sorted(data_map.names()) if name in addresses)
    rows = tuple(_shown_row(record, width, addresses) for record in data_map.records)
    return BucketMap(data_map.key.revision, nodes, rows, data_map.key.generation)


def _shown_row(record: DataRecord, width: int, addresses: Mapping[str, NodeAddress]) -> Row:
    active = record.active if record.active in addresses else None
    others = [name for name in record.row if name in addresses and name != active]
    return (active, *others, *[None] * width)[:width]


# ---- JSON


class _DataForm(msgspec.Struct, frozen=True):
    """A record in the JSON of a map: nodes by number, keys by revision."""

    at: int
    active: int | None
    branch: int
    rows: tuple[tuple[int | None, ...], ...]
    building: tuple[int, ...] = ()
    since: int = 0


class _IndexForm(msgspec.Struct, frozen=True):
    at: int
    owner: int | None
    building: int | None = None
    floor: Floor = NO_FLOOR


class _MapForm(msgspec.Struct, frozen=True):
    generation: int
    revision: int
    bucket: str
    nodes: tuple[str, ...]
    records: tuple[dict[str, Any], ...]


def data_map_to_json(data_map: DataMap) -> bytes:
    """Return the content of the element `map` of a bucket."""
    nodes = sorted(data_map.names())
    number: dict[str | None, int | None] = {name: n for n, name in enumerate(nodes)} | {None: None}
    forms = [
        {
            "at": one.at.revision,
            "active": number[one.active],
            "branch": one.branch,
            "rows": [[number[name] for name in row] for row in one.rows],
        }
        | ({"building": [number[name] for name in one.building]} if one.building else {})
        | ({"since": one.since.revision} if one.is_moving else {})
        for one in data_map.records
    ]
    return _encoded(data_map.key, data_map.bucket, nodes, forms)


def data_map_from_json(content: bytes) -> DataMap:
    """Reverse `data_map_to_json`.

    Raises:
        CorruptionError: `bad_cluster_map`: it is none, and says what is wrong with it.
    """
    try:
        key, form = _decoded(content)
        ones = msgspec.convert(form.records, tuple[_DataForm, ...])
        name = _Names(form.nodes)
        records = tuple(
            DataRecord(
                MapKey(key.generation, one.at),
                name.of(one.active),
                one.branch,
                tuple(tuple(name.of(number) for number in row) for row in one.rows),
                tuple(name.known(number) for number in one.building),
                MapKey(key.generation, one.since) if one.since else NO_KEY,
            )
            for one in ones
        )
        _check_records(key, records)
    except (ValueError, msgspec.MsgspecError) as error:
        raise _unusable("a data map", error) from error
    return DataMap(key, form.bucket, records)


def index_map_to_json(index_map: IndexMap) -> bytes:
    """Return the content of the element `index` of a bucket."""
    nodes = sorted(index_map.names())
    number: dict[str | None, int | None] = {name: n for n, name in enumerate(nodes)} | {None: None}
    forms = [
        {
            "at": one.at.revision,
            "owner": number[one.owner],
            "building": number[one.building],
            "floor": one.floor,
        }
        for one in index_map.records
    ]
    return _encoded(index_map.key, index_map.bucket, nodes, forms)


def index_map_from_json(content: bytes) -> IndexMap:
    """Reverse `index_map_to_json`.

    Raises:
        CorruptionError: `bad_cluster_map`: it is none, and says what is wrong with it.
    """
    try:
        key, form = _decoded(content)
        ones = msgspec.convert(form.records, tuple[_IndexForm, ...])
        name = _Names(form.nodes)
        records = tuple(
            IndexRecord(
                MapKey(key.generation, one.at),
                name.of(one.owner),
                name.of(one.building),
                one.floor,
            )
            for one in ones
        )
        _check_records(key, records)
    except (ValueError, msgspec.MsgspecError) as error:
        raise _unusable("an index map", error) from error
    return IndexMap(key, form.bucket, records)


def _unusable(what: str, error: Exception) -> CorruptionError:
    return CorruptionError(
        f"{what} of the coordination service cannot be used: {error}; restore a backup of it "
        "and run `millstream cluster recover`",
        code="bad_cluster_map",
    )


class _Names:
    """The numbered nodes of a map."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        _check(len(set(nodes)) == len(nodes) <= BUCKET_NODES_MAX * 2, "nodes are listed twice")
        self._nodes = nodes

    def of(self, number: int | None) -> str | None:
        return None if number is None else self.known(number)

    def known(self, number: int) -> str:
        _check(0 <= number < len(self._nodes), f"there is no node of number {number}")
        return self._nodes[number]


def _encoded(key: MapKey, bucket: str, nodes: list[str], forms: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode(
        {
            "generation": key.generation,
            "revision": key.revision,
            "bucket": bucket,
            "nodes": nodes,
            "records": forms,
        }
    )


def _decoded(content: bytes) -> tuple[MapKey, _MapForm]:
    form = msgspec.json.decode(content, type=_MapForm)
    key = MapKey(form.generation, form.revision)
    _check(key > NO_KEY, "it has no key")
    _check_key(key, "its key")
    return key, form


def _check_records(key: MapKey, records: tuple[DataRecord, ...] | tuple[IndexRecord, ...]) -> None:
    _check(bool(records), "it has no records")
    _check(all(NO_KEY < one.at <= key for one in records), "a record is newer than its map")
    _check(
        all(one.since <= one.at for one in records if isinstance(one, DataRecord)),
        "a row is newer than its record",
    )


def _check_key(key: MapKey, what: str) -> None:
    _check(all(0 <= number <= MAP_REVISION_MAX for number in key), f"{what} {tuple(key)}")


def _check(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(f"bad record: {what}")
