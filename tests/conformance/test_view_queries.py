"""Views of a whole node over plain HTTP: parameters, statuses, headers, long answers, rights."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

import pytest

import millstream
from support.node.node_process import NodeProcess

DOCUMENTS = 100_000
PAGE_BYTES = 4096
GROWN_BYTES_MAX = 64 * 1024 * 1024
DESIGN = {
    "views": {
        "by": {"map": "d => { if (d.n !== undefined) emit([d.g, d.n], d.n) }", "reduce": "_sum"},
        "plain": {"map": "d => { if (d.g !== undefined) emit(d.g, {_id: d.to}) }"},
        "odd": {"map": "d => { emit(d.n, 1); if (d.n === 3) throw new Error('three') }"},
    }
}
VIEW = "/b/_design/d/_view/by"
PLAIN = "/b/_design/d/_view/plain"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def rows(self) -> list[Any]:
        assert self.status == 200, self.body
        found: list[Any] = self.body["rows"]
        return found


class Http:
    """One connection to a node's HTTP port."""

    def __init__(self, node: NodeProcess, user: str = "") -> None:
        self.connection = HTTPConnection(urlsplit(node.http).netloc, timeout=90)
        self.headers = {}
        if user:
            credentials = b64encode(f"{user}:secret".encode()).decode()
            self.headers["Authorization"] = f"Basic {credentials}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, method: str, path: str, content: Any = None, **headers: str) -> HTTPResponse:
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if content is None else json.dumps(content).encode()
        if content is not None:
            sent.setdefault("Content-Type", "application/json")
        self.connection.request(method, path, body, sent)
        return self.connection.getresponse()

    def __call__(self, method: str, path: str, content: Any = None, **headers: str) -> Answer:
        response = self.send(method, path, content, **headers)
        data = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, json.loads(data) if data else None)

    def get(self, path: str, **parameters: Any) -> Answer:
        """Ask with parameters as JSON, texts as they are."""
        texts = {
            name: value if isinstance(value, str) and name not in ("key", "startkey", "endkey")
            else json.dumps(value)
            for name, value in parameters.items()
        }  # fmt: skip
        query = "&".join(f"{name}={quote(text)}" for name, text in texts.items())
        return self("GET", f"{path}?{query}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    path: Path = tmp_path_factory.mktemp("views") / "node"
    with NodeProcess(path, "--bucket", "b:8", "--bucket", "many:8") as node:
        with millstream.connect(node.ready["kv"], bucket="b") as client:
            documents = {
                f"k{n}": {"g": "ab"[n % 2], "n": n, "to": f"k{(n + 1) % 10}"} for n in range(10)
            }
            client.apply_many(documents.items()).raise_first()
        with Http(node) as http:
            assert http("PUT", "/b/_design/d", DESIGN).status == 201
        yield node
        assert node.stop() == 0


@pytest.fixture
def http(node: NodeProcess) -> Iterator[Http]:
    with Http(node) as one:
        yield one


def values(answer: Answer) -> list[Any]:
    return [row["value"] for row in answer.rows]


def test_rows_ranges_and_directions(http: Http) -> None:
    every = http.get(VIEW, reduce=False)
    assert (every.body["total_rows"], every.body["offset"]) == (10, 0)
    assert values(every) == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert every.rows[0] == {"id": "k0", "key": ["a", 0], "value": 0}
    asked = {"reduce": False, "startkey": ["a", 4], "endkey": ["b", 3]}
    part = http.get(VIEW, **asked)
    assert (values(part), part.body["offset"]) == ([4, 6, 8, 1, 3], 2)
    assert values(http.get(VIEW, **asked, inclusive_end=False)) == [4, 6, 8, 1]
    assert values(http.get(VIEW, **asked, skip=1, limit=2)) == [6, 8]
    down = http.get(VIEW, reduce=False, descending=True, startkey=["b", 3], endkey=["a", 4])
    assert values(down) == [3, 1, 8, 6, 4]
    assert [row["id"] for row in http.get(PLAIN, key="a").rows] == ["k0", "k2", "k4", "k6", "k8"]
    ids = http.get(PLAIN, startkey="a", startkey_docid="k4", endkey="a", endkey_docid="k6")
    assert [row["id"] for row in ids.rows] == ["k4", "k6"]
    keys = http("POST", PLAIN, {"keys": ["b", "none", "b"]})
    assert [row["key"] for row in keys.rows] == ["b"] * 10


def test_groups(http: Http) -> None:
    assert http.get(VIEW).body == {"rows": [{"key": None, "value": 45}]}
    groups = [{"key": ["a"], "value": 20}, {"key": ["b"], "value": 25}]
    assert http.get(VIEW, group_level=1).rows == groups
    assert len(http.get(VIEW, group=True).rows) == 10
    assert http.get(VIEW, startkey=["x"]).body == {"rows": []}
    asked = {"keys": [["a", 2], ["b", 1]], "group": True}
    assert values(http("POST", VIEW, asked)) == [2, 1]


@pytest.mark.parametrize(
    ("path", "query", "status", "code"),
    [
        (VIEW, "startkey=%5B2%5D&endkey=%5B1%5D", 400, "query_parse_error"),
        (VIEW, "limit=-1", 400, "query_parse_error"),
        (VIEW, "skip=x", 400, "query_parse_error"),
        (VIEW, "group_level=x", 400, "query_parse_error"),
        (VIEW, "include_docs=true", 400, "query_parse_error"),
        (VIEW, "keys=%5B1%5D", 400, "query_parse_error"),
        (VIEW, "group=maybe", 400, "query_parse_error"),
        (VIEW, "group=false&group_level=1", 400, "query_parse_error"),
        (VIEW, "update=never", 400, "query_parse_error"),
        (VIEW, "startkey=a", 400, "bad_request"),
        (PLAIN, "reduce=true", 400, "query_parse_error"),
        (PLAIN, "group=true", 400, "query_parse_error"),
        ("/b/_design/d/_view/none", "", 404, "not_found"),
        ("/b/_design/none/_view/by", "", 404, "not_found"),
        ("/none/_design/d/_view/by", "", 404, "not_found"),
        (VIEW, "at=%7B%220%22%3A%5B%2200000000beef%22%2C99%5D%7D&timeout=60000", 412, None),
    ],
)
def test_what_is_refused(http: Http, path: str, query: str, status: int, code: str) -> None:
    answer = http("GET", f"{path}?{query}")
    assert answer.status == status, answer.body
    assert answer.body["error"] == (code or "seq_unreachable")
    assert answer.body["reason"]


def test_other_pages(http: Http) -> None:
    assert http("POST", "/b/_temp_view", {}).status == 410
    info = http("GET", "/b/_design/d/_info").body
    assert info["name"] == "d"
    assert info["view_index"]["signature"]
    assert http("POST", "/b/_compact/d").status == 202
    assert http("POST", "/b/_view_cleanup").status == 202
    assert isinstance(http("GET", "/_active_tasks").body, list)
    results = http("POST", f"{VIEW}/queries", {"queries": [{}, {"reduce": False, "limit": 1}]})
    assert [len(one["rows"]) for one in results.body["results"]] == [1, 1]


def test_an_etag_stays_valid_until_a_change(node: NodeProcess, http: Http) -> None:
    first = http.get(VIEW, key=["etag", 1])
    etag = first.headers["etag"]
    same = http("GET", VIEW + "?key=%5B%22etag%22,1%5D", If_None_Match=etag)
    assert (same.status, same.body, same.headers["etag"]) == (304, None, etag)
    assert http.get(VIEW, key=["etag", 2]).headers["etag"] != etag
    with millstream.connect(node.ready["kv"], bucket="b") as client:
        client.upsert("other", {"x": 1})
        changed = http("GET", VIEW + "?key=%5B%22etag%22,1%5D", If_None_Match=etag)
        client.remove("other")
    assert changed.status == 200


def test_own_writes_are_read(node: NodeProcess, http: Http) -> None:
    with millstream.connect(node.ready["kv"], bucket="b") as client:
        for n in range(20):
            stored = client.upsert("own", {"g": "own", "n": n})
            if n % 2:
                found = http.get(VIEW, startkey=["own"], endkey=["own", {}])
            else:
                token = {str(stored.partition_id): [f"{stored.uuid:012x}", stored.seqno]}
                found = http(
                    "POST", VIEW,
                    {"at": token, "update": "false", "startkey": ["own"], "endkey": ["own", {}]},
                )  # fmt: skip
            assert values(found) == [n]
        client.remove("own")
    assert http.get(VIEW, startkey=["own"], endkey=["own", {}]).rows == []


def test_include_docs(http: Http) -> None:
    rows = http.get(PLAIN, include_docs=True, key="a", limit=2).rows
    assert [row["doc"]["_id"] for row in rows] == ["k1", "k3"], "those that the values name"
    assert rows[0]["doc"]["_rev"].startswith("1-")
    rows = http.get(VIEW, include_docs=True, reduce=False, limit=2).rows
    assert [row["doc"]["_id"] for row in rows] == ["k0", "k2"]


def test_a_throwing_map_loses_its_rows_and_is_reported(http: Http) -> None:
    rows = http.get("/b/_design/d/_view/odd").rows
    assert 3 not in [row["key"] for row in rows]
    assert {row["key"] for row in rows} >= {0, 1, 2, 4, 9}
    errors = http("GET", "/b/_design/d/_info").body["view_index"]["map_errors"]
    assert "three" in json.dumps(errors)


def test_a_deleted_design_document_has_no_views(http: Http) -> None:
    rev = http("PUT", "/b/_design/gone", DESIGN).body["rev"]
    assert http.get("/b/_design/gone/_view/by").rows[0]["value"] == 45
    assert http("DELETE", f"/b/_design/gone?rev={rev}").status == 200
    answer = http.get("/b/_design/gone/_view/by")
    assert (answer.status, answer.body["reason"]) == (404, "deleted")


# -- long answers


def resident_bytes(node: NodeProcess) -> int:
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in node.pids()]
    return sum(pages) * PAGE_BYTES


