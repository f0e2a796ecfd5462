"""`millstream view`: options to queries, answers to tables, JSON, CSV and bars."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from millstream.cli import view
from millstream.errors import ConditionError
from millstream.pipelines.view_reading import ViewRows, _sort, _StoredRow
from millstream.views.core.design import parse_design

DESIGN = parse_design(
    {"views": {"delay": {"map": "m", "reduce": "_stats"}, "listed": {"map": "m"}}}, "d"
)


class Asked:
    def __init__(self) -> None:
        self.pieces: list[bytes] | None = None
        self.options: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """No node has the design document, unless `asked.pieces` says what one answers."""
    asked = Asked()

    def ask(endpoint: Any, bucket: str, ddoc: str, name: str, options: Any) -> Any:
        asked.options.append(options)
        return asked.pieces

    monkeypatch.setattr(view, "ask_node", ask)
    return asked


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
    assert (code, "rows that a pipeline keeps" in err) == (0, True)
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


def test_the_node_answers_if_it_can(call: Any, asked: Asked, stored: list[Any]) -> None:
    row = b'{"id":"a","key":1,"value":2}'
    asked.pieces = [b'{"total_rows":1,"offset":0,"rows":[', row + b"]}"]
    words = ["view", "b", "d/v", "--json"]
    assert call(*words) == (0, b"".join(asked.pieces), "")
    words += ["--startkey", '"a"', "--no-inclusive-end", "--limit", "5", "--no-reduce"]
    words += ["--update", "lazy", "--at", "{}", "--no-sorted", "--timeout", "7", "--update-seq"]
    assert call(*words, "--stable", "--include-docs").code == 0
    assert asked.options == [
        {},
        {
            "startkey": "a", "inclusive_end": False, "limit": 5, "reduce": False,
            "include_docs": True, "update": "lazy", "at": {}, "sorted": False, "timeout": 7,
            "update_seq": True, "stable": True,
        },
    ]  # fmt: skip
    assert stored == []


def test_documents_are_a_column(call: Any, asked: Asked) -> None:
    row = b'{"id":"a","key":1,"value":2,"doc":{"_id":"a"}}'
    asked.pieces = [b'{"update_seq":"s7","rows":[' + row + b"]}"]
    rows = list(csv.reader(call("view", "b", "d/v", "--csv").out.decode().splitlines()))
    assert rows == [["id", "key", "value", "doc"], ["a", "1", "2", '{"_id":"a"}']]
    assert "update_seq s7" in call("view", "b", "d/v").out.decode()


def test_rows_of_a_pipeline_have_no_documents(call: Any) -> None:
    code, _, err = call("view", "b", "d/listed", "--include-docs", "--update", "false")
    assert code == 2
    assert "--include-docs, --update" in err


def test_neither_a_design_document_nor_rows(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise ConditionError("no rows", code="missing")

    monkeypatch.setattr(view, "read_view", read)
    code, out, err = call("view", "b", "d/v")
    assert (code, out) == (1, b"")
    assert "millstream put b _design/d FILE" in err


@pytest.mark.parametrize(
    "words", [["--update", "never"], ["--at", "1"], ["--timeout", "99999999"]]
)
def test_parameters_are_checked_here(call: Any, asked: Asked, words: list[str]) -> None:
    assert call("view", "b", "d/v", *words).code == 2
    assert asked.options == []
