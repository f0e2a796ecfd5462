"""Bad documents over HTTP: the right status and an error in JSON, never more than that.

After every test the node still serves, what was there is there, its log shows no traceback, and
at the end a restart shows the same. What is sent is made by rule: every member that a page reads,
with every value that it does not expect.
"""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from millstream.documents.json_text import VALUES_MAX
from millstream.documents.revisions import GENERATION_SENT_MAX
from millstream.gateway.aio.documents.bulk_pages import REVISIONS_ASKED_MAX
from millstream.gateway.aio.room import ROOM_BYTES_MAX
from millstream.kv.aio.documents.local_store import LOCAL_ID_BYTES_MAX
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Status
from support.budget import some
from support.http.raw_http import Answer, RawHttp
from support.kv.raw_client import RawClient
from support.node.bystander import Bystander
from support.node.node_process import NodeProcess

GROWTH_BYTES_MAX = ROOM_BYTES_MAX + 256 * 1024 * 1024
"""Memory that a request may cost, whatever it holds: its body, and values made of it."""
SERVED_S = 5.0
"""How long another client may have to wait, on a machine that others use as well."""
KEPT = {f"kept-{n}": b'{"kept":%d}' % n for n in range(20)}
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", "1-x", "\0", [], ["x"], [1], [[]], {}, {"x": 1},
    {"x": {}}, {"x": []},
)  # fmt: skip
DEPTH = 10_000
TEXTS = (
    b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff\xfe", b"\0", b"\xef\xbb\xbf{}", b'{"a":1}x',
    b'{"a":NaN}', b'{"a":1e999}', b'{"a":"\\ud800"}', b'{"a":' + b"9" * 30_000 + b"}",
    b"[" * DEPTH, b'{"a":' * DEPTH, b"[" * DEPTH + b"]" * DEPTH,
    b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
)  # fmt: skip
DEEP = (b"[" * DEPTH + b"]" * DEPTH, b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
        b'{"$not":' * DEPTH + b"{}" + b"}" * DEPTH)  # fmt: skip
