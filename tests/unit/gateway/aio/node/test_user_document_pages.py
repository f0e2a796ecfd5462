from base64 import b64encode

import pytest

from millstream.access.users import UserStore

PATH = "/_users/org.couchdb.user:"
BOB = PATH + "bob"


def by(name, password="secret"):
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}


def document(name, **changed):
    found = {"_id": f"org.couchdb.user:{name}", "name": name, "type": "user", "roles": []}
    return found | {"password": "secret"} | changed


@pytest.fixture(scope="module")
def two_users():
    users = UserStore()
    users.put("ada", "secret", ["admin"])
    users.put("bob", "secret", ["read:orders", "group:staff"])
    return users.all()


@pytest.fixture
async def pages(guarded, guarded_node, two_users):
    """Pages of a node whose users belong to one test."""
    guarded_node.users = UserStore()
    guarded_node.users.adopt(two_users)
    return guarded


async def test_administrators_make_change_and_remove_users(pages, guarded_node, body, ada):
    response = await pages.put(PATH + "eve", json=document("eve", roles=["editor"]), headers=ada)
    made = await body(response, 201)
    assert made["id"] == "org.couchdb.user:eve"
    assert response.headers["Location"] == "/_users/org.couchdb.user%3Aeve"
    response = await pages.get("/_users/org.couchdb.user%3Aeve", headers=ada)
    assert response.headers["ETag"] == f'"{made["rev"]}"'
    found = await body(response)
    wanted = document("eve", roles=["editor"], _rev=made["rev"])
    del wanted["password"]
    assert found == wanted
    assert guarded_node.users.get("eve").roles == ("group:editor",)
    found["roles"] = ["write:orders", "_admin"]
    changed = await body(await pages.put(PATH + "eve", json=found, headers=ada), 201)
    assert changed["rev"] != made["rev"]
    assert guarded_node.users.get("eve").roles == ("admin", "write:orders")
    assert guarded_node.users.check_password("eve", "secret") is not None
    stale = await body(await pages.put(PATH + "eve", json=found, headers=ada), 409)
    assert stale == {"error": "conflict", "reason": "Document update conflict."}
    for path in (PATH + "eve", f"{PATH}eve?rev={made['rev']}"):
        await body(await pages.delete(path, headers=ada), 409)
    gone = await body(await pages.delete(f"{PATH}eve?rev={changed['rev']}", headers=ada))
    assert gone["rev"].startswith("2-")
    await body(await pages.get(PATH + "eve", headers=ada), 404)
    await body(await pages.delete(f"{PATH}eve?rev={changed['rev']}", headers=ada), 404)
    assert guarded_node.dropped == ["eve"] * 3


async def test_a_user_reads_the_own_document_and_changes_the_own_password(
    pages, guarded_node, body
):
    found = await body(await pages.get(BOB, headers=by("bob")))
    assert found["roles"] == ["read:orders", "staff"]
    more = found | {"roles": ["_admin"], "password": "new"}
    refused = await body(await pages.put(BOB, json=more, headers=by("bob")), 403)
    assert refused == {"error": "forbidden", "reason": "Only _admin may edit roles"}
    await body(await pages.put(BOB, json=found | {"password": "new"}, headers=by("bob")), 201)
    await body(await pages.get(BOB, headers=by("bob")), 401)
    found = await body(await pages.get(BOB, headers=by("bob", "new")))
    assert guarded_node.dropped == ["bob"]
    refused = await pages.put(BOB, json=document("bob"), headers=by("bob", "new"))
    assert (await body(refused, 409))["error"] == "conflict"
    found["_deleted"] = True
    await body(await pages.put(BOB, json=found, headers=by("bob", "new")))
    assert guarded_node.users.get("bob") is None


