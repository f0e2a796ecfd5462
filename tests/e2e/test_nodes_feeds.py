"""A database whose partitions are on three nodes: each node answers for all of it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from itertools import cycle
from typing import Any

import pytest

from millstream.model.partitions import partition_of
from support.http import http_calls
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.kv.nodes_with_map import activate_first, give_map
from support.node.node_process import NodeProcess
from support.node.waiting import WAIT_S, until

MakeNode = Callable[..., NodeProcess]
ROWS = [list(row) for row in ("abc", "bca", "cab", "acb", "bac", "cba", "abc", "bca")]
COUNT = 60
IDS = [f"doc-{n:03}" for n in range(COUNT)]


def call(node: NodeProcess, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    return http_calls.call(f"{node.http}/{BUCKET}", method, path, content)


def good(node: NodeProcess, path: str, content: Any = None) -> Any:
    status, answer = call(node, "GET" if content is None else "POST", path, content)
    assert status == 200, answer
    return answer


def put(nodes: BucketNodes, doc_id: str, content: dict[str, Any]) -> None:
    """Write a document at some node."""
    running = [node for node in nodes.nodes.values() if node.is_running]
    node = running[len(doc_id.encode().rstrip(b"13579")) % len(running)]
    nodes.until(lambda: call(node, "PUT", f"/{doc_id}", content)[0] in (201, 409))


def ids(answer: Any) -> list[str]:
    return [row["id"] for row in answer.get("results", answer.get("rows"))]


def until_all_seen(nodes: BucketNodes, count: int) -> None:
    """Feeds show what cannot get lost any more: a moment after it was acknowledged."""
    running = [node for node in nodes.nodes.values() if node.is_running]
    nodes.until(lambda: all(len(ids(good(node, "/_changes"))) == count for node in running))


@pytest.fixture
def nodes(make_node: MakeNode) -> BucketNodes:
    return filled([make_node("--no-memcached", name=name) for name in "abc"])


@pytest.fixture(scope="module")
def only_read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketNodes]:
    """The same, for tests that change nothing."""
    directory = tmp_path_factory.mktemp("spread-feeds")
    made = [NodeProcess(directory / name, "--no-memcached") for name in "abc"]
    try:
        yield filled(made)
    finally:
        for node in made:
            node.kill()


def filled(made: list[NodeProcess]) -> BucketNodes:
    found = BucketNodes(made, ROWS)
    found.promote("a")
    for n, doc_id in enumerate(IDS):
        put(found, doc_id, {"n": n})
    until_all_seen(found, COUNT)
    return found


def test_every_node_answers_for_the_whole_database(only_read: BucketNodes) -> None:
    infos = []
    for node in only_read.nodes.values():
        assert ids(good(node, "/_all_docs")) == IDS
        assert ids(good(node, "/_all_docs?descending=true&limit=7&skip=3")) == IDS[-4:-11:-1]
        answer = good(node, '/_all_docs?startkey="doc-010"&endkey="doc-020"&include_docs=true')
        assert [row["doc"]["n"] for row in answer["rows"]] == list(range(10, 21))
        assert answer["total_rows"] == COUNT
        found = good(node, "/_find", {"selector": {"n": {"$gte": 50}}, "limit": 99})
        assert [doc["n"] for doc in found["docs"]] == list(range(50, 60))
        infos.append(good(node, ""))
    for info in infos:
        assert info["doc_count"] == COUNT
        same = ("update_seq", "uuid", "branches", "purge_epoch", "instance_start_time")
        assert [info[name] for name in same] == [infos[0][name] for name in same]


def test_filters_and_forms_of_feeds(only_read: BucketNodes) -> None:
    for node in only_read.nodes.values():
        answer = good(node, "/_changes?include_docs=true&style=all_docs&conflicts=true")
        assert {row["id"]: row["doc"]["n"] for row in answer["results"]} == {
            doc_id: n for n, doc_id in enumerate(IDS)
        }
        assert answer["last_seq"] == good(node, "")["update_seq"]
        assert answer["pending"] == 0
        newest = good(node, "/_changes?descending=true&limit=5")
        assert ids(newest) == ids(good(node, "/_changes"))[:-6:-1]
        some = good(node, "/_changes?filter=_doc_ids", {"doc_ids": ["doc-001", "doc-030", "no"]})
        assert sorted(ids(some)) == ["doc-001", "doc-030"]
        some = good(node, "/_changes?filter=_selector", {"selector": {"n": {"$lt": 4}}})
        assert sorted(ids(some)) == IDS[:4]
        assert ids(good(node, "/_changes?since=now")) == []
        assert call(node, "GET", "/_changes?since=9-AAAA")[0] == 400


def test_pages_go_on_at_other_nodes(only_read: BucketNodes) -> None:
    for limit in (1, 7, 25):
        since, seen = "0", list[str]()
        for node in cycle(only_read.nodes.values()):
            answer = good(node, f"/_changes?since={since}&limit={limit}")
            if not answer["results"]:
                break
            seen += ids(answer)
            since = answer["last_seq"]
            assert answer["pending"] == COUNT - len(seen)
        assert sorted(seen) == IDS, "each once"


class Following(threading.Thread):
    """Reads a continuous feed until it is cut."""

    def __init__(self, node: NodeProcess, since: str) -> None:
        super().__init__(daemon=True)
        path = f"/{BUCKET}/_changes?feed=continuous&heartbeat=100&since={since}"
        self.answer = urllib.request.urlopen(node.http + path, timeout=WAIT_S)
        self.rows = list[Any]()
        self.beats = 0
        self.start()

    def run(self) -> None:
        try:
            for line in self.answer:
                if line.strip():
                    self.rows.append(json.loads(line))
                else:
                    self.beats += 1
        except (HTTPException, OSError):
            return


def test_feeds_wait_for_every_node_and_follow_partitions(nodes: BucketNodes) -> None:
    since = good(nodes.nodes["a"], "")["update_seq"]
    feeds = [Following(node, since) for node in nodes.nodes.values()]
    nodes.until(lambda: all(feed.beats > 2 for feed in feeds))
    told = list[Any]()
    long_poll = threading.Thread(
        target=lambda: told.append(
            good(nodes.nodes["c"], f"/_changes?feed=longpoll&since={since}&timeout=60000")
        )
    )
    long_poll.start()
    written = []
    for turn in range(6):
        written += [f"new-{turn}-{n}" for n in range(8)]
        for doc_id in written[-8:]:
            put(nodes, doc_id, {})
        count = len(written)
        nodes.until(lambda count=count: all(len(feed.rows) >= count for feed in feeds))
        nodes.promote("a", "--to", "abc"[turn % 3], "--partition", str(turn))
        assert nodes.actives(turn) == ["abc"[turn % 3]]
    long_poll.join(WAIT_S)
    assert ids(told[0])[0] in written
    for feed in feeds:
        assert [row["id"] for row in feed.rows if row["id"] in IDS] == []
        assert sorted(row["id"] for row in feed.rows) == sorted(written), "each once"
    later = good(nodes.nodes["b"], f"/_changes?since={since}")
    assert sorted(ids(later)) == sorted(written), "a token from before all moves"
    between = feeds[0].rows[20]["seq"]
    later = good(nodes.nodes["c"], f"/_changes?since={between}")
    assert {*ids(later)} == {row["id"] for row in feeds[0].rows[21:]}


def test_a_node_that_is_lost(nodes: BucketNodes) -> None:
    since = good(nodes.nodes["b"], "")["update_seq"]
    nodes.nodes["b"].kill()
    for path in ("/_changes", "/_all_docs", "", "/_coverage"):
        status, answer = call(nodes.nodes["a"], "GET", path)
        assert (status, answer["error"]) == (503, "node_failed"), path
    nodes.promote("a")
    for name in "ac":
        until(lambda name=name: call(nodes.nodes[name], "GET", "")[0] == 200)
    put(nodes, "after", {})
    until_all_seen(nodes, COUNT + 1)
    for name in "ac":
        found = good(nodes.nodes[name], f"/_changes?since={since}")
        assert ids(found) == ["after"], "nothing that was read comes again"
        assert ids(good(nodes.nodes[name], "/_all_docs")) == ["after", *IDS]


def test_a_purge_anywhere_changes_the_epoch_everywhere(nodes: BucketNodes) -> None:
    def epochs() -> set[int]:
        found = {good(node, "")["purge_epoch"] for node in nodes.nodes.values()}
        assert len(found) == 1
        return found

    seen = epochs()
    rev = good(nodes.nodes["a"], '/_all_docs?key="doc-000"')["rows"][0]["value"]["rev"]
    owner = nodes.actives(partition_of(b"doc-000", len(ROWS)))[0]
    other = nodes.nodes["a" if owner != "a" else "b"]
    assert call(other, "POST", "/_purge", {"doc-000": [rev]})[0] == 201
    assert call(nodes.nodes["c"], "GET", "/doc-000")[0] == 404
    seen |= epochs()
    for to in "ba":
        nodes.promote("a", "--to", to, "--partition", "0")
        seen |= epochs()
    assert len(seen) == 4


def replicated(node: NodeProcess, source: str, target: str) -> dict[str, int]:
    """Run a job at a node; return how many revisions it looked at, and wrote."""
    job = {"source": source, "target": target, "create_target": True}
    said = http_calls.done(node, "POST", "/_replicate", job)
    if said.get("no_changes"):
        return {"looked": 0, "wrote": 0}
    run = said["history"][0]
    return {"looked": run["missing_checked"], "wrote": run["docs_written"]}


def test_replication_from_and_to_any_node(nodes: BucketNodes, make_node: MakeNode) -> None:
    alone = make_node("--no-memcached", name="alone").start()
    at = {name: f"{node.http}/{BUCKET}" for name, node in nodes.nodes.items()}
    all_of_it = {"looked": COUNT, "wrote": COUNT}
    nothing = {"looked": 0, "wrote": 0}
    assert replicated(alone, at["a"], "copy") == all_of_it
    assert replicated(alone, at["b"], "copy") == nothing
    nodes.promote("a", "--to", "b", "--partition", "0")
    put(nodes, "more", {})
    until_all_seen(nodes, COUNT + 1)
    assert replicated(alone, at["c"], "copy") == {"looked": 1, "wrote": 1}
    docs = [{"_id": f"back-{n}"} for n in range(9)]
    http_calls.done(alone, "POST", "/copy/_bulk_docs", {"docs": docs})
    assert replicated(alone, "copy", at["b"])["wrote"] == 9
    until_all_seen(nodes, COUNT + 10)
    assert replicated(alone, "copy", at["c"]) == nothing
    assert replicated(nodes.nodes["a"], at["c"], "second")["wrote"] == COUNT + 10


def test_what_came_through_others_is_not_read_again(
    nodes: BucketNodes, make_node: MakeNode
) -> None:
    alone = make_node("--no-memcached", name="alone").start()
    first, second = (f"{nodes.nodes[name].http}/{BUCKET}" for name in "ab")
    replicated(alone, first, "through")
    replicated(alone, "through", "end")
    assert replicated(alone, second, "end") == {"looked": 0, "wrote": 0}, "by way of another"


def test_what_was_purged_at_some_node_on_the_way_is_not_skipped(
    nodes: BucketNodes, make_node: MakeNode
) -> None:
    alone = make_node("--no-memcached", name="alone").start()
    http_calls.done(alone, "PUT", "/far")
    docs = [{"_id": f"far-{n}"} for n in range(9)]
    http_calls.done(alone, "POST", "/far/_bulk_docs", {"docs": docs})
    first, second = (f"{nodes.nodes[name].http}/{BUCKET}" for name in "ab")
    assert replicated(alone, "far", first)["wrote"] == 9
    until_all_seen(nodes, COUNT + 9)
    assert replicated(alone, second, "near")["wrote"] == COUNT + 9
    assert replicated(alone, "far", "near") == {"looked": 0, "wrote": 0}, "it came by the nodes"
    rev = good(nodes.nodes["a"], "/far-3")["_rev"]
    assert call(nodes.nodes["c"], "POST", "/_purge", {"far-3": [rev]})[0] == 201
    until_all_seen(nodes, COUNT + 8)
    assert replicated(alone, second, "other")["wrote"] == COUNT + 8
    assert replicated(alone, "far", "other")["wrote"] == 1, "what was purged is not skipped"


def test_where_there_are_users_nodes_ask_each_other_as_nodes(make_node: MakeNode) -> None:
    ada = ("ada", "secret word")
    options = ("--user", ":".join(ada), "--no-memcached")
    env = {"MILLSTREAM_CLUSTER_SECRET": "a secret of nodes"}
    nodes = {name: make_node(*options, name=name, env=env).start() for name in "ab"}
    rows = [["a"], ["b"], ["a"], ["b"]]
    give_map(nodes, "shared", rows, login=ada)
    activate_first(nodes, "shared", rows, login=ada)

    def answered(
        node: NodeProcess, path: str, body: Any = None, login: Any = ada
    ) -> tuple[int, Any]:
        method = "GET" if body is None else "POST"
        return http_calls.call(node, method, path, body, login=login)

    docs = {"docs": [{"_id": f"d{n}"} for n in range(20)]}
    until(lambda: answered(nodes["a"], "/shared/_bulk_docs", docs)[0] == 201)
    for node in nodes.values():
        for path in ("/shared/_changes", "/shared/_all_docs"):
            assert len(ids(answered(node, path)[1])) == 20
    part = "/_millstream/buckets/shared/stored"
    assert answered(nodes["a"], part, {})[0] == 400, "an administrator may ask, but not for this"
    assert answered(nodes["a"], part, {}, login=None)[0] == 401
