"""Design documents of a whole node over plain HTTP, as CouchDB's clients speak it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from support.node.node_process import NodeProcess

MAP = "function (doc) { emit(doc.n, 1) }"
DESIGN = {"views": {"by": {"map": MAP, "reduce": "_sum"}}}
PATH = "/b/_design/d"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    path: Path = tmp_path_factory.mktemp("designs") / "node"
    with NodeProcess(path, "--bucket", "b:4") as node:
        yield node


@pytest.fixture
def ask(node: NodeProcess) -> Iterator[Ask]:
    connection = HTTPConnection(urlsplit(node.http).netloc, timeout=60)

    def ask(method: str, path: str, content: Any = None, **headers: str) -> Answer:
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        data = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, json.loads(data) if data else None)

    yield ask
    connection.close()


def test_a_document_and_its_revisions(ask: Ask) -> None:
    first = ask("PUT", PATH, DESIGN)
    assert (first.status, first.body["ok"], first.body["id"]) == (201, True, "_design/d")
    rev = first.body["rev"]
    assert first.headers["etag"] == f'"{rev}"'
    assert first.headers["location"] == PATH
    found = ask("GET", PATH)
    assert found.body == {"_id": "_design/d", "_rev": rev, **DESIGN}
    assert (found.status, found.headers["etag"]) == (200, f'"{rev}"')
    assert found.headers["content-type"].startswith("application/json")
    head = ask("HEAD", PATH)
    assert (head.status, head.body, head.headers["etag"]) == (200, None, f'"{rev}"')
    same = ask("GET", PATH, If_None_Match=f'"{rev}"')
    assert (same.status, same.body, same.headers["etag"]) == (304, None, f'"{rev}"')
    conflict = ask("PUT", PATH, DESIGN)
    assert (conflict.status, conflict.body["error"]) == (409, "conflict")
    second = ask("PUT", f"{PATH}?rev={rev}", DESIGN)
    third = ask("PUT", PATH, DESIGN, If_Match=f'"{second.body["rev"]}"')
    assert third.body["rev"].startswith("3-")
    assert ask("GET", f"{PATH}?rev={rev}").body["_rev"] == rev, "until a compaction"
    copied = ask("COPY", PATH, Destination="_design/other")
    assert (copied.status, copied.body["id"]) == (201, "_design/other")
    gone = ask("DELETE", f"{PATH}?rev={third.body['rev']}")
    assert (gone.status, gone.body["rev"][:2]) == (200, "4-")
    assert ask("GET", PATH).body == {"error": "not_found", "reason": "deleted"}
    assert ask("GET", "/b/_design%2Fother").status == 200
    assert ask("GET", "/b/_design/never").body == {"error": "not_found", "reason": "missing"}
    listed = ask("GET", "/b/_design_docs").body
    ids = [row["id"] for row in listed["rows"]]
    assert "_design/other" in ids
    assert "_design/d" not in ids


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "bad_request"),
        (b"[]", "bad_request"),
        ({"views": []}, "invalid_design_doc"),
        ({"views": {"by": {"map": 1}}}, "invalid_design_doc"),
        ({"views": {"by": {"map": "function ("}}}, "compilation_error"),
        ({"views": {"by": {"map": MAP, "reduce": "no("}}}, "compilation_error"),
        ({"views": {"by": {"map": MAP, "reduce": "_none"}}}, "invalid_design_doc"),
        ({"_unknown": 1}, "doc_validation"),
        ({"_rev": "x"}, "bad_request"),
    ],
)
def test_what_is_refused_is_not_stored(ask: Ask, content: Any, code: str) -> None:
    answer = ask("PUT", "/b/_design/refused", content)
    assert (answer.status, answer.body["error"]) == (400, code)
    assert answer.body["reason"]
    assert ask("GET", "/b/_design/refused").status == 404


def broken(**members: Any) -> dict[str, Any]:
    return {"_rev": "1-a", **members}


BROKEN = {
    "erlang": broken(language="erlang", views={"by": {"map": "fun(Doc) -> ok end."}}),
    "syntax": broken(views={"by": {"map": "function ("}}),
    "reduce": broken(views={"by": {"map": MAP, "reduce": "_none"}}),
    "number": broken(views={"by": {"map": MAP, "options": {"x": 10**40}}}),
    "form": broken(views=7, filters=[], updates={"u": 1}, language={}, options="x", big=10**400),
    "name" + "x" * 150: broken(views={"by": {"map": MAP}}),
    "many": broken(views={"by": {"map": MAP}} | {str(n): {"map": "m"} for n in range(200)}),
    "large": broken(views={"by": {"map": MAP + " " * 9_000_000}}),
    "python": broken(language="python", views={"by": {"map": "def f(doc): pass"}}),
}


def test_a_peers_design_documents_are_stored_and_break_their_own_views_alone(ask: Ask) -> None:
    assert ask("PUT", "/peers?q=2").status == 201
    assert ask("PUT", "/peers/_design/good", DESIGN).status == 201
    for name, content in BROKEN.items():
        docs = [{"_id": f"_design/{name}", **content}, {"_id": name, "_rev": "1-a", "n": 1}]
        sent = ask("POST", "/peers/_bulk_docs", {"docs": docs, "new_edits": False})
        assert (sent.status, sent.body) == (201, []), name
    rows = ask("GET", "/peers/_design/good/_view/by?reduce=false").body["rows"]
    assert [row["id"] for row in rows] == sorted(BROKEN)
    for name, content in BROKEN.items():
        path = f"/peers/_design/{name}"
        found = ask("GET", path)
        assert found.status == 200
        assert content.items() <= found.body.items()
        view = ask("GET", path + "/_view/by")
        assert (view.status, view.body["error"]) == (500, "compilation_error"), (name, view)
        assert len(view.body["reason"]) > 20
    assert len(ask("GET", "/peers/_design_docs").body["rows"]) == len(BROKEN) + 1
    for path in ("/peers", "/_active_tasks", "/peers/_index", "/peers/_design/good/_info"):
        assert ask("GET", path).status == 200
    assert ask("POST", "/peers/_view_cleanup", {}).status == 202
    assert ask("PUT", "/peers/more", {"n": 2}).status == 201
    assert ask("GET", "/peers/_design/good/_view/by").body["rows"][0]["value"] == len(BROKEN) + 1


@pytest.mark.parametrize(
    "content",
    [
        {"validate_doc_update": "function ("}, {"validate_doc_update": {"a": 1}},
        {"validate_doc_update": "fun(Doc) -> ok end.", "language": "erlang"},
    ],
)  # fmt: skip
def test_a_peers_validator_that_cannot_be_run_refuses_until_it_is_mended(
    ask: Ask, content: Any
) -> None:
    assert ask("PUT", "/judged?q=2").status == 201
    try:
        sent = ask("PUT", "/judged/_design/bad?new_edits=false", content | {"_rev": "1-a"})
        assert sent.status == 201
        for refused in (
            ask("PUT", "/judged/x", {}),
            ask("PUT", "/judged/x?new_edits=false", {"_rev": "1-a"}),
        ):
            assert refused.status >= 400
            assert "_design/bad" in refused.body["reason"]
        docs = {"docs": [{"_id": "x", "_rev": "1-a"}], "new_edits": False}
        [row] = ask("POST", "/judged/_bulk_docs", docs).body
        assert row["id"] == "x"
        assert "_design/bad" in row["reason"]
        assert ask("GET", "/judged/x").status == 404
        assert ask("PUT", "/judged/_design/bad", content | {"_rev": "1-a"}).status == 400
        mended = ask("PUT", "/judged/_design/bad", {"_rev": "1-a"})
        assert mended.status == 201
        assert ask("PUT", "/judged/x", {}).status == 201
        assert ask("PUT", "/judged/_design/bad2?new_edits=false", content | {"_rev": "1-a"})
        assert ask("PUT", "/judged/y", {}).status >= 400
        assert ask("DELETE", "/judged/_design/bad2?rev=1-a").status == 200
        assert ask("PUT", "/judged/y", {}).status == 201
    finally:
        assert ask("DELETE", "/judged").status == 200


def test_databases(ask: Ask) -> None:
    assert ask("PUT", "/made?q=2").status == 201
    exists = ask("PUT", "/made")
    assert (exists.status, exists.body["error"]) == (412, "file_exists")
    info = ask("GET", "/made")
    assert (info.body["db_name"], info.body["cluster"]["q"]) == ("made", 2)
    assert ask("PUT", "/made/_design/d", DESIGN).status == 201
    assert ask("DELETE", "/made").body == {"ok": True}
    for path in ("/made", "/made/_design/d", "/made/_design_docs", "/made/_design/d/_view/by"):
        answer = ask("GET", path)
        assert answer.status == 404, path
        assert answer.body == {"error": "not_found", "reason": "Database does not exist."}
    assert ask("PUT", "/_made").body["error"] == "illegal_database_name"


def test_documents_survive_a_kill(node: NodeProcess, ask: Ask) -> None:
    rev = ask("PUT", "/b/_design/kept", DESIGN).body["rev"]
    node.kill()
    node.start()
    connection = HTTPConnection(urlsplit(node.http).netloc, timeout=60)
    connection.request("GET", "/b/_design/kept")
    assert json.loads(connection.getresponse().read())["_rev"] == rev
    connection.close()
