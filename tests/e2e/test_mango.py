"""Declarative queries on a whole node: by an index and by a scan they find the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from millstream.client.kv import connect
from millstream.views.core.mango.selectors import parse_selector
from support.http.http_calls import call
from support.node.node_process import NodeProcess

MakeNode = Callable[..., NodeProcess]
SELECTORS: tuple[dict[str, Any], ...] = (
    {"n": 7},
    {"n": {"$gt": 10, "$lte": 14}},
    {"n": {"$gte": 12}, "kind": "odd"},
    {"n": 3, "name.first": {"$gt": "a"}},
    {"name.first": {"$regex": "^[ab]"}},
    {"$or": [{"n": 1}, {"n": {"$in": [2, 3]}}]},
    {"tags": {"$elemMatch": {"$eq": "x"}}, "n": {"$exists": True}},
)


def find(node: NodeProcess, **options: Any) -> dict[str, Any]:
    """Return all pages of an answer as one."""
    base = f"http://{node.ready['http']}"
    found: list[dict[str, Any]] = []
    bookmark = None
    while True:
        status, page = call(base, "POST", "/b/_find", options | {"bookmark": bookmark, "limit": 9})
        assert status == 200, page
        found += page["docs"]
        if not page["docs"]:
            return page | {"docs": found}
        bookmark = page["bookmark"]


def test_indexes_and_scans_find_the_same(make_node: MakeNode) -> None:
    node = make_node("--bucket", "b:4").start()
    base = f"http://{node.ready['http']}"
    chosen = random.Random(7)
    documents = {}
    for n in range(150):
        document: dict[str, Any] = {"kind": "odd" if n % 2 else "even"}
        if n % 5:
            document["n"] = chosen.randrange(20)
        if n % 3:
            document["name"] = {"first": chosen.choice(["ann", "bob", "cleo"])}
        if n % 4:
            document["tags"] = chosen.sample(["x", "y", "z"], 2)
        documents[f"d{n}"] = document
    with connect(str(node.ready["kv"]), bucket="b") as client:
        for doc_id, document in documents.items():
            client.upsert(doc_id, document)
        by_scan = [find(node, selector=selector) for selector in SELECTORS]
        for fields in (["n"], ["n", "name.first"], ["name.first"]):
            status, made = call(base, "POST", "/b/_index", {"index": {"fields": fields}})
            assert (status, made["result"]) == (200, "created")
        by_index = [find(node, selector=selector) for selector in SELECTORS]
        for selector, scanned, indexed in zip(SELECTORS, by_scan, by_index, strict=True):
            matches = parse_selector(selector).matches
            expected = {
                doc_id for doc_id, one in documents.items() if matches({"_id": doc_id, **one})
            }
            assert expected
            assert "No matching index" in scanned["warning"]
            assert "No matching index" not in indexed.get("warning", "")
            for found in (scanned, indexed):
                ids = [one["_id"] for one in found["docs"]]
                assert len(ids) == len(set(ids))
                assert set(ids) == expected
        found = find(node, selector={"n": {"$gt": 5}}, sort=[{"n": "desc"}], fields=["n", "_id"])
        numbers = [one["n"] for one in found["docs"]]
        assert numbers == sorted(numbers, reverse=True)
        assert len(numbers) == sum(one.get("n", 0) > 5 for one in documents.values())
        client.upsert("new", {"n": 7})
        assert "new" in {one["_id"] for one in find(node, selector={"n": 7})["docs"]}
        client.remove("new")
        assert "new" not in {one["_id"] for one in find(node, selector={"n": 7})["docs"]}
    status, explained = call(base, "POST", "/b/_explain", {"selector": {"n": 7, "kind": "odd"}})
    assert (status, explained["index"]["def"]) == (200, {"fields": [{"n": "asc"}]})
    status, listed = call(base, "GET", "/b/_index")
    assert listed["total_rows"] == 4
    for one in listed["indexes"][1:]:
        call(base, "DELETE", f"/b/_index/{one['ddoc']}/json/{one['name']}")
    assert "No matching index" in find(node, selector={"n": 7})["warning"]