@pytest.fixture(scope="module")
def many(node: NodeProcess) -> str:
    with millstream.connect(node.ready["kv"], bucket="many") as client:
        documents = ((f"{n:06}", {"n": n, "text": "x" * 200}) for n in range(DOCUMENTS))
        client.apply_many(documents).raise_first()
    design = {"views": {"all": {"map": "d => emit(d.n, d.text)"}}}
    path = "/many/_design/d/_view/all"
    with Http(node) as http:
        assert http("PUT", "/many/_design/d", design).status == 201
        assert len(http.get(path, limit=1, timeout=80_000).rows) == 1
    return path


@pytest.mark.parametrize("query", ["", "?include_docs=true"])
def test_long_answers_take_no_memory(node: NodeProcess, many: str, query: str) -> None:
    before = resident_bytes(node)
    with Http(node) as http:
        response = http.send("GET", many + query)
        assert response.headers["Transfer-Encoding"] == "chunked"
        pieces, most = [response.read(1_000_000)], 0
        while piece := response.read(4_000_000):
            pieces.append(piece)
            most = max(most, resident_bytes(node))
    rows = json.loads(b"".join(pieces))["rows"]
    assert [row["key"] for row in rows] == list(range(DOCUMENTS))
    assert ("doc" in rows[-1]) == bool(query)
    assert most - before < GROWN_BYTES_MAX


