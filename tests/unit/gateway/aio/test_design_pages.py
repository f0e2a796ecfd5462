from io import BytesIO

import pytest

from millstream.errors import UsageError
from millstream.gateway.aio.design_pages import DESIGN_BYTES_MAX

DESIGN = {"views": {"by": {"map": "function (doc) { emit(1) }"}}}
PATH = "/orders/_design/sales"


async def put(dataless, body, path=PATH, status=201, content=DESIGN, **options):
    return await body(await dataless.put(path, json=content, **options), status)


async def test_a_document_comes_changes_and_goes(dataless, open_host, body):
    missing = {"error": "not_found", "reason": "missing"}
    assert await body(await dataless.get(PATH), 404) == missing
    assert await body(await dataless.delete(PATH), 404) == missing
    response = await dataless.put(PATH, json=DESIGN)
    made = await body(response, 201)
    assert made == {"ok": True, "id": "_design/sales", "rev": made["rev"]}
    assert response.headers["ETag"] == f'"{made["rev"]}"'
    assert response.headers["Location"] == PATH
    response = await dataless.get(PATH)
    assert await body(response) == {"_id": "_design/sales", "_rev": made["rev"], **DESIGN}
    assert response.headers["ETag"] == f'"{made["rev"]}"'
    second = await put(dataless, body, content=DESIGN | {"_rev": made["rev"], "n": 1})
    third = await put(dataless, body, path=f"{PATH}?rev={second['rev']}")
    fourth = await put(dataless, body, headers={"If-Match": f'"{third["rev"]}"'})
    assert fourth["rev"].startswith("4-")
    response = await dataless.delete(PATH, headers={"If-Match": fourth["rev"]})
    gone = await body(response)
    assert gone["ok"]
    deleted = {"error": "not_found", "reason": "deleted"}
    assert await body(await dataless.get(PATH), 404) == deleted
    assert await body(await dataless.delete(PATH), 404) == deleted
    assert (await put(dataless, body))["rev"].startswith("6-")
    assert open_host.designs.persisted == 6


async def test_a_document_may_be_deleted_by_putting_it(dataless, body):
    made = await put(dataless, body)
    gone = {"_deleted": True, "_rev": made["rev"]}
    await put(dataless, body, content=gone)
    assert (await body(await dataless.get(PATH), 404))["reason"] == "deleted"


async def test_conflicts(dataless, body):
    conflict = {"error": "conflict", "reason": "Document update conflict."}
    assert await put(dataless, body, status=409, content={"_rev": "1-a"}) == conflict
    made = await put(dataless, body)
    assert await put(dataless, body, status=409) == conflict
    assert await body(await dataless.delete(PATH), 409) == conflict
    assert await body(await dataless.delete(f"{PATH}?rev=1-a"), 409) == conflict
    assert await put(dataless, body, path=f"{PATH}?rev=1-a", status=409) == conflict
    twice = DESIGN | {"_rev": made["rev"]}
    error = await put(dataless, body, path=f"{PATH}?rev=1-a", status=400, content=twice)
    assert error["error"] == "bad_request"


async def test_one_that_did_not_change_is_not_sent_again(dataless, body):
    made = await put(dataless, body)
    etag = f'"{made["rev"]}"'
    response = await dataless.get(PATH, headers={"If-None-Match": etag})
    assert (response.status, await response.read(), response.headers["ETag"]) == (304, b"", etag)
    await body(await dataless.get(PATH, headers={"If-None-Match": '"1-a"'}))
    response = await dataless.head(PATH)
    assert (response.status, response.headers["ETag"], await response.read()) == (200, etag, b"")
    assert int(response.headers["Content-Length"]) > 50


async def test_only_the_present_revision_is_kept(dataless, body):
    made = await put(dataless, body)
    assert (await body(await dataless.get(f"{PATH}?rev={made['rev']}")))["_rev"] == made["rev"]
    await body(await dataless.get(f"{PATH}?rev=1-abc"), 404)
    assert (await body(await dataless.get(f"{PATH}?rev=abc"), 400))[
        "reason"
    ] == "Invalid rev format"
    await body(await dataless.delete(f"{PATH}?rev={made['rev']}"))
    assert (await body(await dataless.get(f"{PATH}?rev={made['rev']}"), 404))[
        "reason"
    ] == "missing"


