"""Views by command, on a whole node: from the first document to bars."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.node.node_process import NodeProcess

MakeNode = Callable[..., NodeProcess]
DESIGN = {
    "views": {
        "delay": {"map": "d => { if (d.delay !== undefined) emit(d.carrier, d.delay) }",
                  "reduce": "_stats"},
        "late": {"map": "d => { if (d.delay > 20) emit([d.day, d.delay]) }"},
    }
}  # fmt: skip


def run(node: NodeProcess, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MILLSTREAM_CONNECT": str(node.ready["kv"])}
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words], input=stdin, env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def answered(node: NodeProcess, *words: str) -> Any:
    done = run(node, "view", "b", *words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_tutorial_from_the_first_document_to_a_chart(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node("--bucket", "b:8").start()
    rows = [{"id": f"f{n}", "carrier": "AB"[n % 2], "day": n % 7, "delay": n} for n in range(40)]
    (tmp_path / "flights.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = run(node, "load", "b", str(tmp_path / "flights.jsonl"), "--key", "id")
    assert loaded.returncode == 0, loaded.stderr
    (tmp_path / "design.json").write_text(json.dumps(DESIGN))
    put = run(node, "put", "b", "_design/flights", str(tmp_path / "design.json"))
    assert (put.returncode, put.stderr) == (0, "")

    groups = answered(node, "flights/delay", "--group")["rows"]
    assert [(row["key"], row["value"]["sum"]) for row in groups] == [("A", 380), ("B", 400)]
    late = answered(node, "flights/late", "--startkey", "[6]", "--endkey", "[6,{}]")
    assert [row["key"] for row in late["rows"]] == [[6, 27], [6, 34]]
    documents = answered(node, "flights/late", "--limit", "1", "--include-docs")
    assert documents["rows"][0]["doc"]["_id"] == documents["rows"][0]["id"]
    assert len(answered(node, "flights/late", "--keys", "[[6,34],[6,27]]")["rows"]) == 2

    run(node, "put", "b", "f41", '{"carrier": "A", "day": 6, "delay": 100}')
    run(node, "delete", "b", "f27")
    late = answered(node, "flights/late", "--startkey", "[6]", "--endkey", "[6,{}]")
    assert [row["key"] for row in late["rows"]] == [[6, 34], [6, 100]]

    table = run(node, "view", "b", "flights/delay", "--group").stdout
    assert "sumsqr" in table
    found = run(node, "view", "b", "flights/late", "--csv", "--descending", "--limit", "1")
    assert list(csv.reader(found.stdout.splitlines()))[1][1] == "[6,100]"
    bars = run(node, "view", "b", "flights/delay", "--group", "--plot", "-").stdout.splitlines()
    assert bars[0].lstrip().startswith("A █")
    picture = tmp_path / "bars.png"
    assert run(node, "view", "b", "flights/delay", "--group", "--plot", str(picture)).stdout == ""
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_errors_have_exit_codes(make_node: MakeNode) -> None:
    node = make_node("--bucket", "b:8").start()
    bad = run(node, "put", "b", "_design/d", stdin='{"views": {"v": {"map": "function ("}}}')
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "does not compile" in bad.stderr
    absent = run(node, "view", "b", "d/v")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "no design document" in absent.stderr
    assert run(node, "put", "b", "_design/d", stdin=json.dumps(DESIGN)).returncode == 0
    for words, code, said in (
        (["d/none"], 2, "no view 'none'"),
        (["d/late", "--group"], 2, "reduce"),
        (["d/delay", "--startkey", "2", "--endkey", "1"], 2, "No rows can match"),
        (["d/late", "--key", "text"], 2, "write strings with quotes"),
        (["d/delay", "--at", '{"0":["00000000beef",99]}'], 1, "at"),
    ):
        done = run(node, "view", "b", *words)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_rows_answer_again_after_a_kill(make_node: MakeNode) -> None:
    node = make_node("--bucket", "b:8").start()
    run(node, "put", "b", "_design/d", stdin=json.dumps(DESIGN))
    run(node, "put", "b", "one", '{"carrier": "A", "day": 1, "delay": 30}')
    assert len(answered(node, "d/late")["rows"]) == 1
    node.kill()
    node.start()
    assert answered(node, "d/late")["rows"][0]["id"] == "one"
