import json
from pathlib import Path
from typing import Any

import pytest

from millstream.client.documents import FLAGS_BINARY, FLAGS_JSON


def test_value_from_argument_stdin_and_file(call: Any, client: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\x00raw")
    assert call("put", "b", "arg", '{"a": 1.0}') == (0, b"", "")
    call("put", "b", "dash", "-", stdin=b" [1] \n")
    call("put", "b", "none", "--raw", stdin=b"plain text")
    call("put", "b", "file", "--raw", "--file", str(tmp_path / "f"))
    call("put", "b", "at", "--raw", f"@{tmp_path / 'f'}")
    found = {key: (document.data, document.flags) for key, document in client.documents.items()}
    assert found == {
        b"arg": (b'{"a": 1.0}', FLAGS_JSON),
        b"dash": (b"[1]", FLAGS_JSON),
        b"none": (b"plain text", FLAGS_BINARY),
        b"file": (b"\x00raw", FLAGS_BINARY),
        b"at": (b"\x00raw", FLAGS_BINARY),
    }


def test_a_value_that_is_no_json_is_refused_and_says_what_to_do(call: Any, client: Any) -> None:
    for words, stdin in ((("{total: 12}",), b""), ((), b"plain"), (("@/nowhere",), b"")):
        code, _, err = call("put", "b", "k", *words, stdin=stdin)
        assert code == 2
        assert "--raw" in err or "cannot read /nowhere" in err
    assert not client.documents


def test_options_and_json(call: Any, client: Any) -> None:
    code, out, _ = call(
        "put", "b", "k", "1", "--cas", "5", "--expiry", "60", "--durability", "memory", "--json"
    )
    assert code == 0
    assert json.loads(out) == {
        "key": "k", "cas": 7, "partition": 3, "uuid": "0000000000ab", "seqno": 9,
    }  # fmt: skip
    assert client.calls == [("upsert", {"cas": 5, "expiry": 60, "durability": "memory"})]


@pytest.mark.parametrize(
    "words",
    [
        ("v", "--file", "f"),
        ("--file", "/nowhere"),
        ("--expiry", "-1", "v"),
        ("--file", "/dev/zero"),
    ],
)
def test_wrong_use(call: Any, client: Any, words: tuple[str, ...]) -> None:
    assert call("put", "b", "k", *words).code == 2
    assert not client.documents


@pytest.mark.parametrize("words", [(), ("-",)])
@pytest.mark.parametrize("key", ["k", "_design/d"])
def test_nothing_on_standard_input_is_no_value(
    call: Any, client: Any, key: str, words: tuple[str, ...]
) -> None:
    code, _, err = call("put", "b", key, *words, stdin=b"")
    assert code == 2
    assert "no value" in err
    assert not client.documents


def test_an_empty_value_is_no_json_and_can_be_given_as_bytes(
    call: Any, client: Any, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    for words in (("",), ("--file", str(tmp_path / "empty")), (f"@{tmp_path / 'empty'}",)):
        code, _, err = call("put", "b", "k", *words)
        assert code == 2
        assert "no JSON" in err
    assert not client.documents
    assert call("put", "b", "word", "", "--raw").code == 0
    assert call("put", "b", "file", "--file", str(tmp_path / "empty"), "--raw").code == 0
    assert [document.data for document in client.documents.values()] == [b"", b""]
