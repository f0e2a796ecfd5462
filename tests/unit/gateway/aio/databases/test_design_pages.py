"""Design documents on nodes without data; elsewhere `document_pages` answers for them."""

from io import BytesIO

import pytest
from aiohttp.test_utils import TestClient, TestServer

from millstream.errors import UnavailableError, UsageError
from millstream.gateway.aio.databases.design_pages import DESIGN_BYTES_MAX
from millstream.gateway.aio.server import make_application

DESIGN = {"views": {"by": {"map": "function (doc) { emit(1) }"}}}
PATH = "/orders/_design/sales"


def refusal(bucket):
    return UnavailableError(f"no data of {bucket}", code="no_data_role", retry="never")


@pytest.fixture
async def client(open_node):
    async with TestClient(TestServer(make_application(open_node, refusal))) as client:
        yield client


@pytest.fixture
async def guarded(guarded_node):
    async with TestClient(TestServer(make_application(guarded_node, refusal))) as client:
        yield client


async def put(client, body, path=PATH, status=201, content=DESIGN, **options):
    return await body(await client.put(path, json=content, **options), status)


async def test_a_document_comes_changes_and_goes(client, open_node, body):
    missing = {"error": "not_found", "reason": "missing"}
    assert await body(await client.get(PATH), 404) == missing
    assert await body(await client.delete(PATH), 404) == missing
    response = await client.put(PATH, json=DESIGN)
    made = await body(response, 201)
    assert made == {"ok": True, "id": "_design/sales", "rev": made["rev"]}
    assert response.headers["ETag"] == f'"{made["rev"]}"'
    assert response.headers["Location"] == PATH
    response = await client.get(PATH)
    assert await body(response) == {"_id": "_design/sales", "_rev": made["rev"], **DESIGN}
    assert response.headers["ETag"] == f'"{made["rev"]}"'
    second = await put(client, body, content=DESIGN | {"_rev": made["rev"], "n": 1})
    third = await put(client, body, path=f"{PATH}?rev={second['rev']}")
    fourth = await put(client, body, headers={"If-Match": f'"{third["rev"]}"'})
    assert fourth["rev"].startswith("4-")
    response = await client.delete(PATH, headers={"If-Match": fourth["rev"]})
    gone = await body(response)
    assert gone["ok"]
    deleted = {"error": "not_found", "reason": "deleted"}
    assert await body(await client.get(PATH), 404) == deleted
    assert await body(await client.delete(PATH), 404) == deleted
    assert (await put(client, body))["rev"].startswith("6-")
    assert open_node.designs.persisted == 6


async def test_a_document_may_be_deleted_by_putting_it(client, body):
    made = await put(client, body)
    gone = {"_deleted": True, "_rev": made["rev"]}
    await put(client, body, content=gone)
    assert (await body(await client.get(PATH), 404))["reason"] == "deleted"


async def test_conflicts(client, body):
    conflict = {"error": "conflict", "reason": "Document update conflict."}
    assert await put(client, body, status=409, content={"_rev": "1-a"}) == conflict
    made = await put(client, body)
    assert await put(client, body, status=409) == conflict
    assert await body(await client.delete(PATH), 409) == conflict
    assert await body(await client.delete(f"{PATH}?rev=1-a"), 409) == conflict
    assert await put(client, body, path=f"{PATH}?rev=1-a", status=409) == conflict
    twice = DESIGN | {"_rev": made["rev"]}
    error = await put(client, body, path=f"{PATH}?rev=1-a", status=400, content=twice)
    assert error["error"] == "bad_request"


async def test_one_that_did_not_change_is_not_sent_again(client, body):
    made = await put(client, body)
    etag = f'"{made["rev"]}"'
    response = await client.get(PATH, headers={"If-None-Match": etag})
    assert (response.status, await response.read(), response.headers["ETag"]) == (304, b"", etag)
    await body(await client.get(PATH, headers={"If-None-Match": '"1-a"'}))
    response = await client.head(PATH)
    assert (response.status, response.headers["ETag"], await response.read()) == (200, etag, b"")
    assert int(response.headers["Content-Length"]) > 50


async def test_only_the_present_revision_is_kept(client, body):
    made = await put(client, body)
    assert (await body(await client.get(f"{PATH}?rev={made['rev']}")))["_rev"] == made["rev"]
    await body(await client.get(f"{PATH}?rev=1-abc"), 404)
    assert (await body(await client.get(f"{PATH}?rev=abc"), 400))["reason"] == "Invalid rev format"
    await body(await client.delete(f"{PATH}?rev={made['rev']}"))
    assert (await body(await client.get(f"{PATH}?rev={made['rev']}"), 404))["reason"] == "missing"