QUERY = (
    "keys", "key", "startkey", "endkey", "startkey_docid", "limit", "skip", "include_docs",
    "descending", "conflicts", "inclusive_end", "update", "stale", "group", "reduce",
)  # fmt: skip
FIND = (
    "selector", "fields", "sort", "limit", "skip", "bookmark", "use_index", "conflicts", "update",
    "stable", "r", "execution_stats",
)  # fmt: skip
SPECIAL = ("_id", "_rev", "_deleted", "_revisions", "_attachments", "_unknown")
MEMBERS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("POST", "/db"): SPECIAL,
    ("PUT", "/db/x"): SPECIAL,
    ("PUT", "/db/x?new_edits=false"): SPECIAL,
    ("PUT", "/db/_local/x"): SPECIAL,
    ("PUT", "/db/_design/x"): (*SPECIAL, "views", "validate_doc_update", "filters", "updates",
                               "language", "options", "indexes", "autoupdate"),
    ("POST", "/db/_bulk_docs"): ("docs", "new_edits"),
    ("POST", "/db/_bulk_get"): ("docs", "revs", "latest", "attachments"),
    ("POST", "/db/_revs_diff"): ("x",),
    ("POST", "/db/_missing_revs"): ("x",),
    ("POST", "/db/_purge"): ("x",),
    ("POST", "/db/_ensure_full_commit"): ("x",),
    ("POST", "/db/_all_docs"): QUERY,
    ("POST", "/db/_all_docs/queries"): ("queries",),
    ("POST", "/db/_local_docs"): QUERY,
    ("POST", "/db/_design_docs"): QUERY,
    ("POST", "/db/_changes?timeout=1"): ("doc_ids", "selector"),
    ("POST", "/db/_changes?filter=_doc_ids&timeout=1"): ("doc_ids",),
    ("POST", "/db/_changes?filter=_selector&timeout=1"): ("selector",),
    ("POST", "/db/_find"): FIND,
    ("POST", "/db/_explain"): FIND,
    ("POST", "/db/_index"): ("index", "name", "ddoc", "type", "partial_filter_selector"),
    ("POST", "/db/_index/_bulk_delete"): ("docids",),
    ("POST", "/db/_coverage"): ("records", "removed"),
    ("POST", "/db/_coverage/verify"): ("claims",),
    ("PUT", "/db/_security"): ("admins", "members"),
    ("PUT", "/db/_revs_limit"): ("x",),
    ("POST", "/_dbs_info"): ("keys",),
    ("POST", "/_session"): ("name", "password"),
}  # fmt: skip
"""What each page reads of a body."""
WITH: Mapping[str, Mapping[str, Any]] = {
    "_bulk_docs": {"docs": []}, "_find": {"selector": {}}, "_explain": {"selector": {}},
    "_index": {"index": {"fields": ["a"]}}, "_session": {"name": "a", "password": "b"},
}  # fmt: skip
"""What the page needs to come to the other members."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("bad-documents") / "node"
    with NodeProcess(directory, "--bucket", "db:16", "--bucket", "many:16") as running:
        with RawHttp(running.address("http")) as client:
            for name, body in KEPT.items():
                assert client.ask("PUT", f"/db/{name}", body).status == 201
        yield running
        assert running.stop() == 0
        running.start()
        with RawHttp(running.address("http")) as client:
            for name in KEPT:
                assert_kept(client, name)
        assert running.stop() == 0


def assert_kept(client: RawHttp, name: str) -> None:
    shown = client.ask("GET", f"/db/{name}").json
    assert shown["kept"] == int(name.removeprefix("kept-"))


@pytest.fixture(autouse=True)
def still_well(node: NodeProcess) -> Iterator[None]:
    begin = len(node.log())
    yield
    with RawHttp(node.address("http")) as client:
        for name in KEPT:
            assert_kept(client, name)
        assert client.ask("POST", "/db", b"{}").status == 201
    said = node.log()[begin:]
    assert "Traceback" not in said, said[-4000:]


class Asking:
    """A client that expects an answer that says what is wrong, in JSON."""

    def __init__(self, client: RawHttp) -> None:
        self.client = client

    def __call__(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Answer:
        lines = {name.replace("_", "-"): value for name, value in headers.items()}
        found = self.client.ask(method, path, body, lines)
        shown = (method, path[:200], (body or b"")[:200], lines, found.status, found.body[:300])
        assert 200 <= found.status < 500, shown
        if found.status >= 400:
            assert set(found.json) == {"error", "reason"}, shown
        return found

    def refused(self, status: int, method: str, path: str, body: bytes | None = None) -> str:
        """Return the code of a refusal."""
        found = self(method, path, body)
        assert found.status == status, (method, path[:200], found)
        return str(found.json["error"])


@pytest.fixture
def ask(node: NodeProcess) -> Iterator[Asking]:
    with RawHttp(node.address("http")) as client:
        yield Asking(client)


def bystander(node: NodeProcess, ask: Asking) -> Bystander:
    """Return another client, to be served meanwhile."""
    return Bystander(node, "/db/kept-1", ask("GET", "/db/kept-1").body)


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


# -- what is sent


@pytest.mark.parametrize(("method", "path"), MEMBERS)
def test_every_member_with_every_wrong_value(ask: Asking, method: str, path: str) -> None:
    needed = WITH.get(path.rpartition("/")[2], {})
    for text in TEXTS:
        ask(method, path, text)
    for name in MEMBERS[method, path]:
        for value in some(VALUES):
            ask(method, path, as_json({**needed, name: value}))
        for deep in DEEP:
            others = b"".join(as_json(key) + b":" + as_json(needed[key]) + b"," for key in needed
                              if key != name)  # fmt: skip
            found = ask(method, path, b"{" + others + as_json(name) + b":" + deep + b"}")
            is_told = found.status >= 400 or (
                path.endswith("_bulk_docs") and all("error" in row for row in found.json)
            )
            assert is_told or "_full_commit" in path, (path, name)


def test_no_body_is_deeper_than_is_taken(ask: Asking) -> None:
    for text in TEXTS[-4:]:
        for path in ("/db/x", "/db/_local/x", "/db/_design/x"):
            assert ask.refused(400, "PUT", path, text) == "bad_request"
        for path in ("/db/_bulk_docs", "/db/_bulk_get", "/db/_find", "/db/_changes"):
            ask.refused(400, "POST", path, text)


def entries() -> Iterator[tuple[str, Any]]:
    """Yield pages, and bodies with one wrong value somewhere inside."""
    stub = ("digest", "content_type", "revpos", "length", "stub")
    data = (*stub, "data", "encoding", "follows", "encoded_length")
    record = {
        "origin": "a", "log": "a", "ckpt": "b", "vec": {}, "filter": [], "except": [], "via": [],
        "hops": 1, "stamp": {}, "purge_epoch": 0, "created": 1, "verified": 1,
    }  # fmt: skip
    for v in VALUES:
        q = {"_id": "q", "_rev": "1-a"}
        replicated = [
            v, {"_id": v, "_rev": "1-a"}, {"_id": "q", "_rev": v}, {**q, "_revisions": v},
            {**q, "_revisions": {"start": v, "ids": ["a"]}},
            {**q, "_revisions": {"start": 1, "ids": v}},
            {**q, "_revisions": {"start": 1, "ids": [v]}},
        ]  # fmt: skip
        yield from (("_bulk_docs", {"docs": [d], "new_edits": False}) for d in replicated)
        own = [v, {"_id": v}, {"_id": "q", "_attachments": {"a": v}}]
        own += [{"_id": "q", "_attachments": {"a": {"data": "YQ==", k: v}}} for k in data]
        own += [{"_id": "kept-0", "_attachments": {"a": {"stub": True, k: v}}} for k in stub]
        yield from (("_bulk_docs", {"docs": [d]}) for d in own)
        asked = [v, {"id": v}, {"id": "kept-0", "rev": v}, {"id": "kept-0", "atts_since": v},
                 {"id": "kept-0", "atts_since": [v]}]  # fmt: skip
        yield from (("_bulk_get", {"docs": [d]}) for d in asked)
        yield "_revs_diff", {"kept-0": [v]}
        yield "_purge", {"kept-0": [v]}
        yield from (("_all_docs", {"keys": [v]}), ("_local_docs", {"keys": [v]}))
        yield "_all_docs/queries", {"queries": [v]}
        yield "_all_docs/queries", {"queries": [{"keys": v}]}
        yield "_changes", {"doc_ids": [v]}
        yield "_coverage/verify", {"claims": [v]}
        yield from (("_coverage/verify", {"claims": [{"log": "a", "ckpt": "b", k: v}]})
                    for k in ("log", "ckpt", "vec", "content"))  # fmt: skip
        yield from (("_coverage", {"records": [{**record, k: v}]}) for k in record)


def test_wrong_values_inside(ask: Asking) -> None:
    for page, content in some(entries()):
        ask("POST", f"/db/{page}", as_json(content))


# -- ids and names

IDS = (
    "%00", "a%00b", "a%2Fb", "%2F", "%ED%A0%80", "%FF", "%C0%80", "x" * 250, "x" * 251, "x" * 5000,
    "%F0%9F%98%80", "..", ".", "%2E%2E", "_x", "_design", "_design/", "_design%2F", "_local",
    "_local/", "_local/%00", "_local/%ED%A0%80", "_local/%FF", "_local/a%2Fb", "_design/%FF",
    "_design/%00", f"_local/{'x' * LOCAL_ID_BYTES_MAX}", f"_local/{'x' * 600}",
    f"_local/{'x' * 5000}", f"_design/{'x' * 600}", "%", "%zz", "a;b", "a%0D%0Ab", "+", "%5Fx",
    "%5Flocal/x", "_%64esign/x",
)  # fmt: skip


@pytest.mark.parametrize("before", ["/", "/db/", "/db/kept-0/", "/db/_design/x/_view/"])
def test_ids_that_are_none(ask: Asking, before: str) -> None:
    for name in IDS:
        for method, body in (("GET", None), ("PUT", b"{}"), ("DELETE", None), ("COPY", None)):
            ask(method, before + name, body, Destination=name)


def test_ids_at_their_bounds(ask: Asking) -> None:
    assert ask("PUT", f"/db/{'y' * 250}", b"{}").status == 201
    assert ask.refused(400, "PUT", f"/db/{'x' * 251}", b"{}") == "illegal_docid"
    assert ask("PUT", f"/db/_local/{'y' * LOCAL_ID_BYTES_MAX}", b"{}").status == 201
    too_long = f"/db/_local/{'x' * (LOCAL_ID_BYTES_MAX + 1)}"
    for method in ("GET", "PUT", "DELETE"):
        assert ask.refused(400, method, too_long, b"{}") == "illegal_docid"
    halves = b'{"docs":[{"_id":"\\ud800"}]}'
    assert ask.refused(400, "POST", "/db/_bulk_docs", halves) == "bad_request"


# -- options and headers

OPTIONS = (
    "rev", "revs", "open_revs", "atts_since", "latest", "attachments", "conflicts", "meta",
    "local_seq", "new_edits", "batch", "since", "limit", "skip", "heartbeat", "seq_interval",
    "style", "filter", "view", "doc_ids", "descending", "include_docs", "key", "keys", "startkey",
    "endkey", "startkey_docid", "coverage", "at", "update_seq", "count", "q", "group_level",
    "update", "last-event-id", "origin", "stale", "on_error", "sorted",
)  # fmt: skip
GIVEN = (
    "", "x", "1", "0", "-1", "1.5", "9" * 15, "9" * 40, "true", "null", "[]", "{}", '["x"]', "[1]",
    '["1-x"]', "%00", "%FF", "%ED%A0%80", '"x"', "[[[", "%5B" * DEPTH, "1-", "1--", "-1-x", "0-1",
    "999999999999-abc", "9" * 30 + "-a", "1-" + "a" * 5000, "1-a,b", "1-%0A", "_doc_ids",
    "_selector", "_view", "a/b", "now", "0-x", "5-AAAA", "5-" + "A" * 2000, "5-" + "_" * 300,
    "all", "ok",
)  # fmt: skip
READ = (
    "/db", "/db/kept-0", "/db/kept-0/x", "/db/_changes?timeout=1&limit=2",
    "/db/_all_docs?limit=2", "/db/_local/x", "/db/_local_docs", "/db/_design_docs",
    "/db/_design/x/_view/x", "/db/_coverage", "/db/_index", "/_all_dbs", "/_uuids",
    "/_scheduler/jobs", "/_scheduler/docs",
)  # fmt: skip


@pytest.mark.parametrize("path", READ)
def test_every_option_with_every_wrong_value(ask: Asking, path: str) -> None:
    for name, value in some(itertools.product(OPTIONS, GIVEN)):
        ask("GET", f"{path}{'&' if '?' in path else '?'}{name}={value}")


def test_tokens_that_are_none(ask: Asking) -> None:
    good = ask("GET", "/db/_changes?limit=3").json["last_seq"]
    number, _, text = good.partition("-")
    cut = [f"{number}-{text[:size]}" for size in range(len(text))]
    turned = [f"{number}-{text[:at]}{'A' if text[at] != 'A' else 'B'}{text[at + 1:]}"
              for at in range(len(text))]  # fmt: skip
    for token in (*some(cut), *some(turned), good + "A", good * 20, "-" + good, "9" * 400):
        ask("GET", f"/db/_changes?timeout=1&limit=1&since={token}")
    assert ask.refused(400, "GET", "/db/_changes?since=nonsense")


HEADERS = (
    "If_Match", "If_None_Match", "Destination", "Range", "Accept", "Content_Type",
    "Content_Encoding", "Last_Event_ID", "Accept_Encoding", "Content_MD5", "Expect", "Upgrade",
)  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_nonsense(ask: Asking, header: str) -> None:
    for value in some((*GIVEN, "AuthSession=x", "bytes=5-1", "bytes=-", "gzip;q=x", 'W/"1-x"')):
        for method, path, body in (
            ("GET", "/db/kept-0", None), ("PUT", "/db/y", b"{}"), ("PUT", "/db/y/a", b"{}"),
            ("COPY", "/db/kept-0", None), ("DELETE", "/db/y", None),
            ("GET", "/nothing/at/all", None),
            ("POST", "/db/_bulk_get", b'{"docs":[{"id":"kept-0"}]}'),
        ):  # fmt: skip
            ask(method, path, body, **{header: value})


def test_an_expectation_that_nobody_meets_is_refused_in_json(ask: Asking) -> None:
    for path in ("/db/kept-0", "/nothing/at/all"):
        found = ask("GET", path, Expect="more")
        assert (found.status, found.json["error"]) == (417, "expectation_failed")


# -- revisions


@pytest.mark.parametrize(
    "rev", ["1-", "-1-x", "1", "x", "0-x", "1-a,b", "9" * 30 + "-x", "1-\0", f"1-{'x' * 5000}", 1]
)
def test_revisions_that_are_none(ask: Asking, rev: Any) -> None:
    for body in ({"_id": "r", "_rev": rev}, {"_id": "r", "_rev": rev, "_revisions": {"start": 1}}):
        assert ask.refused(400, "PUT", "/db/r", as_json(body))
        assert ask.refused(400, "PUT", "/db/r?new_edits=false", as_json(body))
    found = ask("POST", "/db/_revs_diff", as_json({"r": [rev]}))
    if found.status == 200:  # it may be one of a peer that no document has here
        assert found.json == {"r": {"missing": [rev]}}
    else:
        assert (found.status, found.json["error"]) == (400, "bad_request")
    assert ask.refused(400, "POST", "/db/_purge", as_json({"kept-0": [rev]})) == "bad_request"


def test_generations_as_high_as_they_go(node: NodeProcess, ask: Asking) -> None:
    """A document that a peer brings as high as may be can still be changed, over kv as well."""
    top = GENERATION_SENT_MAX
    for above in (top + 1, 2**53 - 1, 2**53):
        rev = as_json({"_rev": f"{above}-a"})
        assert ask.refused(400, "PUT", "/db/high?new_edits=false", rev) == "bad_request"
    assert ask("PUT", "/db/high?new_edits=false", as_json({"_rev": f"{top}-a"})).status == 201
    with RawClient(node.kv, "db") as client:
        vbucket = partition_of(b"high", 16)
        done = client.ask(
            Opcode.SET, vbucket=vbucket, extras=bytes(8), key=b"high", value=b'{"kv":1}'
        )
        assert done.status == Status.SUCCESS
    shown = ask("GET", "/db/high?revs=true").json
    assert shown["_rev"].startswith(f"{top + 1}-")
    assert ask("DELETE", f"/db/high?rev={shown['_rev']}").status == 200


def test_ten_thousand_revisions_in_one_path(ask: Asking) -> None:
    assert ask("PUT", "/db/_revs_limit", b"1000").status == 200
    ids = [f"{n:032x}" for n in range(10_000)]
    whole = {"_rev": f"10000-{ids[0]}", "_revisions": {"start": 10_000, "ids": ids}}
    assert ask("PUT", "/db/path?new_edits=false", as_json(whole)).status == 201
    assert len(ask("GET", "/db/path?revs=true").json["_revisions"]["ids"]) == 1000
    for start in (9_999, 0, -1, 2**53):
        wrong = {"_rev": f"{start}-{ids[0]}", "_revisions": {"start": start, "ids": ids}}
        assert ask.refused(400, "PUT", "/db/wrong?new_edits=false", as_json(wrong))


# -- many at once


@pytest.mark.slow
def test_as_many_documents_as_may_be(node: NodeProcess, ask: Asking) -> None:
    with bystander(node, ask) as other:
        docs = b'{"docs":[' + b",".join([b"{}"] * REVISIONS_ASKED_MAX) + b"]}"
        assert len(ask("POST", "/many/_bulk_docs", docs).json) == REVISIONS_ASKED_MAX
        more = docs.replace(b"[{}", b"[{},{}", 1)
        assert ask.refused(413, "POST", "/many/_bulk_docs", more) == "too_large"
    assert other.growth_bytes < GROWTH_BYTES_MAX
    assert other.slowest_s < SERVED_S


def _repeated(before: bytes, one: bytes, count: int, after: bytes) -> bytes:
    return before + b",".join([one] * count) + after


@pytest.mark.parametrize(
    ("page", "body", "status"),
    [
        ("_bulk_docs", lambda: _repeated(b'{"docs":[', b"{}", 9_000_000, b"]}"), 413),
        ("_bulk_docs", lambda: _repeated(b'{"docs":[', b"1", VALUES_MAX - 10, b"]}"), 413),
        ("_bulk_get", lambda: _repeated(b'{"docs":[', b"[]", 9_000_000, b"]}"), 413),
        ("_coverage", lambda: _repeated(b'{"records":[', b"[]", 9_000_000, b"]}"), 413),
        ("_revs_diff", lambda: _repeated(b'{"x":[', b'"1-a"', 10_001, b"]}"), 413),
        ("_all_docs", lambda: _repeated(b'{"keys":[', b'"a"', 1_000_000, b"]}"), 413),
        ("_all_docs", lambda: _repeated(b'{"keys":[', b'"a"', 100_000, b"]}"), 200),
        ("_changes", lambda: _repeated(b'{"doc_ids":[', b'"a"', 1_000_000, b"]}"), 200),
        ("_bulk_get", lambda: _repeated(b'{"docs":[', b'{"id":"a"}', 40_000, b"]}"), 200),
        ("_bulk_docs", lambda: b'{"docs":[' + b"[" * (20 * 1024 * 1024), 413),
        ("", lambda: b"{" + b",".join(b'"%x":1' % n for n in range(1_000_000)) + b"}", 201),
        ("", lambda: _repeated(b'{"a":[', b"9" * 19_999, 400, b"]}"), 201),
        ("", lambda: b'{"a":"' + b'\\"' * (30 * 1024 * 1024) + b'"}', 413),
    ],
    ids=["empties", "numbers", "lists", "records", "revisions", "million keys", "keys", "ids",
         "gets", "brackets", "members", "integers", "string"],
)  # fmt: skip
def test_bodies_that_want_memory_or_time(
    node: NodeProcess, ask: Asking, page: str, body: Callable[[], bytes], status: int
) -> None:
    text = body()
    with bystander(node, ask) as other:
        assert ask("POST", f"/db/{page}", text).status == status
    assert other.growth_bytes < GROWTH_BYTES_MAX
    assert other.slowest_s < SERVED_S


def test_selectors_that_are_slow(node: NodeProcess, ask: Asking) -> None:
    assert ask("PUT", "/db/long", as_json({"text": "a" * 50_000})).status in (201, 409)
    with bystander(node, ask) as other:
        for pattern in (
            "(a+)+$b",
            "(a|a)*b",
            "(a*)*b",
            "(.*)(.*)(.*)(.*)b",
            "a{1,50}{1,50}",
            "(" * 5000,
        ):
            selector = {"_id": "long", "text": {"$regex": pattern}}
            found = ask("POST", "/db/_find", as_json({"selector": selector}))
            assert found.status == 400 or found.json["docs"] == [], pattern
        wide = {"$or": [{"a": {"$in": list(range(500))}} for _ in range(200)]}
        ask("POST", "/db/_find", as_json({"selector": wide, "limit": 1}))
    assert other.slowest_s < SERVED_S


# -- attachments


def test_attachments_that_are_not_what_they_say(ask: Asking) -> None:
    for entry in (
        {"data": "!"}, {"data": "YQ="}, {"data": 1}, {}, {"stub": False}, {"follows": True},
        {"data": "YQ==", "encoding": "gzip"},
    ):  # fmt: skip
        assert ask.refused(400, "PUT", "/db/att", as_json({"_attachments": {"a": entry}}))
    stub = as_json({"_attachments": {"a": {"stub": True}}})
    assert ask.refused(412, "PUT", "/db/att", stub) == "missing_stub"
    for name in ("", "_x", "a\0", "x" * 1025):
        body = as_json({"_attachments": {name: {"data": "YQ=="}}})
        assert ask.refused(400, "PUT", "/db/att", body) == "bad_request"
    kind = as_json({"_attachments": {"a": {"data": "YQ==", "content_type": "x" * 1_000_000}}})
    assert ask.refused(400, "PUT", "/db/att", kind) == "bad_request"
    many = {f"a{n}": {"data": ""} for n in range(1001)}
    assert ask.refused(400, "PUT", "/db/att", as_json({"_attachments": many})) == "bad_request"
    assert ask.refused(404, "GET", "/db/att") == "not_found"
    good = as_json({"_attachments": {"a": {"data": b64encode(b"x" * 100).decode()}}})
    assert ask("PUT", "/db/att", good).status in (201, 409)


def test_old_contents_are_gone_with_their_database_and_with_a_purge(ask: Asking) -> None:
    """Also where a document of the same id has the same revision again, and no content of it."""

    def bring(doc_id: str, *ids: str, **members: int) -> None:
        path = {"_rev": f"{len(ids)}-{ids[0]}", "_revisions": {"start": len(ids), "ids": ids}}
        sent = as_json(members | path)
        assert ask("PUT", f"/old/{doc_id}?new_edits=false", sent).status == 201

    assert ask("PUT", "/old").status == 201
    for doc_id in ("purged", "kept"):
        bring(doc_id, "a", n=1)
        bring(doc_id, "b", "a", n=2)
        assert ask("GET", f"/old/{doc_id}?rev=1-a").json["n"] == 1
    assert ask("POST", "/old/_purge", as_json({"purged": ["2-b"]})).status == 201
    bring("purged", "c", "a")
    assert ask("GET", "/old/purged?rev=1-a").status == 404
    assert ask("DELETE", "/old").status == 200
    assert ask("PUT", "/old").status == 201
    bring("kept", "b", "a")
    assert ask("GET", "/old/kept?rev=1-a").status == 404
    assert ask("DELETE", "/old").status == 200