async def test_copies(dataless, body):
    made = await put(dataless, body)

    async def copy(destination, status=201, path=PATH):
        headers = {"Destination": destination} if destination else {}
        return await body(await dataless.request("COPY", path, headers=headers), status)

    copied = await copy("_design/new")
    assert copied["id"] == "_design/new"
    found = await body(await dataless.get("/orders/_design/new"))
    assert found["views"] == DESIGN["views"]
    assert (await copy("_design/new", 409))["error"] == "conflict"
    again = await copy(f"_design/new?rev={copied['rev']}")
    assert again["rev"].startswith("2-")
    await copy("", 400)
    await copy("plain", 400)
    await copy("_design/x", 404, path="/orders/_design/none")
    await copy("_design/y", 404, path=f"{PATH}?rev=1-a")
    await copy("_design/y", 201, path=f"{PATH}?rev={made['rev']}")


async def test_accepted_is_not_durable(dataless, open_host, body):
    await put(dataless, body, path=f"{PATH}?batch=ok", status=202)
    made = await body(await dataless.get(PATH))
    await body(await dataless.delete(f"{PATH}?batch=ok&rev={made['_rev']}"), 202)
    assert open_host.designs.persisted == 0


async def test_names_are_percent_encoded(dataless, body):
    await put(dataless, body, path="/a%2Fb/_design%2Fx")
    found = await body(await dataless.get("/a%2Fb/_design/x"))
    assert found["_id"] == "_design/x"
    made = await dataless.put("/orders/_design/%C3%A9%2F1%25", json=DESIGN)
    assert made.headers["Location"] == "/orders/_design/%C3%A9%2F1%25"
    assert (await body(made, 201))["id"] == "_design/é/1%"
    assert (await body(await dataless.get("/orders/_design%2f%C3%A9%2f1%25")))["_id"]
    error = await put(dataless, body, path="/orders/_design/" + "x" * 243, status=400)
    assert error["error"] == "illegal_docid"


@pytest.mark.parametrize("code", ["invalid_design_doc", "compilation_error", "unknown_function"])
async def test_what_does_not_compile_is_not_stored(dataless, open_host, body, code):
    open_host.designs.refusal = UsageError("no", code=code)
    assert await put(dataless, body, status=400) == {"error": code, "reason": "no"}
    await body(await dataless.get(PATH), 404)


async def test_bad_requests(dataless, body):
    for data in (b"{", b"[]", b"", b'{"_id":"_design/other"}', b'{"_x":1}'):
        await body(await dataless.put(PATH, data=data), 400)
    await put(dataless, body, path=f"{PATH}?new_edits=false", status=400)
    big = BytesIO(b'{"a":"' + b"x" * DESIGN_BYTES_MAX + b'"}')
    assert (await body(await dataless.put(PATH, data=big), 413))["error"] == "too_large"
    error = await put(dataless, body, path="/none/_design/x", status=404)
    assert error == {"error": "not_found", "reason": "Database does not exist."}
    await body(await dataless.get("/_none/_design/x"), 503)


async def test_who_may_what(guarded_dataless, body, ada, bob, cleo):
    path = "/orders/_design/rights"
    await body(await guarded_dataless.put(path, json=DESIGN), 401)
    await body(await guarded_dataless.put(path, json=DESIGN, headers=bob), 403)
    made = await body(await guarded_dataless.put(path, json=DESIGN, headers=cleo), 201)
    await body(await guarded_dataless.get(path), 401)
    for who in (bob, cleo):
        await body(await guarded_dataless.get(path, headers=who))
    await body(await guarded_dataless.get(path, headers=ada))
    copy = {"Destination": "_design/other"}
    await body(await guarded_dataless.request("COPY", path, headers=copy | bob), 403)
    copied = await body(await guarded_dataless.request("COPY", path, headers=copy | cleo), 201)
    copy["Destination"] += f"?rev={copied['rev']}"
    await body(await guarded_dataless.request("COPY", path, headers=copy | ada), 201)
    await body(await guarded_dataless.delete(f"{path}?rev={made['rev']}", headers=bob), 403)
    await body(await guarded_dataless.delete(f"{path}?rev={made['rev']}", headers=cleo))