def test_disconnected_clients_do_not_affect_others(node: NodeProcess, many: str) -> None:
    host, port = urlsplit(node.http).netloc.split(":")
    for _ in range(80):  # more than there are connections to the index process
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"GET {many} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    with Http(node) as http:
        assert len(http.get(many, limit=5).rows) == 5


# -- rights


def test_rights_to_query(make_own: Callable[..., NodeProcess]) -> None:
    node = make_own("--bucket", "b:4", "--user", "ada:secret")
    with Http(node, "ada") as ada:
        for name, right in (("reader", "read:b"), ("designer", "design:b"), ("other", "read:c")):
            user = {"name": name, "password": "secret", "roles": [right]}
            assert ada("POST", "/_millstream/users", user).status == 201
    statuses = {}
    for name in ("", "ada", "designer", "reader", "other"):
        with Http(node, name) as http:
            statuses[name] = [
                http("PUT", "/b/_design/d?batch=ok", DESIGN).status,
                http("GET", VIEW).status,
                http("POST", "/b/_compact/d").status,
            ]
    assert statuses == {
        "": [401, 401, 401], "ada": [202, 200, 202], "designer": [409, 403, 202],
        "reader": [403, 200, 403], "other": [403, 403, 403],
    }  # fmt: skip


@pytest.fixture
def make_own(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    made: list[NodeProcess] = []

    def make(*options: str) -> NodeProcess:
        made.append(NodeProcess(tmp_path / "own", *options).start())
        return made[-1]

    yield make
    for node in made:
        node.kill()
