"""Commands of daily work, each as a process of its own, on one node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from support.http.http_calls import call
from support.node.node_process import FREE, NodeProcess, is_gone
from support.node.waiting import until

COMMAND_S = 120.0
KV = {
    "json": msgspec.Raw(b'{ "a" : 1.0e2 }'), "lines": msgspec.Raw(b'{\n"a":1}'), "_odd": {"a": 1},
    "bytes": b"\x00\xff", b"\xff\xfe": b"x", "empty": b"", "many": {"n": 0},
}  # fmt: skip
"""What kv clients may keep, by key."""


SECURITY = {"admins": {"names": ["ada"], "roles": []}, "members": {"names": [], "roles": ["r"]}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    path = tmp_path_factory.mktemp("daily") / "node"
    with NodeProcess(path, "--bucket", "default", "--coord", FREE, "--peer", FREE) as node:
        yield node


def run(node: NodeProcess, *words: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "millstream", *map(str, words)]
    return subprocess.run(
        [*command, "--connect", node.ready["kv"]],
        capture_output=True, timeout=COMMAND_S, check=False, **options,
    )  # fmt: skip


def done(node: NodeProcess, *words: object, **options: Any) -> bytes:
    ended = run(node, *words, **options)
    assert ended.returncode == 0, ended.stderr
    out: bytes = ended.stdout
    return out


def written_bucket(node: NodeProcess, name: str) -> None:
    """Make a bucket with documents of every kind."""
    done(node, "bucket", "create", name, "--partitions", 4)
    with millstream.connect(node.ready["kv"], bucket=name) as client:
        for key, value in KV.items():
            client.upsert(key, value)
        for number in range(3):
            client.upsert("many", {"n": number})
        client.upsert("expires", {}, expiry=1_000_000, flags=77)
        client.upsert("gone", {})
        client.remove("gone")
    peer, http = f"/{name}/doc", node.http
    _, first = call(http, "PUT", peer, {"x": 1})
    call(http, "PUT", peer, {"x": 2, "_rev": first["rev"]})
    ancestry = {"start": 2, "ids": ["a" * 32, first["rev"].removeprefix("1-")]}
    leaves: list[dict[str, Any]] = [
        {"_id": "doc", "_rev": "2-" + "a" * 32, "_revisions": ancestry, "c": 1},
        {"_id": "doc", "_rev": "9-" + "b" * 32, "_deleted": True, "why": "old"},
        {"_id": "away", "_rev": "3-" + "c" * 32, "_deleted": True},
    ]
    call(http, "POST", f"/{name}/_bulk_docs", {"new_edits": False, "docs": leaves})
    attached = {
        "big": {"data": b64encode(os.urandom(2_500_000)).decode()},
        "text": {"content_type": "text/plain", "data": b64encode(b"hello" * 99).decode()},
        "empty": {"data": ""},
    }
    call(http, "PUT", f"/{name}/attached", {"_attachments": attached})
    call(http, "PUT", f"/{name}/_security", SECURITY)
    call(http, "PUT", f"/{name}/_revs_limit", 2)
    design = {"views": {"a": {"map": "function (d) { emit(d._id); }"}}}
    small = {"note": {"data": b64encode(b"hi").decode()}}
    call(http, "PUT", f"/{name}/_design/d", {**design, "_attachments": small})


def seen_over_http(node: NodeProcess, name: str) -> dict[str, Any]:
    """Return all leaves with their ancestry, bodies and attachments, by id."""
    status, feed = call(node.http, "GET", f"/{name}/_changes?style=all_docs")
    assert status == 200
    asked = {"docs": [{"id": row["id"]} for row in feed["results"]]}
    _, found = call(node.http, "POST", f"/{name}/_bulk_get?revs=true&attachments=true", asked)
    leaves = {one["id"]: one["docs"] for one in found["results"]}
    rows = {row["id"]: sorted(one["rev"] for one in row["changes"]) for row in feed["results"]}
    assert rows == {key: sorted(one["ok"]["_rev"] for one in leaves[key]) for key in rows}
    settings = {
        page: call(node.http, "GET", f"/{name}/{page}") for page in ("_security", "_revs_limit")
    }
    return leaves | settings


def seen_over_kv(node: NodeProcess, name: str) -> dict[Any, Any]:
    keys = [*KV, "expires", "gone", "doc", "away", "attached"]
    with millstream.connect(node.ready["kv"], bucket=name) as client:
        return {
            key: one._replace(uuid=0, branch=0, seqno=0)
            for key, one in client.get_versioned_many(keys).items()
        }


def test_what_is_dumped_dropped_and_restored_is_the_same(
    node: NodeProcess, tmp_path: Path
) -> None:
    written_bucket(node, "all")
    before = seen_over_http(node, "all"), seen_over_kv(node, "all")
    assert len(before[0]["doc"]) == 3
    assert before[0]["_security"] == (200, SECURITY)
    assert len(before[0]["many"][0]["ok"]["_revisions"]["ids"]) == 2
    file = tmp_path / "all.dump"
    told = json.loads(done(node, "dump", "all", file, "--json"))
    assert (told["documents"], told["designs"], told["attachments"]) == (10, 1, 3)
    done(node, "bucket", "drop", "all", "--yes")
    assert run(node, "restore", "all", file).returncode == 1
    for _ in range(2):
        done(node, "restore", "all", file, "--create")
        assert (seen_over_http(node, "all"), seen_over_kv(node, "all")) == before
    done(node, "restore", "other", file, "--create")
    assert (seen_over_http(node, "other"), seen_over_kv(node, "other")) == before
    done(node, "restore", "other", file, "--overwrite")
    assert (seen_over_http(node, "other"), seen_over_kv(node, "other")) == before


def test_what_changes_during_a_dump_is_in_it_once_as_it_was_at_one_moment(
    node: NodeProcess, tmp_path: Path
) -> None:
    count, is_over = 6_000, threading.Event()
    done(node, "bucket", "create", "busy", "--partitions", 8)

    def write_on() -> None:
        with millstream.connect(node.ready["kv"], bucket="busy") as client:
            number = 0
            while not is_over.is_set():
                number += 1
                client.upsert_many((f"k{n}", {"n": number, "k": n}) for n in range(0, count, 7))

    with millstream.connect(node.ready["kv"], bucket="busy") as client:
        client.upsert_many((f"k{n}", {"n": 0, "k": n}) for n in range(count))
    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        told = json.loads(done(node, "dump", "busy", tmp_path / "f", "--json"))
    finally:
        is_over.set()
        writer.join()
    assert told["documents"] == count
    done(node, "restore", "quiet", tmp_path / "f", "--create")
    with millstream.connect(node.ready["kv"], bucket="quiet") as client:
        found = client.get_many(f"k{n}" for n in range(count))
    assert {key: one.value["k"] for key, one in found.items()} == {
        f"k{n}": n for n in range(count)
    }
    assert all(one.value["n"] == 0 for key, one in found.items() if int(str(key)[1:]) % 7)


def test_keys_are_listed_in_their_order(node: NodeProcess) -> None:
    done(node, "bucket", "create", "named")
    with millstream.connect(node.ready["kv"], bucket="named") as client:
        client.upsert_many((f"k{number}", {}) for number in range(3000))
    wanted = sorted(f"k{number}" for number in range(3000))
    assert done(node, "keys", "named").decode().split() == wanted
    found = done(node, "keys", "named", "--prefix", "k29", "--limit", 5).decode().split()
    assert found == [key for key in wanted if key.startswith("k29")][:5]


def test_what_tail_prints_is_loaded_into_another_bucket(node: NodeProcess) -> None:
    for name in ("from", "to"):
        done(node, "bucket", "create", name)
    design = {"views": {"a": {"map": "function (d) { emit(d._id); }"}}}
    call(node.http, "PUT", "/from/_design/d", design)
    with (
        millstream.connect(node.ready["kv"], bucket="from") as source,
        millstream.connect(node.ready["kv"], bucket="to") as target,
    ):
        source.upsert_many((f"k{number}", {"n": number}) for number in range(500))
        source.upsert("bytes", b"\0\xff", flags=77)
        source.upsert("later", {}, expiry=1_000_000)

        def copied() -> dict[str, int]:
            lines = done(node, "tail", "from", "--from-start", "--until-now")
            told: dict[str, int] = json.loads(done(node, "load", "to", "-", "--json", input=lines))
            return told

        assert (copied()["rows"], copied()["unchanged"]) == (503, 503)
        source.remove("k1")
        source.upsert("k2", {"n": "new"})
        told = copied()
        assert (told["deleted"], told["unchanged"]) == (1, 501)
        keys = [*(f"k{number}" for number in range(500)), "bytes", "later"]
        found, copies = source.get_versioned_many(keys), target.get_versioned_many(keys)
        assert found.pop("k1").is_deleted
        assert copies.pop("k1").is_deleted
        assert {k: (v.value, v.flags, v.expiry) for k, v in copies.items()} == {
            k: (v.value, v.flags, v.expiry) for k, v in found.items()
        }
    assert call(node.http, "GET", "/to/_design/d")[1]["views"] == design["views"]


def test_what_tail_prints_is_loaded_as_it_comes(node: NodeProcess) -> None:
    command = [sys.executable, "-m", "millstream"]
    where = ["--connect", node.ready["kv"]]
    for name in ("live", "followed"):
        done(node, "bucket", "create", name)
    with (
        subprocess.Popen(
            [*command, "tail", "live", "--from-start", *where], stdout=subprocess.PIPE
        ) as tail,
        subprocess.Popen(
            [*command, "load", "followed", "-", *where], stdin=tail.stdout, stderr=subprocess.PIPE
        ) as load,
        millstream.connect(node.ready["kv"], bucket="live") as source,
        millstream.connect(node.ready["kv"], bucket="followed") as target,
    ):
        try:
            source.upsert("k", {"n": 1})
            until(lambda: target.exists("k"))
            source.remove("k")
            until(lambda: not target.exists("k"))
        finally:
            tail.terminate()
            _, said = load.communicate(timeout=COMMAND_S)
    assert load.returncode == 0
    assert b"2 rows" in said


def test_an_array_is_loaded_and_what_is_there_unchanged_is_told(
    node: NodeProcess, tmp_path: Path
) -> None:
    done(node, "bucket", "create", "array")
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"id": f"k{n}", "n": n} for n in range(7000)], indent=1))
    for unchanged in (0, 7000):
        told = json.loads(done(node, "load", "array", path, "--json"))
        assert (told["rows"], told["unchanged"]) == (7000, unchanged)


def test_a_tree_of_coordination_is_watched_and_read(node: NodeProcess) -> None:
    def say(*lines: str) -> None:
        done(node, "shell", input="\n".join(lines).encode())

    say("CREATENAMESPACE /watched", "CREATE BINARY PARENTS /watched/a/b one")
    command = [sys.executable, "-m", "millstream", "coord", "watch", "/watched", "--data"]
    with subprocess.Popen(
        [*command, "--connect", node.ready["kv"]], stdout=subprocess.PIPE
    ) as watching:
        assert watching.stdout is not None
        try:
            assert json.loads(watching.stdout.readline())["op"] == "start"
            say("PUT /watched/a/b two", "CREATE BINARY /watched/c", "DELETE /watched/c")
            found = [json.loads(watching.stdout.readline()) for _ in range(3)]
        finally:
            watching.terminate()
    assert watching.returncode == 0
    seen = [(one["op"], one["path"], one.get("data")) for one in found]
    assert seen == [
        ("put", "/watched/a/b", "two"),
        ("create", "/watched/c", None),
        ("delete", "/watched/c", None),
    ]
    read = done(node, "coord", "get", "/watched/", "--prefix").splitlines()
    assert [(one["path"], one["data"]) for one in map(json.loads, read)] == [
        ("/watched/a", ""),
        ("/watched/a/b", "two"),
    ]


def test_top_shows_a_frame(node: NodeProcess) -> None:
    frame = json.loads(done(node, "top", "--once", "--interval", "0.1", "--json"))
    assert "default" in [bucket["name"] for bucket in frame["buckets"]]
    assert frame["processors"] >= 0


def test_a_node_in_the_background_is_ready_when_the_command_returns(tmp_path: Path) -> None:
    data = tmp_path / "node"
    command = [sys.executable, "-m", "millstream", "serve", "--background", "--data", str(data)]
    for listener in ("kv", "http"):
        command += [f"--{listener}", FREE]
    command += ["--no-memcached", "--no-coord", "--no-ninep", "--no-peer"]
    started = subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=True)
    ready = json.loads(started.stdout)
    try:
        assert ready["log"] == f"{data}.log"
        with millstream.connect(ready["kv"]) as client:
            client.upsert("k", {})
    finally:
        os.kill(ready["pid"], signal.SIGTERM)
        until(lambda: is_gone(ready["pid"]))
    assert "ready" in Path(ready["log"]).read_text()
