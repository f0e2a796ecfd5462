import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.bulk.load_rows import Place, RowError, format_of, open_rows
from millstream.errors import UsageError

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=12)


def read(path: Path, place: Place = Place(), **options: Any) -> list[Any]:  # noqa: B008
    reader = open_rows(path, place, **options)
    try:
        return [row.fields for row in reader.rows()]
    finally:
        reader.close()


def places(path: Path) -> list[Place]:
    reader = open_rows(path, Place())
    found = [reader.place for _ in reader.rows()]
    reader.close()
    return found


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a", "n": 1.0}\n\n  {"id": "b"}  \r\n{"id":"c"}')
    assert read(path) == [{"id": "a", "n": 1.0}, {"id": "b"}, {"id": "c"}]
    reader = open_rows(path, Place())
    rows = list(reader.rows())
    assert bytes(rows[0].value) == b'{"id": "a", "n": 1.0}'
    assert [row.line for row in rows] == [1, 3, 4]
    assert reader.done == reader.size
    reader.close()


@pytest.mark.parametrize("line", ["[1]", "{", "nope", '{"a":"\udcff"}', '"text"'])
def test_bad_json_names_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(f'{{"id":"a"}}\n{line}\n'.encode(errors="surrogateescape"))
    with pytest.raises(RowError, match=r"a\.jsonl, line 2: one JSON object a line"):
        read(path)


@given(rows=st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=8))
def test_csv_is_what_the_writer_wrote(
    rows: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "x", "y"), *rows])
    expected = [dict(zip(("id", "x", "y"), row, strict=True)) for row in rows]
    assert read(path, keeps_text=True) == expected
    for number, place in enumerate(places(path)):
        assert read(path, place, keeps_text=True) == expected[number + 1 :]


def test_csv_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    cells = ["1", "-2.50", "007", "1e5", "true", "", "NA", "12345678901234567890", "+1", "1."]
    path.write_text(
        "\ufeff" + ",".join(f"c{n}" for n in range(10)) + "\n" + ",".join(cells) + "\n"
    )
    assert list(read(path)[0].values()) == [
        1, -2.5, "007", "1e5", True, None, "NA", "12345678901234567890", "+1", "1.",
    ]  # fmt: skip
    (tmp_path / "a.tsv").write_text("a\tb\n1\t2,3\n")
    assert read(tmp_path / "a.tsv") == [{"a": 1, "b": "2,3"}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id,x\n1,2\n1\n", "line 3: 1 cells, the first line names 2"),
        ("id,x\n1,2,3\n", "line 2: 3 cells"),
        ("id,id\n", "line 1: the first line"),
        ("", "line 0: the first line"),
        ('id,x\n"a,b\n', "line 2"),
        ("id,x\n\udcff,1\n", "line 2"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RowError, match=why):
        read(path)


def test_going_on_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(5)))
    place = places(path)[1]
    with path.open("a") as file:
        file.write('{"id": 5}\n')
    assert read(path, place) == [{"id": n} for n in range(2, 6)]
    path.write_text(path.read_text().replace('{"id": 0}', '{"id": 9}'))
    with pytest.raises(UsageError, match="has changed in the part"):
        read(path, place)
    path.write_text("")
    with pytest.raises(UsageError, match="has changed in the part"):
        read(path, place)


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    at = datetime(2013, 1, 1, tzinfo=UTC)
    table = pa.table({"id": [f"k{n}" for n in range(10)], "at": [at] * 10})
    parquet.write_table(table, path, row_group_size=4)
    assert [row["id"] for row in read(path)] == [f"k{n}" for n in range(10)]
    for number, place in enumerate(places(path)):
        assert len(read(path, place)) == 9 - number
    parquet.write_table(table.slice(1), path)
    with pytest.raises(UsageError, match="has changed"):
        read(path, Place(3, 0, "1:2"))
    path.write_text("no parquet")
    with pytest.raises(UsageError, match="is no Parquet file"):
        read(path)


def test_files(tmp_path: Path) -> None:
    assert [format_of(Path(name)) for name in ("a.JSON", "a.csv", "b.parquet")] == [
        "json", "csv", "parquet",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"name it \.jsonl"):
        format_of(Path("a.txt"))
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "none.csv")
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "dir.json")


def test_the_place_after_each_element_of_an_array_is_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(
        b'\xef\xbb\xbf[ {"id":"a"},\n\n {"id": "\xc3\xa9", "t": "]"}\n,{"id":"c"} ]\n'
    )
    rows = [{"id": "a"}, {"id": "é", "t": "]"}, {"id": "c"}]
    assert read(path) == rows
    found = places(path)
    assert [place.line for place in found] == [1, 3, 4]
    for number, place in enumerate(found, 1):
        assert read(path, place) == rows[number:]
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"'))
    with pytest.raises(UsageError):
        read(path, found[0])


@pytest.mark.parametrize("text", ['[{"id":1},\n{"id":]', '[{"id":1},\n5]', '[{"id":1}\n'])
def test_a_bad_array_names_file_and_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(RowError, match=r"a\.json, line \d: an array of JSON objects"):
        read(path)
