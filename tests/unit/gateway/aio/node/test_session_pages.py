from millstream.gateway.core.cookies import COOKIE_NAME


async def test_without_users_everybody_is_administrator(client, body):
    session = await body(await client.get("/_session"))
    assert session["userCtx"] == {"name": None, "roles": ["_admin"]}


async def test_logging_in_with_a_cookie_and_out_again(guarded, body):
    response = await guarded.post("/_session", json={"name": "ada", "password": "wrong"})
    await body(response, 401)
    await body(await guarded.post("/_session", json={"name": "ada"}), 400)
    response = await guarded.post("/_session", data={"name": "ada", "password": "secret"})
    assert (await body(response))["name"] == "ada"
    await body(await guarded.post("/_session", data="name=ada"), 415)
    response = await guarded.post("/_session", json={"name": "ada", "password": "secret"})
    assert (await body(response))["roles"] == ["_admin"]
    cookie = response.cookies[COOKIE_NAME]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    headers = {"Cookie": f"{COOKIE_NAME}={cookie.value}"}
    session = await body(await guarded.get("/_session", headers=headers))
    assert session["userCtx"]["name"] == "ada"
    assert session["info"]["authenticated"] == "cookie"
    shown = headers | {"X-CSRF-Token": session["csrf"]}
    response = await guarded.post("/_millstream/buckets", data=b"{}", headers=shown)
    assert (await body(response, 415))["error"] == "bad_content_type"
    response = await guarded.delete("/_session", headers=headers)
    assert response.cookies[COOKIE_NAME].value == ""
    session = await body(await guarded.get("/_session", headers={"Cookie": f"{COOKIE_NAME}=x"}))
    assert session["userCtx"] == {"name": None, "roles": []}


async def test_a_name_may_be_called_username(guarded, body):
    log_in = {"username": "ada", "password": "secret"}
    for said in ({"json": log_in}, {"data": log_in}, {"json": log_in | {"name": "ada"}}):
        assert (await body(await guarded.post("/_session", **said)))["name"] == "ada"
        guarded.session.cookie_jar.clear()
    both = log_in | {"name": "bob"}
    assert "different" in (await body(await guarded.post("/_session", json=both), 400))["reason"]


async def test_who_shows_a_token_is_told_who_that_is(bearing, guarded, body, bearer):
    headers = bearer("read:orders", "staff", sub="eve")
    session = await body(await bearing.get("/_session", headers=headers))
    assert session["userCtx"] == {"name": "eve", "roles": ["read:orders", "staff"]}
    assert session["info"]["authenticated"] == "jwt"
    assert "jwt" in session["info"]["authentication_handlers"]
    response = await bearing.post("/_session", headers=headers)
    assert (await body(response))["name"] == "eve"
    assert COOKIE_NAME not in response.cookies
    log_in = {"name": "ada", "password": "secret"}
    response = await bearing.post("/_session", json=log_in, headers=headers)
    assert (await body(response))["name"] == "ada"
    await body(await bearing.post("/_session", headers=bearer(exp=1)), 401)
    session = await body(await guarded.get("/_session"))
    assert "jwt" not in session["info"]["authentication_handlers"]


async def test_a_cookie_is_good_for_nothing_once_its_holder_logged_out(
    guarded, guarded_node, body
):
    guarded_node.users.put("leaver", "secret", [])
    said = {"name": "leaver", "password": "secret"}
    answer = await guarded.post("/_session", json=said)
    cookie = {"Cookie": f"AuthSession={answer.cookies['AuthSession'].value}"}
    guarded.session.cookie_jar.clear()
    shown = await body(await guarded.get("/_session", headers=cookie), 200)
    assert shown["userCtx"]["name"] == "leaver"
    await body(await guarded.delete("/_session", headers=cookie), 200)
    shown = await body(await guarded.get("/_session", headers=cookie), 200)
    assert shown["userCtx"]["name"] is None
    assert guarded_node.users.delete("leaver")  # all tests share the users
