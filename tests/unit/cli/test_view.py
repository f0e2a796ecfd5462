"""`millstream view`: options to queries, answers to tables, JSON, CSV and bars."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from millstream.cli import view
from millstream.errors import ConditionError

SUMS = {
    "rows": [
        {"key": key, "value": {"sum": n, "count": 1, "min": n, "max": n, "sumsqr": n * n}}
        for key, n in (("AA", 3), ("BB", -6))
    ]
}
LISTED = {
    "total_rows": 3,
    "offset": 0,
    "rows": [{"id": f"doc{n}", "key": [n], "value": n} for n in range(3)],
}


class Asked:
    def __init__(self) -> None:
        self.pieces: list[bytes] | None = None
        self.failure: Exception | None = None
        self.options: list[dict[str, Any]] = []


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A node answers `asked.pieces`, else rows by the name of the view."""
    asked = Asked()

    def ask(endpoint: Any, bucket: str, ddoc: str, name: str, options: Any) -> Any:
        asked.options.append(options)
        if asked.failure is not None:
            raise asked.failure
        return asked.pieces or [json.dumps(SUMS if name == "delay" else LISTED).encode()]

    monkeypatch.setattr(view, "ask_node", ask)
    return asked


def test_json(call: Any, asked: Asked) -> None:
    code, out, err = call("view", "b", "d/delay", "--group", "--json", "--connect", "h:1")
    assert (code, err) == (0, "")
    assert [row["key"] for row in json.loads(out)["rows"]] == ["AA", "BB"]
    assert asked.options == [{"group": True}]


def test_keys_are_json(call: Any, asked: Asked) -> None:
    words = ["view", "b", "_design/d/listed", "--json"]
    call(*words, "--startkey", "[1]", "--descending", "--limit", "1")
    call(*words, "--keys", "[[2],[0]]")
    assert asked.options == [
        {"startkey": [1], "descending": True, "limit": 1}, {"keys": [[2], [0]]},
    ]  # fmt: skip
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
    ],
)
def test_mistakes(call: Any, words: list[str], said: str) -> None:
    code, out, err = call("view", "b", *words)
    assert (code, out) == (2, b"")
    assert said in err


def test_the_answer_is_passed_on(call: Any, asked: Asked) -> None:
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


def test_documents_are_a_column(call: Any, asked: Asked) -> None:
    row = b'{"id":"a","key":1,"value":2,"doc":{"_id":"a"}}'
    asked.pieces = [b'{"update_seq":"s7","rows":[' + row + b"]}"]
    rows = list(csv.reader(call("view", "b", "d/v", "--csv").out.decode().splitlines()))
    assert rows == [["id", "key", "value", "doc"], ["a", "1", "2", '{"_id":"a"}']]
    assert "update_seq s7" in call("view", "b", "d/v").out.decode()


def test_what_the_node_refuses_is_said(call: Any, asked: Asked) -> None:
    asked.failure = ConditionError("put it with `millstream put b _design/d FILE`", code="missing")
    code, out, err = call("view", "b", "d/v")
    assert (code, out) == (1, b"")
    assert "millstream put b _design/d FILE" in err


@pytest.mark.parametrize(
    "words", [["--update", "never"], ["--at", "1"], ["--timeout", "99999999"]]
)
def test_parameters_are_checked_here(call: Any, asked: Asked, words: list[str]) -> None:
    assert call("view", "b", "d/v", *words).code == 2
    assert asked.options == []
