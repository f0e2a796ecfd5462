"""Replication between real nodes: `_replicate`, `_replicator`, and what passes through others."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import millstream
from support.http.http_calls import call, done
from support.node.node_process import NodeProcess, kept_ports
from support.node.waiting import until

LOGGED = ("--log-level", "debug")
Pair = tuple[NodeProcess, NodeProcess]


def fill(node: NodeProcess, name: str, ids: list[str], **members: Any) -> None:
    done(node, "POST", f"/{name}/_bulk_docs", {"docs": [{"_id": i, **members} for i in ids]})


def state(node: NodeProcess, name: str) -> dict[str, Any]:
    """All leaves of all documents, deleted ones too."""
    rows = done(node, "GET", f"/{name}/_changes?style=all_docs")["results"]
    return {row["id"]: sorted(each["rev"] for each in row["changes"]) for row in rows}


def replicate(node: NodeProcess, source: str, target: str, **more: Any) -> dict[str, Any]:
    job = {"source": source, "target": target, **more}
    found: dict[str, Any] = done(node, "POST", "/_replicate", job)
    return found


def read_rows(answer: dict[str, Any]) -> int:
    """How many revisions the last run looked at."""
    return 0 if answer.get("no_changes") else int(answer["history"][0]["missing_checked"])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    base: Path = tmp_path_factory.mktemp("sites")
    with NodeProcess(base / "a", *LOGGED) as one, NodeProcess(base / "b", *LOGGED) as other:
        yield one, other


def test_pull_push_conflicts_and_deletions(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/ways?q=4")
    fill(a, "ways", [f"d{n}" for n in range(30)], of="a")
    answer = replicate(b, f"{a.http}/ways", "ways", create_target=True)
    assert answer["history"][0]["docs_written"] == 30
    assert state(a, "ways") == state(b, "ways")
    for node, of in ((a, "a"), (b, "b")):
        rev = done(node, "GET", "/ways/d1")["_rev"]
        done(node, "PUT", f"/ways/d1?rev={rev}", {"edited at": of})
    rev = done(a, "GET", "/ways/d2")["_rev"]
    done(a, "DELETE", f"/ways/d2?rev={rev}")
    replicate(b, "ways", f"{a.http}/ways")  # push
    replicate(b, f"{a.http}/ways", "ways")  # pull
    assert state(a, "ways") == state(b, "ways")
    assert len(state(a, "ways")["d1"]) == 2
    assert call(b, "GET", "/ways/d2")[0] == 404
    winners = [done(node, "GET", "/ways/d1?conflicts=true") for node in pair]
    assert winners[0] == winners[1]
    assert len(winners[0]["_conflicts"]) == 1


def test_attachments_small_and_large(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/papers?q=4")
    small, large = b"a note", bytes(range(256)) * 1200
    inline = {"content_type": "text/x", "data": base64.b64encode(small).decode()}
    rev = done(a, "PUT", "/papers/p", {"_attachments": {"small": inline}})["rev"]
    request = Request(
        f"{a.http}/papers/p/large.bin?rev={rev}", method="PUT", data=large,
        headers={"Content-Type": "application/octet-stream"},
    )  # fmt: skip
    urlopen(request, timeout=60).close()
    replicate(a, "papers", f"{b.http}/papers", create_target=True)
    for name, data in (("small", small), ("large.bin", large)):
        with urlopen(f"{b.http}/papers/p/{name}", timeout=60) as answer:
            assert answer.read() == data
    assert state(a, "papers") == state(b, "papers")


def test_documents_that_are_too_deep_end_no_run_and_are_tried_again(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/deep?q=4")
    fill(a, "deep", [f"d{n}" for n in range(30)])
    with millstream.connect(a.ready["kv"], bucket="deep") as client:
        for depth in (300, 900):  # over HTTP they would be refused
            client.upsert(f"deep{depth}", b'{"x":' + b"[" * depth + b"]" * depth + b"}")
        client.wait_persisted()  # what is not durable is not replicated
    first = replicate(b, f"{a.http}/deep", "deep", create_target=True)["history"][0]
    assert (first["docs_written"], first["doc_write_failures"]) == (30, 2)
    done(a, "PUT", "/deep/later", {})
    with millstream.connect(a.ready["kv"], bucket="deep") as client:
        client.upsert("deep300", b"{}")
        client.wait_persisted()
    again = replicate(b, f"{a.http}/deep", "deep")["history"][0]
    assert (again["docs_written"], again["doc_write_failures"]) == (2, 1)
    assert state(a, "deep").keys() - state(b, "deep").keys() == {"deep900"}


def test_design_documents_pass_whatever_is_in_them(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/odd?q=4")
    docs: list[dict[str, Any]] = [
        {
            "_id": "_design/erlang",
            "_rev": "1-a",
            "language": "erlang",
            "views": {"v": {"map": "x"}},
        },
        {"_id": "_design/" + "n" * 200, "_rev": "1-a", "views": {"v": {"map": "function ("}}},
        {"_id": "_design/judge", "_rev": "1-a", "validate_doc_update": "function ("},
    ]
    refused = done(a, "POST", "/odd/_bulk_docs", {"docs": docs, "new_edits": False})
    assert refused == []
    replicate(b, f"{a.http}/odd", "odd", create_target=True)
    assert state(a, "odd") == state(b, "odd")
    for node in pair:
        assert call(node, "GET", "/odd/_design/erlang/_view/v")[0] == 500
        status, said = call(node, "PUT", "/odd/x", {})
        assert status >= 400
        assert "_design/judge" in said["reason"]
    done(a, "DELETE", "/odd/_design/judge?rev=1-a")
    done(a, "PUT", "/odd/x", {"_access": ["y"], "_replication_state": "z"})
    for _ in range(2):  # what came with the deletion was refused still, and is tried again
        replicate(b, f"{a.http}/odd", "odd")
    assert done(b, "GET", "/odd/x") == done(a, "GET", "/odd/x")
    assert done(b, "GET", "/odd/x")["_access"] == ["y"]


def test_only_some_documents(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/parts?q=4")
    fill(a, "parts", ["x1", "x2"], kind="x")
    fill(a, "parts", ["y1", "y2"], kind="y")
    source = f"{a.http}/parts"
    replicate(b, source, "named", create_target=True, doc_ids=["x1", "y2", "none"])
    assert sorted(state(b, "named")) == ["x1", "y2"]
    replicate(b, source, "chosen", create_target=True, selector={"kind": "y"})
    assert sorted(state(b, "chosen")) == ["y1", "y2"]


def test_nothing_to_do_takes_few_requests(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/still?q=4")
    fill(a, "still", [f"d{n}" for n in range(500)])
    replicate(b, f"{a.http}/still", "still", create_target=True, worker_batch_size=50)

    def asked() -> int:
        return sum(node.log().count("/still") for node in pair)

    before, answer = asked(), replicate(b, f"{a.http}/still", "still", worker_batch_size=50)
    assert answer["no_changes"] is True
    assert read_rows(answer) == 0
    assert asked() - before <= 12


def test_through_a_third_database_nothing_is_read_twice(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/first?q=4")
    fill(a, "first", [f"d{n}" for n in range(40)])
    replicate(b, f"{a.http}/first", "second", create_target=True)
    replicate(b, "second", "third", create_target=True)
    answer = replicate(b, f"{a.http}/first", "third")
    assert answer["skipped"] == 40
    assert read_rows(answer) == 0
    assert state(b, "third") == state(a, "first")
    fill(a, "first", ["late1", "late2"])
    assert read_rows(replicate(b, f"{a.http}/first", "third")) == 2
    replicate(b, "second", "fourth", create_target=True)
    plain = replicate(b, f"{a.http}/first", "fourth", transitive=False)
    assert read_rows(plain) == 42


def test_what_was_purged_on_the_way_is_not_skipped(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/whole?q=4")
    fill(a, "whole", [f"d{n}" for n in range(10)])
    replicate(b, f"{a.http}/whole", "middle", create_target=True)
    rev = done(b, "GET", "/middle/d3")["_rev"]
    assert done(b, "POST", "/middle/_purge", {"d3": [rev]})["purged"] == {"d3": [rev]}
    replicate(b, "middle", "end", create_target=True)
    assert "d3" not in state(b, "end")
    answer = replicate(b, f"{a.http}/whole", "end")
    assert "skipped" not in answer
    assert state(b, "end") == state(a, "whole")
    # and what the end itself purges is no more covered by what came before
    replicate(b, f"{a.http}/whole", "other", create_target=True)
    replicate(b, "other", "last", create_target=True)
    done(b, "POST", "/last/_purge", {"d4": [done(b, "GET", "/last/d4")["_rev"]]})
    assert "skipped" not in replicate(b, f"{a.http}/whole", "last")
    assert state(b, "last") == state(a, "whole")


def test_a_continuous_job_and_its_end(pair: Pair) -> None:
    a, b = pair
    done(a, "PUT", "/live?q=4")
    job = {"source": f"{a.http}/live", "target": "live", "create_target": True,
           "continuous": True}  # fmt: skip
    status, begun = call(b, "POST", "/_replicate", job)
    assert status == 202
    fill(a, "live", ["one"])
    until(lambda: call(b, "GET", "/live/one")[0] == 200, lambda: b.log()[-2000:])
    tasks = done(b, "GET", "/_active_tasks")
    assert begun["_local_id"] in [task["replication_id"] for task in tasks]
    assert done(b, "GET", "/_scheduler/jobs")["jobs"][0]["state"] == "running"
    assert done(b, "POST", "/_replicate", {**job, "cancel": True})["ok"]
    assert done(b, "GET", "/_scheduler/jobs")["jobs"] == []
    assert call(b, "POST", "/_replicate", {**job, "cancel": True})[0] == 404


def test_errors_are_told(pair: Pair) -> None:
    a, b = pair
    assert call(b, "POST", "/_replicate", {"source": "none"})[1]["error"] == "bad_request"
    job = {"source": f"{a.http}/no_such", "target": "t", "create_target": True}
    status, body = call(b, "POST", "/_replicate", job)
    assert (status, body["error"]) == (404, "not_found")


def docs(node: NodeProcess) -> dict[str, Any]:
    return {each["doc_id"]: each for each in done(node, "GET", "/_scheduler/docs")["docs"]}


def test_documents_are_jobs_and_go_on_after_a_kill(
    own_node: Callable[..., NodeProcess],
) -> None:
    node = own_node(*kept_ports())
    done(node, "PUT", "/src?q=4")
    fill(node, "src", [f"d{n}" for n in range(300)])
    job = {"source": "src", "target": "copy", "create_target": True}
    done(node, "PUT", "/_replicator/once", {**job, "target": "once"})
    for wrong in ({"source": "src"}, {**job, "continuous": "true"}):
        assert call(node, "PUT", "/_replicator/wrong", wrong)[0] == 403
        [row] = done(node, "POST", "/_replicator/_bulk_docs", {"docs": [wrong]})
        assert row["error"] == "forbidden"
    done(node, "PUT", "/_replicator/bad", {"source": "src", "target": "ftp://h/t"})
    done(node, "PUT", "/_replicator/always", {**job, "continuous": True, "worker_batch_size": 20})
    until(lambda: docs(node)["once"]["state"] == "completed", lambda: str(docs(node)))
    assert docs(node)["bad"]["state"] == "failed"
    until(lambda: call(node, "GET", "/copy")[0] == 200, node.log)
    node.kill()
    node.start()
    until(lambda: len(docs(node)) == 3, lambda: str(docs(node)))
    assert docs(node)["once"]["state"] == "completed"  # it is not run again
    fill(node, "src", ["late"])
    until(lambda: call(node, "GET", "/copy")[1].get("doc_count") == 301, node.log)
    assert call(node, "GET", "/once/late")[0] == 404
    rev = done(node, "GET", "/_replicator/always")["_rev"]
    done(node, "DELETE", f"/_replicator/always?rev={rev}")
    until(lambda: "always" not in docs(node), lambda: str(docs(node)))
    assert [each["id"] for each in done(node, "GET", "/_scheduler/jobs")["jobs"]] == []


def test_a_run_goes_on_after_its_target_was_killed(
    own_node: Callable[..., NodeProcess], pair: Pair
) -> None:
    source = pair[0]
    done(source, "PUT", "/big?q=4")
    for start in range(0, 2000, 500):
        fill(source, "big", [f"d{n}" for n in range(start, start + 500)], text="x" * 200)
    target = own_node(*kept_ports())
    job = {
        "source": f"{source.http}/big", "target": "big", "create_target": True,
        "worker_batch_size": 20, "checkpoint_interval": 100,
    }  # fmt: skip
    done(target, "POST", "/_replicate", {**job, "continuous": True})
    until(lambda: call(target, "GET", "/big")[1].get("doc_count", 0) > 200, target.log)
    target.kill()
    target.start()
    replicate(target, **job)
    assert state(target, "big") == state(source, "big")


def test_only_administrators_replicate(own_node: Callable[..., NodeProcess]) -> None:
    node = own_node("--user", "ada:secret")
    assert call(node, "POST", "/_replicate", {"source": "a", "target": "b"})[0] == 401
    assert call(node, "GET", "/_scheduler/jobs")[0] == 401
    assert call(node, "PUT", "/_replicator/j", {"source": "a", "target": "b"})[0] == 401
