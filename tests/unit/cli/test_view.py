"""`millstream view`: options to queries, answers to tables, JSON, CSV and bars."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from millstream.cli import view
from millstream.pipelines.view_reading import ViewRows, _sort, _StoredRow
from millstream.views.core.design import parse_design

DESIGN = parse_design(
    {"views": {"delay": {"map": "m", "reduce": "_stats"}, "listed": {"map": "m"}}}, "d"
)


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = []

    def read(endpoint: Any, bucket: str, ddoc: str, name: str) -> ViewRows:
        asked.append((endpoint.address, bucket, ddoc, name))
        rows = ViewRows({}, DESIGN, DESIGN.number_of(name))
        if name == "delay":
            documents = [
                _StoredRow(
                    "d", name, DESIGN.named_signature, key,
                    {"sum": n, "count": 1, "min": n, "max": n, "sumsqr": n * n},
                )
                for key, n in (("AA", 3), ("BB", -6))
            ]  # fmt: skip
        else:
            documents = [
                _StoredRow("d", name, DESIGN.named_signature, [n], id=f"doc{n}", rows=[n])
                for n in range(3)
            ]
        _sort(rows, documents)
        return rows

    monkeypatch.setattr(view, "read_view", read)
    return asked


def test_json(call: Any, stored: list[Any]) -> None:
    code, out, err = call("view", "b", "d/delay", "--group", "--json", "--connect", "h:1")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [row["key"] for row in rows] == ["AA", "BB"]
    assert stored == [("h:1", "b", "d", "delay")]


def test_keys_are_json(call: Any) -> None:
    words = ["view", "b", "_design/d/listed", "--json"]
    found = json.loads(call(*words, "--startkey", "[1]", "--descending", "--limit", "1").out)
    assert found == {"total_rows": 3, "offset": 1,
                     "rows": [{"id": "doc1", "key": [1], "value": 1}]}  # fmt: skip
    assert json.loads(call(*words, "--keys", "[[2],[0]]").out)["rows"][0]["id"] == "doc2"
    code, _, err = call(*words, "--key", "text")
    assert code == 2
    assert "write strings with quotes" in err


def test_csv_spreads_statistics(call: Any) -> None:
    out = call("view", "b", "d/delay", "--group", "--csv").out.decode()
    rows = list(csv.reader(out.splitlines()))
    assert rows == [
        ["key", "sum", "count", "min", "max", "sumsqr"],
        ["AA", "3", "1", "3", "3", "9"],
        ["BB", "-6", "1", "-6", "-6", "36"],
    ]


def test_a_table_for_people(call: Any) -> None:
    out = call("view", "b", "d/listed").out.decode()
    assert "doc2" in out
    assert "offset 0 of 3 rows" in out


def test_bars(call: Any, tmp_path: Any) -> None:
    lines = call("view", "b", "d/delay", "--group", "--plot", "-").out.decode().splitlines()
    assert lines[1].startswith("BB -███")
    path = tmp_path / "bars.png"
    assert call("view", "b", "d/delay", "--group", "--plot", str(path)).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["noslash"], "write DDOC/VIEW"),
        (["d/delay", "--csv", "--json"], "choose one"),
        (["d/missing"], "has no view 'missing'"),
        (["d/listed", "--group"], "grouping needs a reduce"),
        (["d/delay", "--no-reduce"], "only the reduced rows"),
        (["d/delay", "--startkey", "2", "--endkey", "1"], "No rows can match"),
    ],
)
def test_mistakes(call: Any, words: list[str], said: str) -> None:
    code, out, err = call("view", "b", *words)
    assert (code, out) == (2, b"")
    assert said in err
