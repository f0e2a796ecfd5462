"""Bodies of old revisions: readable until the compaction, after any restart, from any copy."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from support.http.attached_documents import attached
from support.http.http_calls import TIMEOUT_S, call
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.node.node_process import NodeProcess
from support.node.waiting import until

MakeNode = Callable[..., NodeProcess]


def written(node: NodeProcess, database: str, count: int, doc_id: str = "doc") -> list[str]:
    """Write revisions of a document, the second with an attachment; return them, oldest first."""
    revs: list[str] = []
    for n in range(1, count + 1):
        sent: dict[str, Any] = {"n": n} | ({"_rev": revs[-1]} if revs else {})
        if n == 2:
            sent["_attachments"] = {"a": attached(b"two")}
        status, made = call(node, "PUT", f"/{database}/{doc_id}", sent)
        assert status == 201, made
        revs.append(made["rev"])
    return revs


def read(node: NodeProcess, database: str, revs: Sequence[str]) -> list[Any]:
    """Return the bodies of revisions as all pages that read old ones have them; None: missing."""
    path = f"/{database}/doc"
    single = []
    for rev in revs:
        status, found = call(node, "GET", f"{path}?rev={rev}")
        assert status in (200, 404), found
        single.append(found["n"] if status == 200 else None)
    asked = urllib.parse.quote(json.dumps([*revs]))
    accept = {"Accept": "application/json"}
    request = urllib.request.Request(f"{node.http}{path}?open_revs={asked}", headers=accept)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        several = json.loads(answer.read())
    assert [one["ok"]["n"] if "ok" in one else None for one in several] == single
    docs = {"docs": [{"id": "doc", "rev": rev} for rev in revs]}
    bulk = call(node, "POST", f"/{database}/_bulk_get", docs)[1]["results"]
    assert [one["docs"][0].get("ok", {}).get("n") for one in bulk] == single
    info = {
        one["rev"]: one["status"]
        for one in call(node, "GET", f"{path}?revs_info=true")[1]["_revs_info"]
    }
    assert [info[rev] == "available" for rev in revs] == [one is not None for one in single]
    return single


def attachment(node: NodeProcess, database: str, rev: str) -> Any:
    status, found = call(node, "GET", f"/{database}/doc?rev={rev}&attachments=true")
    assert status == 200, found
    return found["_attachments"]["a"]["data"]


def test_old_bodies_are_read_after_a_stop_and_a_kill_until_the_compaction(
    make_node: MakeNode,
) -> None:
    node = make_node("--no-memcached", "--bucket", "b:4").start()
    revs = written(node, "b", 3)
    for end in (node.stop, node.kill):
        end()
        node.start()
        assert read(node, "b", revs) == [1, 2, 3]
        assert attachment(node, "b", revs[1]) == "dHdv"
    assert call(node, "POST", "/b/_compact", {})[0] == 202
    assert read(node, "b", revs) == [None, None, 3]
    node.kill()
    node.start()
    assert read(node, "b", revs) == [None, None, 3]
    until(lambda: not call(node, "GET", "/b")[1]["compact_running"])
    later = call(node, "PUT", "/b/doc", {"n": 4, "_rev": revs[2]})[1]["rev"]
    assert read(node, "b", [*revs, later]) == [None, None, 3, 4]
    assert call(node, "POST", "/b/_purge", {"doc": [later]})[0] == 201
    again = {"_id": "doc", "n": 9, "_revisions": {"start": 4, "ids": ["f" * 32, revs[2][2:]]}}
    call(node, "POST", "/b/_bulk_docs", {"new_edits": False, "docs": [again]})
    assert read(node, "b", [revs[2], "4-" + "f" * 32]) == [None, 9]


def test_any_node_answers_and_a_promoted_copy_reads_its_own_log_without_what_was_rolled_back(
    make_node: MakeNode,
) -> None:
    nodes = BucketNodes([make_node("--no-memcached", name=name) for name in "ab"], ["ab"])
    nodes.promote("a")
    nodes.until_whole("a", "b")
    first, second = nodes.nodes["a"], nodes.nodes["b"]
    revs = written(first, BUCKET, 3)
    assert read(second, BUCKET, revs) == [1, 2, 3], "from the node that has the active copy"
    nodes.until_level("a", "b")
    second.kill()
    change = {"n": "lost", "_rev": revs[2]}
    lost = call(first, "PUT", f"/{BUCKET}/doc?batch=ok", change)[1]["rev"]
    nodes.until(lambda: nodes.standing("a")["persisted_end"] == 4)
    first.kill()
    second.start()
    nodes.promote("b", "--force")
    first.start()
    nodes.promote("a")
    nodes.until_level("a", "b")
    revs.append(call(second, "PUT", f"/{BUCKET}/doc", {"n": 4, "_rev": revs[2]})[1]["rev"])
    nodes.until_level("a", "b")
    for active in "ba":
        nodes.promote(active, "--to", active)
        assert nodes.actives() == [active]
        assert read(first, BUCKET, revs) == [1, 2, 3, 4]
        assert attachment(first, BUCKET, revs[1]) == "dHdv"
        assert call(second, "GET", f"/{BUCKET}/doc?rev={lost}")[0] == 404
    assert call(second, "POST", f"/{BUCKET}/_compact", {})[0] == 202
    assert read(first, BUCKET, revs) == [None, None, None, 4], "all nodes compact"
