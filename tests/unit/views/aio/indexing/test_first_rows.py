"""Rows of a first build: sorted, without those of partitions left out, failures bounded."""

from pathlib import Path

import pytest

from millstream.views.aio.indexing import first_rows
from millstream.views.aio.indexing.first_rows import FirstRows
from millstream.views.aio.indexing.index_mapping import MappedChanges
from millstream.views.core.index.header import MAP_ERRORS_KEPT_MAX, DocumentRows, MapFailure


def rows_of(partition: int, count: int) -> MappedChanges:
    documents = [
        DocumentRows(partition, b"d%04d" % n, [(0, b"%04d\1" % n, b"1", b"2")])
        for n in reversed(range(count))
    ]
    return MappedChanges(documents, [])


@pytest.mark.parametrize("bytes_max", [first_rows.SORT_BYTES_MAX, 2000])
def test_rows_are_sorted_without_left_out_partitions_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    monkeypatch.setattr(first_rows, "SORT_BYTES_MAX", bytes_max)
    rows = FirstRows(1, tmp_path)
    for partition in (0, 1):
        rows.add(rows_of(partition, 100))
    checks = []
    back, (tree,) = rows.sorted_rows({1}, lambda: checks.append(1))
    keys = [row[0] for row in tree]
    assert keys == sorted(keys)
    assert (len(keys), len(list(back))) == (100, 100)
    assert checks
    rows.close()
    assert list(tmp_path.iterdir()) == []


def test_failures_are_counted_and_the_last_are_kept(tmp_path: Path) -> None:
    rows = FirstRows(1, tmp_path)
    for n in range(100):
        rows.add(MappedChanges([], [(n % 2, MapFailure(0, f"d{n}", "it is bad"))]))
    kept, before = rows.failures_of(0)
    assert len(kept) == MAP_ERRORS_KEPT_MAX
    assert before == {0: 50 - MAP_ERRORS_KEPT_MAX}
    assert kept[-1].doc_id == "d98"
    rows.close()
