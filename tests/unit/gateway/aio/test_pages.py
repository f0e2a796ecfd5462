from base64 import b64encode

import pytest
from aiohttp.test_utils import TestClient, TestServer

from millstream import __version__
from millstream.gateway.aio.server import make_application
from millstream.gateway.core.cookies import COOKIE_NAME


@pytest.fixture
async def client(open_host):
    async with TestClient(TestServer(make_application(open_host))) as client:
        yield client


@pytest.fixture
async def guarded(guarded_host):
    async with TestClient(TestServer(make_application(guarded_host))) as client:
        yield client


def basic(name):
    return {"Authorization": "Basic " + b64encode(f"{name}:secret".encode()).decode()}


ADA, BOB = basic("ada"), basic("bob")


async def body(response, status=200):
    assert response.status == status, await response.text()
    assert response.content_type == "application/json"
    return await response.json()


async def test_welcome_and_health(client):
    welcome = await body(await client.get("/"))
    assert welcome["couchdb"] == "Welcome"
    assert welcome["version"] == __version__
    assert welcome["uuid"] == "f" * 32
    assert welcome["vendor"]["name"] == "Millstream"
    assert await body(await client.get("/_up")) == {"status": "ok"}
    node = await body(await client.get("/_millstream/node"))
    assert node["listeners"] == {"kv": "127.0.0.1:1", "http": "127.0.0.1:2", "coord": None}


async def test_metrics_are_text_for_prometheus(client):
    response = await client.get("/_metrics")
    text = await response.text()
    assert response.content_type == "text/plain"
    assert "millstream_loop_lag_ms 0.5" in text
    assert "millstream_accepted_total 7.0" in text
    assert 'millstream_high_seqno{bucket="orders"} 9.0' in text


async def test_buckets_come_and_go(client):
    listed = await body(await client.get("/_millstream/buckets"))
    assert [bucket["name"] for bucket in listed["buckets"]] == ["orders"]
    made = await body(
        await client.post("/_millstream/buckets", json={"name": "a/b", "partitions": 8}), 201
    )
    assert made["partitions"] == 8
    assert (await body(await client.get("/_millstream/buckets/a%2Fb")))["name"] == "a/b"
    await body(await client.put("/_millstream/buckets/q%25"), 201)
    assert (await body(await client.get("/_millstream/buckets/q%25")))["name"] == "q%"
    await body(await client.delete("/_millstream/buckets/a%2Fb"))
    error = await body(await client.get("/_millstream/buckets/a%2Fb"), 404)
    assert error["error"] == "bucket_not_found"
    error = await body(await client.put("/_millstream/buckets/orders"), 412)
    assert error["error"] == "bucket_exists"


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"name": 1},
        {"name": "_a"},
        {"name": "a", "partitions": 3},
        {"name": "a", "partitions": "8"},
    ],
)
async def test_bad_buckets_are_refused(client, content):
    await body(await client.post("/_millstream/buckets", json=content), 400)


async def test_errors_are_json(client):
    assert (await body(await client.get("/nothing/here"), 404))["error"] == "not_found"
    response = await client.post("/_up")
    assert (await body(response, 405))["error"] == "method_not_allowed"
    assert "GET" in response.headers["Allow"]
    for data, kind in ((b"{", "application/json"), (b"[]", "application/json")):
        response = await client.post(
            "/_millstream/buckets", data=data, headers={"Content-Type": kind}
        )
        assert (await body(response, 400))["error"] == "bad_json"
    response = await client.post("/_millstream/buckets", data={"name": "x"})
    assert (await body(response, 415))["error"] == "bad_content_type"


async def test_an_unforeseen_error_tells_nothing(client, open_host, monkeypatch):
    def fail():
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(open_host, "metrics", fail)
    error = await body(await client.get("/_metrics"), 500)
    assert "inside" not in error["reason"]


