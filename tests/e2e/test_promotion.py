"""Promotions between real nodes: kills, returns, two at once, no quorum, and readers meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cluster.pages import Pages
from millstream.errors import MillstreamError
from millstream.model.partitions import partition_of
from millstream.upr import BucketReader, SqliteSink
from millstream.wire.mcbp import Status
from support.kv.bucket_nodes import BUCKET, MAJORITY, PERSISTED_ON_MAJORITY, BucketNodes, ended
from support.kv.nodes_with_map import map_of
from support.node.node_process import NodeProcess, kept_ports
from support.node.waiting import until

Make = Callable[[int, list[str]], BucketNodes]
TLS = Path(__file__).parent / "tls"
SECRET = "sixteen letters or more"


@pytest.fixture
def make(make_node: Callable[..., NodeProcess]) -> Make:
    def of(count: int, rows: list[str]) -> BucketNodes:
        names = "abc"[:count]
        nodes = BucketNodes([make_node("--no-memcached", name=name) for name in names], rows)
        done = nodes.promote("a")  # in a new bucket nothing is active
        assert ends_of(done) == [("promoted", row[0]) for row in rows]
        assert not any(one["at_risk"] for one in done["partitions"])
        nodes.until_whole(*names)
        return nodes

    return of


def ends_of(done: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(one["what"], one["now"]) for one in done["partitions"]]


@pytest.mark.slow
def test_an_old_active_copy_comes_back_and_is_rolled_back_where_it_was_ahead(make: Make) -> None:
    nodes = make(2, ["ab"])
    assert nodes.put("a", b"k", b"both", framing=PERSISTED_ON_MAJORITY).status == 0
    nodes.until(lambda: nodes.standing("b")["persisted_end"] == 1)
    nodes.nodes["b"].kill()
    assert nodes.put("a", b"k", b"only a").status == 0
    assert nodes.put("a", b"more", b"only a").status == 0
    nodes.until(lambda: nodes.standing("a")["persisted_end"] == 3)
    nodes.nodes["a"].kill()
    nodes.nodes["b"].start()
    # b has not lost anything that it acknowledged as persisted, perhaps something in its memory
    refused = nodes.promote("b", code=1)
    assert refused["partitions"][0]["at_risk"] == ["majority"]
    assert nodes.actives() == []
    done = nodes.promote("b", "--force")
    assert ends_of(done) == [("promoted", "b")]
    assert (done["partitions"][0]["seqno"], done["revision"]) == (1, 2)
    assert nodes.get("b", b"k").value == b"both"
    assert nodes.put("b", b"k", b"new").status == 0
    nodes.nodes["a"].start()
    assert nodes.copy("a")["state"] == "replica"
    assert nodes.put("a", b"k", b"x").status == Status.NOT_MY_VBUCKET
    assert ends_of(nodes.promote("a")) == [("served", "b")]
    nodes.until_level("a", "b")
    branches = [entry["branch"] for entry in nodes.copy("a")["failover_log"]]
    assert branches == sorted(branches, reverse=True)
    assert [entry["seqno"] for entry in nodes.copy("a")["failover_log"]] == [1, 0, 0]
    nodes.until(lambda: nodes.standing("a")["is_intact"])
    nodes.nodes["b"].kill()
    assert ends_of(nodes.promote("a")) == [("promoted", "a")]
    assert nodes.get("a", b"k").value == b"new"
    assert nodes.get("a", b"more").status == Status.KEY_ENOENT


@pytest.mark.nightly
def test_what_a_majority_acknowledged_outlives_any_one_node(make: Make) -> None:
    nodes = make(3, ["abc", "bca", "cab", "abc"])
    keys = [b"k%d" % n for n in range(40)]
    for key in keys:
        owner = nodes.map["rows"][_partition(key)][0]
        assert nodes.put(owner, key, b"v", framing=MAJORITY).status == 0
    nodes.nodes["a"].kill()
    done = nodes.promote("c")
    for one, row in zip(done["partitions"], nodes.map["rows"], strict=True):
        assert one["what"] == ("promoted" if row[0] == "a" else "served")
        assert one["at_risk"] == []
    owners = [one["now"] for one in done["partitions"]]
    for key in keys:
        assert nodes.get(owners[_partition(key)], key).value == b"v"
        assert nodes.put(owners[_partition(key)], key, b"w", framing=MAJORITY).status == 0
    nodes.nodes["a"].start()
    nodes.promote("a")
    nodes.until_level("a", "b", "c")


def _partition(key: bytes) -> int:
    return partition_of(key, 4)


@pytest.mark.slow
def test_nothing_acknowledged_by_a_majority_is_lost_while_nodes_come_and_go(make: Make) -> None:
    nodes = make(3, ["abc", "bca", "cab", "abc"])
    kept, stop = dict[bytes, bytes](), threading.Event()

    def write(first: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(MillstreamError):  # who is asked has just gone
                addresses = [str(node.ready["kv"]) for node in nodes.nodes.values()]
                with millstream.connect(addresses, bucket=BUCKET, timeout_s=5.0) as client:
                    for number in itertools.count(len(kept) * 2 + first, 2):
                        if stop.is_set():
                            return
                        key = b"k%d" % number
                        client.upsert(key, key, durability="majority")
                        kept[key] = key

    writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for writer in writers:
        writer.start()
    try:
        for gone, asked in ("ab", "bc"):
            before = len(kept)
            nodes.until(lambda before=before: len(kept) > before + 20)
            nodes.until_whole("a", "b", "c")
            nodes.nodes[gone].kill()
            done = nodes.promote(asked)
            assert not any(one["at_risk"] for one in done["partitions"])
            before = len(kept)
            nodes.until(lambda before=before: len(kept) > before + 20)
            nodes.nodes[gone].start()
            nodes.promote(asked)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    nodes.until_level("a", "b", "c")
    with millstream.connect(str(nodes.nodes["a"].ready["kv"]), bucket=BUCKET) as client:
        found = client.get_many(list(kept))
        assert set(kept) - set(found) == set()


def test_of_two_promotions_at_once_one_wins(make: Make) -> None:
    nodes = make(3, ["abc", "abc"])
    nodes.nodes["a"].kill()
    for _ in range(3):
        running = [nodes.start_promotion(at) for at in "bc"]
        for process in running:
            ended(process, 0, 1)
        done = nodes.promote("b")
        for p, one in enumerate(done["partitions"]):
            assert nodes.actives(p) == [one["now"]]
            branch = nodes.standing(one["now"], p)["branch"]
            assert {nodes.standing(name, p)["last_branch"] for name in "bc"} == {branch}
        owner = done["partitions"][0]["now"]
        # next time there is something to promote again
        for p in range(2):
            nodes.call(nodes.actives(p)[0], "PUT", f"/partitions/{p}", {"state": "replica"})
    assert owner in "bc"


@pytest.mark.slow
def test_without_a_quorum_only_force_does_it(make: Make) -> None:
    nodes = make(3, ["abc"])
    assert nodes.put("a", b"k", b"v", framing=MAJORITY).status == 0
    nodes.until_level("a", "b", "c")
    for name in "ab":
        nodes.nodes[name].kill()
    nodes.until(lambda: nodes.standing("c")["persisted_end"] == 1)
    before = nodes.standing("c")
    refused = nodes.promote("c", code=1)
    assert refused["partitions"][0]["what"] == "refused"
    assert "2 are needed" in refused["partitions"][0]["reason"]
    assert set(refused["silent"]) == {"a", "b"}
    assert nodes.standing("c") == before
    done = nodes.promote("c", "--force")
    assert ends_of(done) == [("promoted", "c")]
    assert done["partitions"][0]["at_risk"] == ["majority", "persisted"]
    assert nodes.get("c", b"k").value == b"v"


@pytest.mark.slow
def test_a_copy_cut_off_from_the_promotion_acknowledges_nothing_more(make: Make) -> None:
    nodes = make(3, ["abc"])
    assert nodes.put("a", b"k", b"v", framing=MAJORITY).status == 0
    branch = nodes.standing("a")["branch"] + 1
    for name in "bc":  # the promoter does not see a, which sees b and c
        content = {"branch": branch, "partitions": [0]}
        assert nodes.call(name, "POST", "/promises", content)[1]["refused"] == []
    ends = {name: nodes.standing(name)["complete_end"] for name in "bc"}
    winner = max("bc", key=lambda name: ends[name])
    assert ends[winner] == 1
    asked = {"branch": branch, "partitions": [{"partition": 0, "complete_end": 1}]}
    assert len(nodes.call(winner, "POST", "/activations", asked)[1]["active"]) == 1
    assert sorted(nodes.actives()) == ["a", winner]
    assert nodes.put("a", b"k", b"x").status == 0  # in its memory; nobody else takes it
    done = nodes.promote("c")
    assert ends_of(done) == [("served", winner)]
    assert nodes.actives() == [winner]
    nodes.until_level("a", "b", "c")
    assert nodes.get(winner, b"k").value == b"v"


def test_a_reader_goes_on_at_the_new_node_and_undoes_what_was_lost(
    make: Make, tmp_path: Path
) -> None:
    nodes = make(2, ["ab"])
    kept = str(tmp_path / "place")

    def tail(at: str) -> list[Any]:
        command = [sys.executable, "-m", "millstream", "tail", BUCKET, "--from-start"]
        command += ["--until-now", "--checkpoint", kept, "--connect"]
        command.append(str(nodes.nodes[at].ready["kv"]))
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert nodes.put("a", b"k", b"1", framing=MAJORITY).status == 0
    assert [line["value"] for line in tail("a")] == [1]
    nodes.until_level("a", "b")
    nodes.nodes["b"].stop()
    assert nodes.put("a", b"k", b"2").status == 0
    assert [line["value"] for line in tail("a")] == [2]
    nodes.nodes["a"].kill()
    nodes.nodes["b"].start()
    nodes.promote("b")
    assert nodes.put("b", b"k", b"3").status == 0
    rollback, change = tail("b")
    assert (rollback["event"], rollback["seqno"]) == ("rollback", 1)
    assert (change["value"], change["seqno"]) == (3, 2)
    assert change["branch"] == nodes.standing("b")["branch"]


def test_served_partitions_are_handed_over_while_clients_write(make: Make) -> None:
    nodes = make(2, ["ab", "ab", "ba", "ab"])
    before = [nodes.standing(row[0], p)["branch"] for p, row in enumerate(nodes.map["rows"])]
    written = dict[bytes, bytes]()
    with millstream.connect(str(nodes.nodes["a"].ready["kv"]), bucket=BUCKET) as client:
        moving = nodes.start_promotion("a", "--to", "b")
        for number in itertools.count():
            key, value = b"k%d" % (number % 50), b"%d" % number
            client.upsert(key, value)
            written[key] = value
            if moving.poll() is not None and number > 100:
                break
        done = ended(moving, 0)
        what = ["handed_over", "handed_over", "served", "handed_over"]
        assert ends_of(done) == [(one, "b") for one in what]
        for p, branch in enumerate(before):
            assert nodes.actives(p) == ["b"]
            assert nodes.standing("b", p)["branch"] == branch
        for key, value in written.items():
            found = client.get(key)
            assert found is not None
            assert found.value == value
    nodes.until_level("a", "b")


def table(path: Path) -> dict[str, Any]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT key, value FROM documents").fetchall()
    return {key.decode(): json.loads(value) for key, value in rows}


@pytest.mark.slow
async def test_readers_follow_to_the_new_node_and_those_of_durable_changes_never_undo(
    make: Make, tmp_path: Path
) -> None:
    nodes = await asyncio.to_thread(make, 2, ["ab", "ab"])
    address = str(nodes.nodes["a"].ready["kv"])
    paths = {name: tmp_path / name for name in ("all", "durable")}
    readers = [
        BucketReader(address, bucket=BUCKET, sink=SqliteSink(path), durable_only=name == "durable")
        for name, path in paths.items()
    ]
    seen: dict[str, Any] = {}
    running = [asyncio.ensure_future(reader.run()) for reader in readers]

    async def until(which: str, expected: dict[str, Any]) -> None:
        while (found := table(paths[which])) != expected:
            seen[which] = found
            assert "lost" not in table(paths["durable"])
            for task in running:
                assert not task.done(), task.exception()
            await asyncio.sleep(0.05)  # the table tells nobody: looked at again

    async def at(name: str, key: str, value: int, *, framing: bytes = b"") -> None:
        encoded = str(value).encode()
        done = await asyncio.to_thread(nodes.put, name, key.encode(), encoded, framing=framing)
        assert done.status == 0

    try:
        async with asyncio.timeout(300):
            for key in ("k0", "k1", "k2"):
                await at("a", key, 1, framing=PERSISTED_ON_MAJORITY)
            both = {"k0": 1, "k1": 1, "k2": 1}
            for which in paths:
                await until(which, both)
            await asyncio.to_thread(nodes.nodes["b"].stop)
            await at("a", "k0", 2)
            await at("a", "lost", 2)
            await until("all", {**both, "k0": 2, "lost": 2})
            await asyncio.to_thread(nodes.nodes["a"].kill)
            await asyncio.to_thread(nodes.nodes["b"].start)
            await asyncio.to_thread(nodes.promote, "b")
            await at("b", "k1", 3)
            await until("all", {**both, "k1": 3})
            assert table(paths["durable"]) == both  # one of two disks is no majority
            await asyncio.to_thread(nodes.nodes["a"].start)
            await asyncio.to_thread(nodes.promote, "b")
            await until("durable", {**both, "k1": 3})
            await until("all", {**both, "k1": 3})
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class SafeNodes:
    """Nodes a and b with users and encryption, each at the addresses it got first."""

    def __init__(self, make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
        self.nodes = {
            name: make_node(
                "--no-memcached", "--user", "ada:secret", "--tls-cert", str(TLS / "node.pem"),
                "--tls-ca", str(TLS / "authority.pem"), *kept_ports(),
                name=name, env={"MILLSTREAM_CLUSTER_SECRET": SECRET},
            ).start()
            for name in "ab"
        }  # fmt: skip
        self.passwords = {word: tmp_path / word for word in ("secret", "wrong")}
        for word, path in self.passwords.items():
            path.write_text(word)
        self.trust = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
        shared = map_of(self.nodes, [["a", "b"], ["b", "a"]])
        self.pages = {
            name: Pages(
                *node.address("http"), BUCKET,
                user="ada", password="secret", tls=self.trust, timeout_s=60.0,
            )
            for name, node in self.nodes.items()
        }  # fmt: skip
        for name, pages in self.pages.items():
            pages.ask("PUT", "map", {**shared, "this": name})

    def promote(
        self, at: str, *words: str, bucket: str = BUCKET, password: str = "secret"
    ) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "millstream", "cluster", "promote", bucket, *words]
        command += ["--connect", str(self.nodes[at].ready["kv"]), "--user", "ada"]
        command += ["--password-file", str(self.passwords[password])]
        command += ["--tls-ca", str(TLS / "authority.pem")]
        return subprocess.run(command, capture_output=True, timeout=120, check=False)

    def ends(self, at: str, *words: str) -> list[tuple[str, str | None]]:
        done = self.promote(at, "--json", *words)
        assert done.returncode == 0, done.stderr.decode()
        return ends_of(json.loads(done.stdout))

    def until_followed(self) -> None:
        """Wait until every replica follows: before, no majority can be had."""
        until(
            lambda: all(map(self._is_following, self.pages.values())),
            lambda: {name: node.log() for name, node in self.nodes.items()},
        )

    @staticmethod
    def _is_following(pages: Pages) -> bool:
        copies = pages.ask("GET", "partitions")["partitions"]
        followed = [one["follows"] for one in copies if one["state"] == "replica"]
        return all(one is not None and one["is_streaming"] for one in followed)

    def client(self, at: str) -> millstream.Client:
        return millstream.connect(
            str(self.nodes[at].ready["kv"]), bucket=BUCKET, user="ada", password="secret",
            tls=self.trust, timeout_s=60.0,
        )  # fmt: skip


@pytest.mark.slow
def test_promotions_with_users_and_encryption(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    nodes = SafeNodes(make_node, tmp_path)
    for done, said in (
        (nodes.promote("a", password="wrong"), b"does not accept user 'ada'"),
        (nodes.promote("a", bucket="none"), b"no bucket 'none'"),
    ):
        assert (done.returncode, said in done.stderr, done.stdout) == (1, True, b""), done.stderr
    assert nodes.ends("a") == [("promoted", "a"), ("promoted", "b")]
    nodes.until_followed()
    with nodes.client("a") as client:
        for number in range(40):
            client.upsert(f"k{number}", number, durability="majority")
    assert nodes.ends("a", "--to", "b", "--partition", "0") == [("handed_over", "b")]
    assert nodes.ends("b", "--to", "a") == [("handed_over", "a")] * 2

    with nodes.nodes["a"].standing_still():
        shown = nodes.promote("b").stdout.decode()
    assert "promoted" in shown
    assert "! a took no part: " in shown
    assert nodes.ends("a") == [("served", "b")] * 2

    nodes.nodes["b"].kill()
    left = nodes.promote("a", "--json", "--force")
    assert left.returncode == 0, left.stderr.decode()
    assert ends_of(json.loads(left.stdout)) == [("promoted", "a")] * 2
    with nodes.client("a") as client:
        assert len(client.get_many([f"k{number}" for number in range(40)])) == 40
        client.upsert("k0", "new")
    nodes.nodes["b"].start()
    assert nodes.ends("a") == [("served", "a")] * 2
    assert nodes.ends("b", "--to", "b") == [("handed_over", "b")] * 2
    with nodes.client("b") as client:
        found = client.get("k0")
        assert found is not None
        assert found.value == "new"
    assert not any(
        word in node.log() for node in nodes.nodes.values() for word in ("Traceback", SECRET)
    )
