"""Documents of `_replicator` that several nodes share: each job runs on one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.model.partitions import partition_of
from support.http.http_calls import call, done
from support.kv.nodes_with_map import activate_first, ask, give_map
from support.node.node_process import NodeProcess
from support.node.waiting import until

JOBS = "_replicator"
ROWS = [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
MakeNode = Callable[..., NodeProcess]


def states(node: NodeProcess) -> dict[str, str]:
    docs = done(node, "GET", "/_scheduler/docs")["docs"]
    return {each["doc_id"]: each["state"] for each in docs}


def active_tasks(node: NodeProcess) -> set[str]:
    tasks = done(node, "GET", "/_active_tasks")
    return {task["doc_id"] for task in tasks if task["type"] == "replication"}


def copies(node: NodeProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(node, "GET", f"/buckets/{JOBS}/partitions")[1]["partitions"]
    return found


def ends(node: NodeProcess) -> list[tuple[int, int]]:
    return [(each["high_seqno"], each["persisted_seqno"]) for each in copies(node)]


def is_dead(node: NodeProcess, number: int) -> bool:
    return bool(copies(node)[number]["state"] == "dead")


def test_a_job_runs_where_its_document_is_and_moves_with_it(make_node: MakeNode) -> None:
    nodes = {name: make_node("--no-memcached", name=name).start() for name in "ab"}
    give_map(nodes, JOBS, ROWS)
    activate_first(nodes, JOBS, ROWS)
    a, b = nodes.values()
    done(a, "PUT", "/notes?q=4")
    done(a, "POST", "/notes/_bulk_docs", {"docs": [{"_id": f"n{n}"} for n in range(50)]})
    source = f"{a.http}/notes"
    places: dict[str, str] = {}
    for n in range(8):
        doc_id = f"job{n}"
        number = partition_of(doc_id.encode(), 4)
        places[doc_id] = ROWS[number][0]
        job = {"source": source, "target": f"{b.http}/copy{n}", "create_target": True}
        is_once = n >= 4
        body = job if is_once else {**job, "continuous": True}
        done(nodes[places[doc_id]], "PUT", f"/{JOBS}/{doc_id}", body)
    assert set(places.values()) == {"a", "b"}
    wanted = {f"job{n}": "completed" if n >= 4 else "running" for n in range(8)}

    def of(name: str) -> dict[str, str]:
        return {job: state for job, state in wanted.items() if places[job] == name}

    for name, node in nodes.items():
        until(lambda: states(node) == of(name), lambda: f"{states(node)} {node.log()}")  # noqa: B023
    for n in range(8):
        until(lambda: call(b, "GET", f"/copy{n}")[1].get("doc_count") == 50, b.log)  # noqa: B023

    until(lambda: ends(a) == ends(b))
    for number in (0, 2):  # a gives them up
        asked = {"state": "active", "take_over": True}
        status, answer = ask(b, "PUT", f"/buckets/{JOBS}/partitions/{number}", asked)
        assert status in (200, 202), answer
    give_map(nodes, JOBS, [["b", "a"]] * 4, revision=2)
    for number in (0, 2):
        until(lambda: is_dead(a, number))  # noqa: B023
        assert (
            ask(a, "PUT", f"/buckets/{JOBS}/partitions/{number}", {"state": "replica"})[0] == 200
        )
    until(lambda: states(b) == wanted, lambda: f"{states(b)} {b.log()}")
    until(lambda: states(a) == {}, a.log)
    assert active_tasks(a) == set()
    assert active_tasks(b) == {f"job{n}" for n in range(4)}
    done(a, "PUT", "/notes/late", {})
    for n in range(8):
        count = 50 if n >= 4 else 51  # what is over is not run again
        until(lambda: call(b, "GET", f"/copy{n}")[1].get("doc_count") == count, b.log)  # noqa: B023
    figures = done(b, "GET", f"/_scheduler/docs/{JOBS}/job0")["info"]
    assert figures["docs_written"] <= 51


def test_a_promotion_takes_jobs_along(make_node: MakeNode) -> None:
    nodes = {name: make_node("--no-memcached", name=name).start() for name in "abc"}
    give_map(nodes, JOBS, [["a", "b", "c"]])
    activate_first(nodes, JOBS, [["a", "b", "c"]])
    a, b, c = nodes.values()
    done(c, "PUT", "/notes?q=4")
    done(c, "PUT", "/notes/one", {})
    job = {"source": f"{c.http}/notes", "target": f"{c.http}/copy", "create_target": True}
    done(a, "PUT", f"/{JOBS}/j", {**job, "continuous": True})
    until(lambda: states(a) == {"j": "running"}, a.log)
    until(lambda: call(c, "GET", "/copy")[1].get("doc_count") == 1, c.log)
    until(lambda: ends(a) == ends(b) == ends(c))
    assert (states(b), states(c)) == ({}, {})
    a.kill()
    status, answer = ask(b, "PUT", f"/buckets/{JOBS}/partitions/0", {"state": "active"})
    assert status == 200, answer
    give_map({"b": b, "c": c}, JOBS, [["b", "c"]], revision=2)
    until(lambda: states(b) == {"j": "running"}, b.log)
    done(c, "PUT", "/notes/two", {})
    until(lambda: call(c, "GET", "/copy")[1].get("doc_count") == 2, c.log)