async def test_pages_of_other_sites_are_refused(client):
    response = await client.get("/", headers={"Host": "evil.example"})
    assert (await body(response, 403))["error"] == "foreign_host"
    response = await client.put(
        "/_millstream/buckets/x", headers={"Origin": "http://evil.example"}
    )
    assert (await body(response, 403))["error"] == "foreign_origin"


async def test_without_users_everybody_is_administrator(client):
    session = await body(await client.get("/_session"))
    assert session["userCtx"] == {"name": None, "roles": ["_admin"]}


async def test_who_is_nobody_may_look_at_the_door_only(guarded):
    await body(await guarded.get("/"))
    await body(await guarded.get("/_up"))
    for path in ("/_metrics", "/_millstream/node", "/_millstream/buckets", "/_millstream/users"):
        response = await guarded.get(path)
        assert (await body(response, 401))["error"] == "unauthorized"
        assert response.headers["WWW-Authenticate"].startswith("Basic")


async def test_rights_decide(guarded):
    listed = await body(await guarded.get("/_millstream/buckets", headers=BOB))
    assert len(listed["buckets"]) == 1
    await body(await guarded.get("/_millstream/node", headers=BOB))
    for method, path in (
        ("GET", "/_metrics"),
        ("GET", "/_millstream/users"),
        ("PUT", "/_millstream/buckets/x"),
        ("DELETE", "/_millstream/buckets/orders"),
    ):
        response = await guarded.request(method, path, headers=BOB)
        assert (await body(response, 403))["error"] == "forbidden"


@pytest.mark.parametrize(
    "header", ["Basic YWRhOndyb25n", "Basic ???", "Basic YWRh", "Bearer x", "Basic /w=="]
)
async def test_wrong_credentials_are_refused_before_the_page(guarded, header):
    response = await guarded.get("/", headers={"Authorization": header})
    assert (await body(response, 401))["error"] == "unauthorized"


async def test_logging_in_with_a_cookie_and_out_again(guarded):
    response = await guarded.post("/_session", json={"name": "ada", "password": "wrong"})
    await body(response, 401)
    await body(await guarded.post("/_session", json={"name": "ada"}), 400)
    response = await guarded.post("/_session", data={"name": "ada", "password": "secret"})
    await body(response, 415)
    response = await guarded.post("/_session", json={"name": "ada", "password": "secret"})
    assert (await body(response))["roles"] == ["_admin"]
    cookie = response.cookies[COOKIE_NAME]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    headers = {"Cookie": f"{COOKIE_NAME}={cookie.value}"}
    session = await body(await guarded.get("/_session", headers=headers))
    assert session["userCtx"]["name"] == "ada"
    assert session["info"]["authenticated"] == "cookie"
    response = await guarded.post("/_millstream/buckets", data=b"{}", headers=headers)
    assert (await body(response, 415))["error"] == "bad_content_type"
    response = await guarded.delete("/_session", headers=headers)
    assert response.cookies[COOKIE_NAME].value == ""
    session = await body(await guarded.get("/_session", headers={"Cookie": f"{COOKIE_NAME}=x"}))
    assert session["userCtx"] == {"name": None, "roles": []}


async def test_users_are_kept_by_administrators(guarded):
    eve = {"password": "secret", "roles": ["write:orders"]}
    await body(await guarded.put("/_millstream/users/eve", json=eve, headers=ADA), 201)
    listed = await body(await guarded.get("/_millstream/users", headers=ADA))
    assert {"name": "eve", "roles": ["write:orders"]} in listed["users"]
    shown = await guarded.get("/_millstream/users/eve", headers=ADA)
    assert "verifiers" not in await body(shown)
    await body(await guarded.delete("/_millstream/users/eve", headers=ADA))
    await body(await guarded.get("/_millstream/users/eve", headers=ADA), 404)
    response = await guarded.delete("/_millstream/users/ada", headers=ADA)
    assert (await body(response, 409))["error"] == "last_admin"
    for content in ({}, {"password": "x", "roles": "admin"}, {"password": "x", "roles": ["root"]}):
        await body(await guarded.put("/_millstream/users/eve", json=content, headers=ADA), 400)
