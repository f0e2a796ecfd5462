"""Strategies that make records and maps of managed clusters."""

from __future__ import annotations

from hypothesis import strategies as st

from millstream.model.cluster_maps import (
    NO_KEY,
    DataMap,
    DataRecord,
    Floor,
    IndexMap,
    IndexRecord,
    MapKey,
)

NODES = [f"node{number}" for number in range(9)]
REVISION = 40


@st.composite
def data_records(draw: st.DrawFn) -> DataRecord:
    width, count = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rows = tuple(
        tuple(
            name if draw(st.booleans()) else None
            for name in draw(st.permutations(NODES[:6]))[:width]
        )
        for _ in range(count)
    )
    voters = {name for row in rows for name in row}
    return DataRecord(
        MapKey(2, draw(st.integers(REVISION // 2, REVISION))),
        draw(st.none() | st.sampled_from(NODES)),
        draw(st.integers(0, 2**53 - 1)),
        rows,
        tuple(name for name in NODES[6:] if name not in voters and draw(st.booleans())),
        MapKey(2, draw(st.integers(1, REVISION // 2))) if count > 1 else NO_KEY,
    )


@st.composite
def index_records(draw: st.DrawFn) -> IndexRecord:
    owner = draw(st.none() | st.sampled_from(NODES))
    building = draw(st.none() | st.sampled_from(NODES))
    floor = Floor(draw(st.integers(0, 2**53 - 1)), draw(st.integers(0, 2**40)))
    at = MapKey(2, draw(st.integers(1, REVISION)))
    return IndexRecord(at, owner, building if building != owner else None, floor)


def data_maps() -> st.SearchStrategy[DataMap]:
    records = st.lists(data_records(), min_size=1, max_size=5).map(tuple)
    return records.map(lambda found: DataMap(MapKey(2, REVISION), "7033", found))


def index_maps() -> st.SearchStrategy[IndexMap]:
    records = st.lists(index_records(), min_size=1, max_size=5).map(tuple)
    return records.map(lambda found: IndexMap(MapKey(2, REVISION), "7033", found))