async def test_copies(client, body):
    made = await put(client, body)

    async def copy(destination, status=201, path=PATH):
        headers = {"Destination": destination} if destination else {}
        return await body(await client.request("COPY", path, headers=headers), status)

    copied = await copy("_design/new")
    assert copied["id"] == "_design/new"
    found = await body(await client.get("/orders/_design/new"))
    assert found["views"] == DESIGN["views"]
    assert (await copy("_design/new", 409))["error"] == "conflict"
    again = await copy(f"_design/new?rev={copied['rev']}")
    assert again["rev"].startswith("2-")
    await copy("", 400)
    await copy("plain", 400)
    await copy("_design/x", 404, path="/orders/_design/none")
    await copy("_design/y", 404, path=f"{PATH}?rev=1-a")
    await copy("_design/y", 201, path=f"{PATH}?rev={made['rev']}")


async def test_accepted_is_not_durable(client, open_node, body):
    await put(client, body, path=f"{PATH}?batch=ok", status=202)
    made = await body(await client.get(PATH))
    await body(await client.delete(f"{PATH}?batch=ok&rev={made['_rev']}"), 202)
    assert open_node.designs.persisted == 0


async def test_names_are_percent_encoded(client, body):
    await put(client, body, path="/a%2Fb/_design%2Fx")
    found = await body(await client.get("/a%2Fb/_design/x"))
    assert found["_id"] == "_design/x"
    made = await client.put("/orders/_design/%C3%A9%2F1%25", json=DESIGN)
    assert made.headers["Location"] == "/orders/_design/%C3%A9%2F1%25"
    assert (await body(made, 201))["id"] == "_design/é/1%"
    assert (await body(await client.get("/orders/_design%2f%C3%A9%2f1%25")))["_id"]
    error = await put(client, body, path="/orders/_design/" + "x" * 243, status=400)
    assert error["error"] == "illegal_docid"


@pytest.mark.parametrize("code", ["invalid_design_doc", "compilation_error", "unknown_function"])
async def test_what_does_not_compile_is_not_stored(client, open_node, body, code):
    open_node.designs.refusal = UsageError("no", code=code)
    assert await put(client, body, status=400) == {"error": code, "reason": "no"}
    await body(await client.get(PATH), 404)


async def test_bad_requests(client, body):
    for data in (b"{", b"[]", b"", b'{"_id":"_design/other"}', b'{"_x":1}'):
        await body(await client.put(PATH, data=data), 400)
    await put(client, body, path=f"{PATH}?new_edits=false", status=400)
    big = BytesIO(b'{"a":"' + b"x" * DESIGN_BYTES_MAX + b'"}')
    assert (await body(await client.put(PATH, data=big), 413))["error"] == "too_large"
    error = await put(client, body, path="/none/_design/x", status=404)
    assert error == {"error": "not_found", "reason": "Database does not exist."}


async def test_who_may_what(guarded, body, ada, bob, cleo):
    path = "/orders/_design/rights"
    await body(await guarded.put(path, json=DESIGN), 401)
    await body(await guarded.put(path, json=DESIGN, headers=bob), 403)
    made = await body(await guarded.put(path, json=DESIGN, headers=cleo), 201)
    await body(await guarded.get(path), 401)
    for who in (bob, cleo):
        await body(await guarded.get(path, headers=who))
    await body(await guarded.get(path, headers=ada))
    copy = {"Destination": "_design/other"}
    await body(await guarded.request("COPY", path, headers=copy | bob), 403)
    copied = await body(await guarded.request("COPY", path, headers=copy | cleo), 201)
    copy["Destination"] += f"?rev={copied['rev']}"
    await body(await guarded.request("COPY", path, headers=copy | ada), 201)
    await body(await guarded.delete(f"{path}?rev={made['rev']}", headers=bob), 403)
    await body(await guarded.delete(f"{path}?rev={made['rev']}", headers=cleo))


async def test_design_documents_are_listed(client, body):
    path = "/orders/_design_docs"
    assert await body(await client.get(path)) == {"total_rows": 0, "offset": 0, "rows": []}
    for name in ("b", "a", "c"):
        made = await body(await client.put(f"/orders/_design/{name}", json=DESIGN), 201)
    await body(await client.delete(f"/orders/_design/c?rev={made['rev']}"))
    answer = await body(await client.get(path))
    assert [row["id"] for row in answer["rows"]] == ["_design/a", "_design/b"]
    answer = await body(await client.get(path + '?startkey="_design/b"&include_docs=true'))
    assert answer["rows"][0]["doc"]["views"] == DESIGN["views"]
    answer = await body(await client.post(path, json={"keys": ["_design/b", "x"]}))
    assert answer["rows"][1]["error"] == "not_found"
    error = await body(await client.get(path + "?limit=-1"), 400)
    assert error["error"] == "query_parse_error"
    await body(await client.get(path + "?startkey=b"), 400)
    await body(await client.get("/none/_design_docs"), 404)


async def test_who_may_list(guarded, body, bob, cleo):
    await body(await guarded.get("/orders/_design_docs", headers=bob))
    await body(await guarded.get("/orders/_design_docs", headers=cleo))
    await body(await guarded.get("/orders/_design_docs"), 401)