async def test_others_and_strangers_learn_nothing(pages, body, bob):
    for name in ("ada", "nobody"):
        assert (await body(await pages.get(PATH + name, headers=bob), 404))["reason"] == "missing"
        assert (await body(await pages.get(PATH + name), 401))["error"] == "unauthorized"
        for ask in (pages.put, pages.delete):
            response = await ask(PATH + name, json=document(name), headers=bob)
            assert (await body(response, 404))["reason"] == "missing"
        await body(await pages.put(PATH + name, json=document(name)), 401)
    for path in ("/_users", "/_users/", "/_users/_all_docs", "/_users/_changes"):
        await body(await pages.get(path), 401)
        await body(await pages.get(path, headers=bob), 403)


async def test_a_token_makes_nobody_the_user_it_names(bearing, body, bearer):
    for name in ("bob", "ada"):
        shown = bearer("admin", "group:staff", sub=name)
        await body(await bearing.get(PATH + name, headers=shown), 404)
        response = await bearing.put(PATH + name, json=document(name), headers=shown)
        await body(response, 404)
        await body(await bearing.delete(PATH + name, headers=shown), 404)


async def test_all_users_are_listed_for_administrators(pages, body, ada):
    listed = await body(await pages.get("/_users/_all_docs?include_docs=true", headers=ada))
    assert [row["id"] for row in listed["rows"]] == [
        "org.couchdb.user:ada", "org.couchdb.user:bob",
    ]  # fmt: skip
    assert listed["rows"][0]["doc"]["roles"] == ["_admin"]
    keys = {"keys": ["org.couchdb.user:bob", "none"]}
    listed = await body(await pages.post("/_users/_all_docs", json=keys, headers=ada))
    assert listed["rows"][1] == {"key": "none", "error": "not_found"}
    assert (await body(await pages.get("/_users/", headers=ada)))["doc_count"] == 2


async def test_what_clients_ask_for_besides(pages, body, ada):
    made = await body(await pages.post("/_users", json=document("eve"), headers=ada), 201)
    etag = {"If-None-Match": f'"{made["rev"]}"'}
    response = await pages.get(PATH + "eve", headers=ada | etag)
    assert (response.status, await response.read()) == (304, b"")
    await body(await pages.get(PATH + "eve?rev=1-a", headers=ada), 404)
    exists = await body(await pages.put("/_users", headers=ada), 412)
    assert exists["error"] == "file_exists"
    for path in ("/_users/_changes", "/_users/_design/x", "/_users/_security"):
        refused = await body(await pages.get(path, headers=ada), 400)
        assert refused["error"] == "not_supported"
    await body(await pages.delete("/_users", headers=ada), 400)
    response = await pages.put(PATH + "eve?new_edits=false", json=document("eve"), headers=ada)
    assert (await body(response, 400))["error"] == "not_supported"
    response = await pages.delete("/_users/eve?rev=1-a", headers=ada)
    await body(response, 404)


async def test_refusals_of_the_record(pages, body, ada):
    no_password = document("eve")
    del no_password["password"]
    refused = await body(await pages.put(PATH + "eve", json=no_password, headers=ada), 400)
    assert refused["error"] == "bad_password"
    for roles in (["root:"], ["read:"]):
        response = await pages.put(PATH + "eve", json=document("eve", roles=roles), headers=ada)
        assert (await body(response, 400))["error"] == "bad_role"
    found = await body(await pages.get(PATH + "ada", headers=ada))
    response = await pages.delete(f"{PATH}ada?rev={found['_rev']}", headers=ada)
    assert (await body(response, 409))["error"] == "last_admin"
    for content in ("{", "[]", "{}"):
        response = await pages.put(PATH + "eve", data=content, headers=ada)
        assert response.status in (400, 403)


async def test_the_first_user_is_an_administrator(client, open_node, body):
    refused = await body(await client.put(PATH + "eve", json=document("eve")), 409)
    assert refused["error"] == "last_admin"
    first = document("ada", roles=["_admin"])
    await body(await client.put(PATH + "ada", json=first), 201)
    assert open_node.users.get("ada").is_admin
    await body(await client.get(PATH + "ada"), 401)
