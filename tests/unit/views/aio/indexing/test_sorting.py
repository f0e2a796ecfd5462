"""The sort of rows that do not fit into memory."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.aio.indexing import sorting
from millstream.views.aio.indexing.sorting import Row, RowSorter, merged


def rows_of(count: int, seed: int = 1) -> list[Row]:
    rng = random.Random(seed)
    return [(rng.randbytes(8) + b"%d" % n, n % 64, b"value %d" % n) for n in range(count)]


@pytest.mark.parametrize("bytes_max", [1 << 30, 60_000, 5_000])
def test_rows_come_out_in_order_from_memory_and_disk(tmp_path: Path, bytes_max: int) -> None:
    rows = rows_of(3000)
    with RowSorter(tmp_path, bytes_max=bytes_max) as sorter:
        for at in range(0, len(rows), 100):
            sorter.add(rows[at : at + 100])
        assert (sorter.run_count > 0) == (bytes_max < 1 << 30)
        assert sorter.count == len(rows)
        assert list(sorter.rows()) == sorted(rows)


def test_too_many_runs_are_merged_into_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "RUNS_MAX", 3)
    rows = rows_of(1000)
    with RowSorter(tmp_path, bytes_max=10_000) as sorter:
        for row in rows:
            sorter.add([row])
            assert sorter.run_count <= 3
        assert list(sorter.rows()) == sorted(rows)


def test_memory_is_bounded_and_nothing_is_left_behind(tmp_path: Path) -> None:
    sorter = RowSorter(tmp_path, bytes_max=100_000)
    for at in range(40):
        sorter.add(rows_of(50, seed=at))
        assert sorter._bytes < 100_000
    assert list(tmp_path.iterdir()) == []
    sorter.close()
    assert list(RowSorter(tmp_path, bytes_max=1).rows()) == []


@given(st.lists(st.lists(st.integers(0, 50), min_size=1), max_size=6), st.integers(1, 4))
def test_runs_of_any_form_are_merged(runs: list[list[int]], block: int) -> None:
    rows = [[(b"%03d" % number, 0, b"") for number in sorted(run)] for run in runs]
    blocks = [
        iter([run[at : at + block] for at in range(0, len(run), block)]) for run in rows if run
    ]

    found = [row for portion in merged(blocks) for row in portion]

    assert found == sorted(row for run in rows for row in run)
