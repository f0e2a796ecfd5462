"""The console over HTTP, as a browser and as a page of another site meet it."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice

import pytest

from support.http.raw_http import Answer, RawHttp, request
from support.node.node_process import NodeProcess
from support.node.waiting import until

ADMIN = {"Authorization": "Basic " + b64encode(b"ada:secret").decode()}
HOSTILE = '</script><img src=x onerror="alert(1)">\u202e'
NODE_PAGES = ("health", "samples", "logs", "events", "node", "buckets", "cluster")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("console") / "node"
    with NodeProcess(directory, "--bucket", "orders:4", "--user", "ada:secret") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


@pytest.fixture
def client(node: NodeProcess) -> Iterator[RawHttp]:
    with RawHttp(node.address("http")) as one:
        yield one


def log_in(client: RawHttp, host: str = "localhost") -> tuple[dict[str, str], str]:
    """Return the headers of a browser that is logged in, and the token of its page."""
    found = client.ask("POST", "/_session", b'{"name":"ada","password":"secret"}', {"Host": host})
    assert found.status == 200
    cookie = found.headers["set-cookie"]
    flags = {flag.strip().lower() for flag in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    shown = {"Cookie": cookie.partition(";")[0], "Host": host}
    return shown, client.ask("GET", "/_session", headers=shown).json["csrf"]


def test_the_address_is_told(node: NodeProcess) -> None:
    host, port = node.address("http")
    assert f"http://{host}:{port}/_console/" in node.log()


def test_a_browser_loads_the_page_and_its_files(client: RawHttp) -> None:
    browser = {"Accept-Encoding": "gzip, deflate"}
    page = client.ask("GET", "/_console/", headers=browser)
    assert page.status == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    text = gzip.decompress(page.body).decode()
    named = re.findall(r'(?:href|src)="([^"]+)"', text)
    packed = len(page.body)
    for address in named:
        assert address.startswith("/_console/"), "nothing comes from elsewhere"
        found = client.ask("GET", address, headers=browser)
        assert found.status == 200, address
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["x-content-type-options"] == "nosniff"
        packed += len(found.body)
    assert packed < 200_000, "the first page is small"
    known = client.ask("GET", "/_console/", headers={"If-None-Match": page.headers["etag"]})
    assert known.status == 304


def test_who_is_not_logged_in_gets_the_files_alone(client: RawHttp) -> None:
    for name in NODE_PAGES:
        found = client.ask("GET", f"/_millstream/{name}")
        assert (found.status, found.json["error"]) == (401, "unauthorized"), name
    session = client.ask("GET", "/_session").json
    assert session["userCtx"] == {"name": None, "roles": []}
    assert "csrf" not in session


def refused(found: Answer, code: str) -> None:
    assert (found.status, found.json["error"]) == (403, code), found


def test_a_page_of_another_site_changes_nothing(client: RawHttp) -> None:
    """A browser would not even send the cookie; here it does."""
    shown, token = log_in(client)
    make = b'{"name":"made"}'
    path = "/_millstream/buckets"
    refused(client.ask("POST", path, make, shown), "csrf_token_missing")
    wrong = shown | {"X-CSRF-Token": token[::-1]}
    refused(client.ask("POST", path, make, wrong), "csrf_token_missing")
    right = shown | {"X-CSRF-Token": token}
    foreign = right | {"Origin": "http://evil.example"}
    refused(client.ask("POST", path, make, foreign), "foreign_origin")
    rebound = right | {"Origin": "http://evil.example", "Host": "localhost"}
    refused(client.ask("DELETE", "/_millstream/buckets/orders", headers=rebound), "foreign_origin")
    form = right | {"Content-Type": "text/plain"}
    assert client.ask("POST", path, make, form).status == 415
    for method in ("GET", "POST"):
        answer = client.ask(method, path, make if method == "POST" else None, foreign)
        assert "access-control-allow-origin" not in answer.headers
    own = right | {"Origin": "http://localhost"}
    assert client.ask("POST", path, make, own).status == 201
    assert client.ask("DELETE", f"{path}/made", headers=own).status == 200
    after = client.ask("DELETE", "/_session", headers=shown)
    assert after.status == 200
    assert client.ask("GET", path, headers=shown).status == 401


def test_hostile_names_are_text_in_json(client: RawHttp) -> None:
    document = json.dumps({"_id": HOSTILE, "text": HOSTILE}).encode()
    assert client.ask("POST", "/orders", document, ADMIN).status == 201
    for path in (
        "/orders/_all_docs?include_docs=true",
        "/_millstream/logs",
        "/_millstream/health",
    ):
        found = client.ask("GET", path, headers=ADMIN)
        assert found.status == 200
        assert found.headers["content-type"].partition(";")[0] == "application/json"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["content-security-policy"] == "sandbox"
        assert found.json is not None
    name = "%3Cimg%20src=x%3E"
    found = client.ask("GET", f"/_millstream/buckets/{name}/readers", headers=ADMIN)
    assert found.headers["content-type"].partition(";")[0] == "application/json"


def test_samples_come_by_themselves(client: RawHttp) -> None:
    until(lambda: client.ask("GET", "/_millstream/samples", headers=ADMIN).json["buckets"])
    found = client.ask("GET", "/_millstream/samples?span=300", headers=ADMIN).json
    assert found["interval_s"] == 1
    assert found["node"]["memory_bytes"][-1] > 0
    assert found["buckets"]["orders"]["memory_quota_bytes"][-1] > 0


def test_events_come_by_themselves(client: RawHttp) -> None:
    client.send(request("GET", "/_millstream/events?topics=samples", headers=ADMIN))
    status, headers = client.head()
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    told = b"".join(islice(client.chunks(), 3))
    assert told.count(b"event: sample\n") == 2


def test_logs_have_the_lines_of_the_node_and_no_secret(client: RawHttp) -> None:
    found = client.ask("GET", "/_millstream/logs", headers=ADMIN)
    assert "engine" in found.json["processes"]
    assert {line["process"] for line in found.json["lines"]} <= set(found.json["processes"])
    assert b"secret" not in found.body
    assert "ada:" not in found.body.decode()
