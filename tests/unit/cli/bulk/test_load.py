import json
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.bulk import load


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_ROWS", 10)
    monkeypatch.setattr(load, "SAVE_EVERY_S", 0.0)


def lines(path: Path, count: int, key: str = "id", *, first: int = 0) -> str:
    numbers = range(first, first + count)
    path.write_text("".join(json.dumps({key: f"k{n}", "n": n}) + "\n" for n in numbers))
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


ARRAY = b' [ {"id": "a", "n": 1.0},\n{ "id":"b",\n "t": "]}," } , {"id":"c"}]\n'


def test_an_array_is_loaded_element_by_element_as_it_is_written(
    call: Any, client: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_bytes(ARRAY)
    for words, stdin in (((str(tmp_path / "a.json"),), b""), (("-",), ARRAY)):
        client.documents.clear()
        code, out, _ = call("load", "b", *words, "--json", stdin=stdin)
        assert (code, json.loads(out)["rows"]) == (0, 3)
        assert client.documents[b"a"].data == b'{"id": "a", "n": 1.0}'
        assert client.documents[b"b"].data == b'{ "id":"b",\n "t": "]}," }'


def test_what_is_there_unchanged_is_not_written_again(
    call: Any, client: Any, tmp_path: Path
) -> None:
    path = lines(tmp_path / "a.jsonl", 25)
    assert call("load", "b", path).code == 0
    client.documents[b"k3"] = client.documents[b"k4"]
    del client.documents[b"k5"]
    client.batches.clear()
    code, out, _ = call("load", "b", path, "--json")
    told = json.loads(out)
    assert (code, told["rows"], told["unchanged"]) == (0, 25, 23)
    assert sum(client.batches) == 2
    assert "25 unchanged" in call("load", "b", path).err


def test_who_may_only_write_writes_everything(call: Any, client: Any, tmp_path: Path) -> None:
    client.may_read = False
    for _ in range(2):
        code, out, _ = call("load", "b", lines(tmp_path / "a.jsonl", 5), "--json")
        assert (code, json.loads(out)["unchanged"]) == (0, 0)
    assert sum(client.batches) == 10


def test_of_several_rows_with_one_key_the_last_one_counts(
    call: Any, client: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    for numbers in ([1], [2, 1], [1, 2], [2, 1, 2]):
        path.write_text("".join(json.dumps({"id": "k", "n": n}) + "\n" for n in numbers))
        assert call("load", "b", str(path)).code == 0
        assert client.documents[b"k"].value["n"] == numbers[-1]


def tail_line(op: str, key: str, **value: Any) -> str:
    members = {"partition": 3, "uuid": "ab", "branch": 7, "seqno": 9, "op": op, "key": key}
    members |= {"cas": 5, "rev": 1, "expiry": 0, "flags": 7, "datatype": 1}
    return json.dumps(members | (value or {"value": None})) + "\n"


def test_lines_of_tail_write_and_delete(call: Any, client: Any) -> None:
    text = tail_line("put", "a", value={"n": 1.0}) + tail_line("put", "b", value_base64="AP8=")
    text += '{"event":"barrier","reached":{"0":["ab",1]}}\n' + tail_line("put", "c", value={})
    assert call("load", "b", "-", stdin=text.encode()).code == 0
    assert client.documents[b"a"] == (b'{"n": 1.0}', 7, 7, 1)
    assert client.documents[b"b"].data == b"\0\xff"
    text = tail_line("delete", "a") + tail_line("expire", "b") + tail_line("delete", "none")
    code, out, _ = call("load", "b", "-", "--json", stdin=text.encode())
    told = json.loads(out)
    assert (code, told["rows"], told["deleted"], told["unchanged"]) == (0, 3, 2, 1)
    assert client.documents.keys() == {b"c"}


def test_a_rollback_in_what_tail_printed_ends_the_load(call: Any, client: Any) -> None:
    text = tail_line("put", "a", value={})
    text += '{"event":"rollback","partition":3,"seqno":4,"uuid":"ab","branch":8}\n'
    code, _, err = call("load", "b", "-", stdin=text.encode())
    assert code == 1
    assert "line 2" in err
    assert "void" in err


def test_standard_input_is_json_lines(call: Any, client: Any, tmp_path: Path) -> None:
    text = b'{"id": "a", "n": 1}\n{"id": "b"}\n'
    code, out, _ = call("load", "b", "-", "--json", stdin=text)
    assert (code, json.loads(out)["rows"]) == (0, 2)
    assert client.documents[b"a"].value == {"id": "a", "n": 1}
    assert call("load", "b", "-", stdin=b'{"id": "c"}\nnope\n').code == 1
    assert b"c" in client.documents
    assert call("load", "b", "-", lines(tmp_path / "a.jsonl", 1), stdin=text).code == 2


def test_the_same_command_goes_on(call: Any, client: Any, tmp_path: Path) -> None:
    files = lines(tmp_path / "a.jsonl", 25), lines(tmp_path / "b.jsonl", 40, first=25)
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
    assert sum(client.batches) == 1


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
    client.refused_key = b"k3"
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
