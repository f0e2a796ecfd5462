import json
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import load


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_ROWS", 10)
    monkeypatch.setattr(load, "SAVE_EVERY_S", 0.0)


def lines(path: Path, count: int, key: str = "id") -> str:
    path.write_text("".join(json.dumps({key: f"k{n}", "n": n}) + "\n" for n in range(count)))
    return str(path)


def test_files_of_all_kinds(call: Any, client: Any, tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id,n\nc1,1\n7,x\n")
    code, out, _ = call(
        "load", "b", lines(tmp_path / "a.jsonl", 25), str(tmp_path / "b.csv"), "--json"
    )
    assert code == 0
    assert json.loads(out)["rows"] == 27
    assert client.documents[b"k7"].value == {"id": "k7", "n": 7}
    assert client.documents[b"7"].value == {"id": 7, "n": "x"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.csv"]
    assert "27 rows of 1 files" not in out.decode()


def test_standard_input_is_json_lines(call: Any, client: Any, tmp_path: Path) -> None:
    text = b'{"id": "a", "n": 1}\n{"id": "b"}\n'
    code, out, _ = call("load", "b", "-", "--json", stdin=text)
    assert (code, json.loads(out)["rows"]) == (0, 2)
    assert client.documents[b"a"].value == {"id": "a", "n": 1}
    assert call("load", "b", "-", stdin=b'{"id": "c"}\nnope\n').code == 1
    assert b"c" in client.documents
    assert call("load", "b", "-", lines(tmp_path / "a.jsonl", 1), stdin=text).code == 2


def test_the_same_command_goes_on(call: Any, client: Any, tmp_path: Path) -> None:
    files = lines(tmp_path / "a.jsonl", 25), lines(tmp_path / "b.jsonl", 40)
    client.fail_after = 45
    code, _, err = call("load", "b", *files)
    assert code == 1
    assert "the same command goes on" in err
    assert len(list(tmp_path.glob("*.load"))) == 2
    client.fail_after = None
    client.batches.clear()
    assert call("load", "b", *files).code == 0
    assert sum(client.batches) == 65 - 45
    assert not list(tmp_path.glob("*.load"))


def test_bad_rows_name_file_and_line(call: Any, client: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines(path, 12)
    with path.open("a") as file:
        file.write("nope\n")
    code, _, err = call("load", "b", str(path))
    assert code == 1
    assert "a.jsonl, line 13" in err
    assert len(client.documents) == 12
    path.write_text(path.read_text().replace("nope", '{"id":"mended"}'))
    client.batches.clear()
    assert call("load", "b", str(path)).code == 0
    assert sum(client.batches) == 3


@pytest.mark.parametrize("row", ["{}", '{"id":null}', '{"id":1.5}', '{"id":true}', '{"id":""}'])
def test_rows_without_key(call: Any, client: Any, tmp_path: Path, row: str) -> None:
    (tmp_path / "a.jsonl").write_text(row + "\n")
    code, _, err = call("load", "b", str(tmp_path / "a.jsonl"))
    assert code == 1
    assert "line 1: the key 'id'" in err
    assert "--key" in err


def test_other_key_field(call: Any, client: Any, tmp_path: Path) -> None:
    assert call("load", "b", lines(tmp_path / "a.jsonl", 2, "name"), "--key", "name").code == 0
    assert client.documents.keys() == {b"k0", b"k1"}


def test_refused_rows(call: Any, client: Any, tmp_path: Path) -> None:
    client.refused_key = "k3"
    code, _, err = call("load", "b", lines(tmp_path / "a.jsonl", 5))
    assert code == 1
    assert "a.jsonl, line 4: too large" in err


def test_state_directory_and_text(call: Any, client: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\nk,5\n")
    (tmp_path / "state").mkdir()
    words = ("load", "b", str(tmp_path / "a.csv"), "--text", "--state")
    assert call(*words, str(tmp_path / "state")).code == 0
    assert client.documents[b"k"].value == {"id": "k", "n": "5"}
    assert call(*words, str(tmp_path / "none")).code == 2


def test_unknown_format(call: Any, client: Any) -> None:
    assert call("load", "b", "x.txt").code == 2
    assert call("load", "b", "/nowhere/x.csv").code == 2
