import asyncio

import pytest
from aiohttp import encode_basic_auth
from yarl import URL

from millstream.access import failed_logins
from millstream.access.failed_logins import FAILED_LOGINS_MAX


async def test_errors_are_json(client, body):
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


@pytest.mark.parametrize(
    "path",
    [
        "/%FF", "/orders/%FF", "/orders/d/%FF", "/orders/_design/%FF", "/orders/_local/%FF",
        "/orders/a%C3", "/orders/%ED%A0%80", "/orders/_all_docs?key=%22%FF%22",
    ],
)  # fmt: skip
async def test_an_address_that_is_no_text_is_refused(client, open_node, body, path):
    for method in ("GET", "PUT", "DELETE"):
        response = await client.request(method, URL(path, encoded=True), data=b"{}")
        assert (await body(response, 400))["error"] == "bad_request"
    assert open_node.documents.database("orders").documents == {}


async def test_an_unforeseen_error_tells_nothing(client, open_node, monkeypatch, body):
    def fail():
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(open_node, "metrics", fail)
    error = await body(await client.get("/_metrics"), 500)
    assert "inside" not in error["reason"]


async def test_pages_of_other_sites_are_refused(client, body):
    response = await client.get("/", headers={"Host": "evil.example"})
    assert (await body(response, 403))["error"] == "foreign_host"
    response = await client.put(
        "/_millstream/buckets/x", headers={"Origin": "http://evil.example"}
    )
    assert (await body(response, 403))["error"] == "foreign_origin"


@pytest.mark.parametrize(
    "header", ["Basic YWRhOndyb25n", "Basic ???", "Basic YWRh", "Bearer x", "Basic /w=="]
)
async def test_wrong_credentials_are_refused_before_the_page(guarded, header, body):
    response = await guarded.get("/", headers={"Authorization": header})
    assert (await body(response, 401))["error"] == "unauthorized"


@pytest.mark.parametrize("header", ["Digest x", "Negotiate a", "Basic: YWRhOnNlY3JldA==", "x", ""])
async def test_credentials_of_another_kind_are_for_somebody_else(guarded, header, body):
    """They may be for a proxy; who shows nothing besides is nobody, or who the cookie says."""
    other = {"Authorization": header}
    assert (await body(await guarded.get("/", headers=other)))["couchdb"] == "Welcome"
    told = await body(await guarded.get("/_session", headers=other))
    assert told["userCtx"]["name"] is None
    assert (await guarded.get("/_all_dbs", headers=other)).status == 401
    said = {"name": "ada", "password": "secret"}
    assert (await body(await guarded.post("/_session", json=said), 200))["ok"]
    told = await body(await guarded.get("/_session", headers=other))
    assert (told["userCtx"]["name"], told["info"]["authenticated"]) == ("ada", "cookie")


async def test_the_right_password_gets_in_whatever_failed_before_and_who_guesses_waits(
    guarded, guarded_node, body, monkeypatch
):
    guarded_node.users.put("guessed", "right", [])  # no second administrator: all share the users
    monkeypatch.setattr(failed_logins, "PAUSE_S", 0.05)
    wrong = {"Authorization": encode_basic_auth("guessed", "wrong")}
    for _ in range(FAILED_LOGINS_MAX):
        assert (await body(await guarded.get("/", headers=wrong), 401))["error"] == "unauthorized"
    begun_s = asyncio.get_running_loop().time()
    await body(await guarded.get("/", headers=wrong), 401)
    assert asyncio.get_running_loop().time() - begun_s >= 0.05
    said = {"name": "guessed", "password": "right"}
    assert (await body(await guarded.post("/_session", json=said), 200))["ok"]
    right = {"Authorization": encode_basic_auth("guessed", "right")}
    await body(await guarded.get("/", headers=right), 200)


SITE = {"Origin": "https://app.example"}


async def test_a_page_of_a_named_site_sees_answers(client, body):
    response = await client.get("/", headers=SITE)
    assert response.headers["Access-Control-Allow-Origin"] == SITE["Origin"]
    assert (await body(response))["couchdb"] == "Welcome"
    response = await client.put("/mine", headers=SITE)
    assert response.status == 201
    assert response.headers["Access-Control-Allow-Credentials"] == "true"
    missing = await client.get("/nothing", headers=SITE)
    assert missing.status == 404
    assert missing.headers["Access-Control-Allow-Origin"] == SITE["Origin"]


async def test_a_browser_asks_before_it_sends(guarded):
    asked = {"Access-Control-Request-Method": "PUT"}
    allowed = await guarded.options("/orders/x", headers=SITE | asked)
    assert allowed.status == 204
    assert "PUT" in allowed.headers["Access-Control-Allow-Methods"]
    foreign = {"Origin": "https://evil.example"}
    refused = await guarded.options("/orders/x", headers=foreign | asked)
    assert refused.status == 403
    assert "Access-Control-Allow-Origin" not in refused.headers


