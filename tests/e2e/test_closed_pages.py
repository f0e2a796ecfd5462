"""All pages of a node that has users, asked by who may not: refused, and nothing is changed.

The pages are those that the application has: a new one is covered as soon as it is there. One that
anybody may see, or that a reader may ask with another method than GET, has to be named here.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.gateway.aio.server import make_application
from support.http.raw_http import Answer, RawHttp
from support.node.node_process import NodeProcess

ADMIN, READER, STRANGER = "ada", "bob", "eve"
OPEN = {
    ("GET", "/"), ("GET", "/_up"), ("GET", "/_session"), ("POST", "/_session"),
    ("DELETE", "/_session"), ("GET", "/_uuids"), ("POST", "/orders/_temp_view"),
    ("POST", "/pools/_x"), ("GET", "/_console"), ("GET", "/_console/"),
    ("GET", "/_console/0000000000000000/x"), ("GET", "/_utils"), ("GET", "/_utils/_x"),
}  # fmt: skip
"""What nobody has to log in for. Temporary views and other pools are there for nobody; the files
of the console say nothing of the node."""
ENDLESS = re.compile("/pools/default/(bs|nodeServicesStreaming|bucketsStreaming)(/|$)")
"""Pages whose answers to a reader do not end."""
READ_BY_POST = (
    "_all_docs", "_all_docs/queries", "_design_docs", "_local_docs", "_bulk_get", "_revs_diff",
    "_missing_revs", "_changes", "_find", "_explain", "_view/x", "_view/x/queries",
    "_coverage/verify", "_dbs_info", "_show/_x",
)  # fmt: skip
"""Ends of addresses where a POST changes nothing."""
FILLED = {
    "db": "orders", "name": "orders", "bucket": "orders", "design": "kept", "number": "0",
    "domain": "local", "rest": "_x", "sha256": "0" * 64, "what": "_show",
    "digest": "0" * 16,
}  # fmt: skip
"""Of the parts of addresses; all others are `x`."""
OTHERS_USER = "/_users/kept"
COORDINATION = "/_millstream/coordination/"
"""Coordination judges by rights of its own; this node takes no part in it."""
IDS = ("kept", "_design/kept", "_local/kept")


def addresses() -> list[tuple[str, str]]:
    """Return method and address of every page."""
    found = set()
    for route in make_application(object()).router.routes():  # type: ignore[arg-type]
        assert route.resource is not None
        info = route.resource.get_info()
        form = info.get("formatter") or info["path"]
        pattern = info.get("pattern") or re.compile(re.escape(form))
        names = re.findall(r"{(\w+)}", form)
        for one in IDS:
            values = {name: FILLED.get(name, "x") for name in names}
            values |= {name: one for name in ("id", "local", "design") if name in values}
            filled = form.format(**values)
            if pattern.fullmatch(filled):
                if route.method != "HEAD":  # is the same page as GET
                    found.add(("POST" if route.method == "*" else route.method, filled))
                break
        else:
            raise AssertionError(f"{form}: no address was found; add to FILLED")
    return sorted(found)


ADDRESSES = addresses()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("closed-pages") / "node"
    options = ("--bucket", "orders:4", "--bucket", "other:4", "--user", f"{ADMIN}:secret")
    with NodeProcess(directory, *options) as running:
        with RawHttp(running.address("http")) as client:
            for name, roles in ((READER, ["read:orders"]), (STRANGER, ["read:other"])):
                user = {"name": name, "password": "secret", "roles": roles}
                assert ask(client, ADMIN, "POST", "/_millstream/users", user).status == 201
            design = {"views": {"x": {"map": "function (doc) { emit(doc._id, null); }"}}}
            for path, content in (
                ("kept", {"kept": 1}), ("_design/kept", design), ("_local/kept", {"kept": 1}),
            ):  # fmt: skip
                assert ask(client, ADMIN, "PUT", f"/orders/{path}", content).status == 201
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def ask(
    client: RawHttp, user: str | None, method: str, path: str, content: object = None,
    password: str = "secret",
) -> Answer:  # fmt: skip
    headers = {"Destination": path.removeprefix("/orders/") + "-2"} if method == "COPY" else {}
    if user is not None:
        pair = b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    has_body = content is not None or method in ("PUT", "POST")
    body = json.dumps(content or {}).encode() if has_body else None
    return client.ask(method, path, body, headers)


def everything(client: RawHttp) -> list[Any]:
    """Return what there is, as an administrator sees it."""
    pages = (
        "/orders/_all_docs?include_docs=true&conflicts=true",
        "/orders/_design_docs?include_docs=true",
        "/orders/_local_docs?include_docs=true", "/orders/_security", "/orders/_revs_limit",
        "/orders/_changes?style=all_docs", "/orders/_index", "/orders/_coverage", "/_all_dbs",
        "/_millstream/users", "/_scheduler/jobs", "/_scheduler/docs", "/_replicator",
        "/_millstream/buckets/orders/partitions", "/_millstream/buckets/orders/map",
    )  # fmt: skip
    found = [ask(client, ADMIN, "GET", page) for page in pages]
    return [(page, one.status, one.body) for page, one in zip(pages, found, strict=True)]


@pytest.fixture
def client(node: NodeProcess) -> Iterator[RawHttp]:
    """A client; what there is is the same before and after."""
    with RawHttp(node.address("http")) as one:
        before = everything(one)
        yield one
        assert everything(one) == before


def refusal(found: Answer) -> str:
    assert set(found.json) == {"error", "reason"}, found
    return str(found.json["error"])


def test_there_are_pages() -> None:
    assert len(ADDRESSES) > 90
    assert set(ADDRESSES) >= OPEN
    assert {("PUT", "/orders/kept"), ("DELETE", "/orders"), ("POST", "/orders/_purge")} < set(
        ADDRESSES
    )


def test_who_is_nobody_sees_none(client: RawHttp) -> None:
    for method, path in ADDRESSES:
        found = ask(client, None, method, path)
        if (method, path) not in OPEN:
            assert found.status == 401, (method, path, found)
            assert refusal(found) == "unauthorized"
            assert "basic" in found.headers["www-authenticate"].lower()


def test_a_reader_reads(client: RawHttp) -> None:
    for method, path in ADDRESSES:
        if (method, path) in OPEN or ENDLESS.match(path):
            continue
        found = ask(client, READER, method, path)
        assert found.status < 500, (method, path, found)
        reads = method == "GET" or (method == "POST" and path.endswith(READ_BY_POST))
        if not reads or "/_millstream/" in path or path.startswith(("/_replic", "/_scheduler")):
            if found.status < 300:
                assert method == "GET", (method, path, found)
            elif path.startswith(COORDINATION):
                assert found.status in (400, 403, 409), (method, path, found)
            elif path == OTHERS_USER:  # it is not told whether there is one
                assert (found.status, refusal(found)) == (404, "not_found"), (method, path, found)
            else:
                assert (found.status, refusal(found)) == (403, "forbidden"), (method, path, found)


def test_who_may_read_another_database_does_not_see_this_one(client: RawHttp) -> None:
    for method, path in ADDRESSES:
        if path.startswith("/orders") and (method, path) not in OPEN:
            found = ask(client, STRANGER, method, path)
            assert found.status == 403, (method, path, found)
            assert refusal(found) == "forbidden"
    assert ask(client, STRANGER, "GET", "/_all_dbs").json == ["other"]


def test_a_wrong_password_opens_nothing(node: NodeProcess, client: RawHttp) -> None:
    for number, (method, path) in enumerate(ADDRESSES):
        users = (READER, f"nobody-{number}") if number < 5 else (f"nobody-{number}",)
        for user in users:  # one who guesses on is answered ever more slowly
            found = ask(client, user, method, path, password="wrong")
            assert found.status == 401, (method, path, found)
            assert refusal(found) == "unauthorized"