async def test_a_cookie_alone_does_not_carry_a_form(guarded, body):
    log_in = {"name": "ada", "password": "secret"}
    response = await guarded.post("/_session", data=log_in)
    assert (await body(response))["name"] == "ada"
    cookie = {"Cookie": f"AuthSession={response.cookies['AuthSession'].value}"}
    refused = await guarded.post("/_millstream/buckets", data={"name": "x"}, headers=cookie)
    assert (await body(refused, 415))["error"] == "bad_content_type"


async def test_the_bearer_of_a_token_has_the_rights_that_it_says(bearing, body, bearer):
    reader = bearer("read:orders", "staff")
    await body(await bearing.get("/orders", headers=reader))
    refused = await body(await bearing.put("/orders/d", json={}, headers=reader), 403)
    assert refused["error"] == "forbidden"
    writer = bearer("read:orders", "write:orders", sub="eve")
    await body(await bearing.put("/orders/d", json={}, headers=writer), 201)
    admin = bearer("admin")
    await body(await bearing.get("/_millstream/users", headers=admin), 403)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": 1}, "expired"), ({"iss": "https://evil.test"}, "another issuer"),
        ({"aud": "others"}, "somebody else"), ({"sub": ""}, "about nobody"),
    ],
)  # fmt: skip
async def test_a_token_that_is_not_believed(bearing, body, bearer, claims, reason):
    response = await bearing.get("/_up", headers=bearer("admin", **claims))
    assert response.headers["WWW-Authenticate"].startswith("Bearer ")
    refused = await body(response, 401)
    assert refused["error"] == "unauthorized"
    assert reason in refused["reason"]


@pytest.mark.parametrize("shown", ["Bearer", "bearer x", "Bearer a.b.c", "Bearer \xff.e.e"])
async def test_what_is_no_token(bearing, body, shown):
    response = await bearing.get("/_up", headers={"Authorization": shown})
    assert (await body(response, 401))["error"] == "unauthorized"


async def test_a_node_without_a_provider_says_so(guarded, body, bearer):
    refused = await body(await guarded.get("/_up", headers=bearer()), 401)
    assert "no tokens" in refused["reason"]


async def test_a_script_in_a_page_is_not_answered_by_a_prompt(guarded):
    for mode, scheme in (("cors", "Cookie"), ("same-origin", "Cookie"), ("navigate", "Basic")):
        response = await guarded.get("/orders", headers={"Sec-Fetch-Mode": mode})
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith(scheme)
    assert (await guarded.get("/orders")).headers["WWW-Authenticate"].startswith("Basic")


async def test_a_cookie_alone_changes_nothing_of_the_node(guarded, body):
    """A page of another site may make a browser send the cookie; it cannot know the token."""
    said = {"name": "ada", "password": "secret"}
    cookies = [
        (await guarded.post("/_session", json=said)).cookies["AuthSession"].value for _ in "ab"
    ]
    guarded.session.cookie_jar.clear()
    shown = [{"Cookie": f"AuthSession={cookie}"} for cookie in cookies]
    tokens = [(await body(await guarded.get("/_session", headers=one)))["csrf"] for one in shown]
    assert tokens[0] != tokens[1]
    for method, path in (
        ("POST", "/_millstream/buckets"), ("PUT", "/_millstream/buckets/new"),
        ("DELETE", "/_millstream/buckets/orders"), ("PATCH", "/_millstream/buckets/orders"),
        ("POST", "/_millstream/cluster/requests"), ("DELETE", "/_millstream/users/bob"),
        ("POST", "/%5Fmillstream/buckets"),
    ):  # fmt: skip
        for token in ({}, {"X-CSRF-Token": tokens[1]}, {"X-CSRF-Token": "\u00e9"}):
            headers = shown[0] | token
            refused = await guarded.request(
                method, URL(path, encoded=True), headers=headers, json={}
            )
            assert (await body(refused, 403))["error"] == "csrf_token_missing", (method, path)
    headers = shown[0] | {"X-CSRF-Token": tokens[0]}
    made = await guarded.post("/_millstream/buckets", json={"name": "new"}, headers=headers)
    assert made.status == 201
    await body(await guarded.get("/_millstream/buckets", headers=shown[0]))


async def test_who_shows_a_password_needs_no_token(guarded, ada, body):
    session = await body(await guarded.get("/_session", headers=ada))
    assert "csrf" not in session
    made = await guarded.post("/_millstream/buckets", json={"name": "b"}, headers=ada)
    assert made.status == 201


async def test_named_sites_may_send_the_token(client, open_node, monkeypatch):
    monkeypatch.setattr(type(open_node), "origins", frozenset({"https://app.example"}))
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "PUT"}
    response = await client.options("/_millstream/buckets/x", headers=asked)
    assert "x-csrf-token" in response.headers["Access-Control-Allow-Headers"]
