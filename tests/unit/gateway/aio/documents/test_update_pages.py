from io import BytesIO

import pytest

from millstream.errors import AccessError, MillstreamError
from millstream.gateway.aio.documents.update_pages import UPDATE_BODY_BYTES_MAX

PATH = "/orders/_design/d/_update/f"


@pytest.fixture
def answers(open_node, guarded_node):
    """Say what the function answers: it gets the document and the request."""

    def say(function):
        for host in (open_node, guarded_node):
            host.functions.updates["d", "f"] = function

    return say


async def test_a_function_makes_and_changes_documents(client, answers, body, open_node):
    def count(document, request):
        document = document or {"_id": request["id"] or request["uuid"], "n": 0}
        return document | {"n": document["n"] + 1}, {"body": f"was {document['n']}"}

    answers(count)
    response = await client.put(PATH + "/x")
    assert (response.status, await response.text()) == (201, "was 0")
    assert response.headers["X-Couch-Id"] == "x"
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    made = await body(await client.get("/orders/x"))
    assert (made["_rev"], made["n"]) == (response.headers["X-Couch-Update-NewRev"], 1)
    assert await (await client.post(PATH + "/x")).text() == "was 1"
    response = await client.post(PATH)
    new = await body(await client.get("/orders/" + response.headers["X-Couch-Id"]))
    assert new["n"] == 1
    assert open_node.documents.durable_waits == 3
    response = await client.post(PATH + "/x?batch=ok")
    assert response.status == 202
    assert open_node.documents.durable_waits == 3
    response = await client.put(PATH + "/a/b%0A")
    assert response.headers["X-Couch-Id"] == "a%2Fb%0A"
    await client.delete(f"/orders/x?rev={(await body(await client.get('/orders/x')))['_rev']}")
    assert await (await client.put(PATH + "/x")).text() == "was 0"


async def test_what_a_function_sees(client, answers):
    seen = []
    answers(lambda *given: (seen.append(given), (None, {"json": 1}))[1])
    response = await client.post(
        PATH + "/x%20y?q=1", data="a=1&b=%C3%A4", headers={
            "Authorization": "Bearer secret", "Cookie": "AuthSession=secret",
            "content-type": "application/x-www-form-urlencoded",
        },
    )  # fmt: skip
    assert (response.status, await response.json()) == (200, 1)
    assert "X-Couch-Id" not in response.headers
    [(document, request)] = seen
    assert document is None
    assert "secret" not in str(request)
    assert request["id"] == "x y"
    assert request["method"] == "POST"
    assert request["path"] == ["orders", "_design", "d", "_update", "f", "x y"]
    assert request["query"] == {"q": "1"}
    assert request["body"] == "a=1&b=%C3%A4"
    assert request["form"] == {"a": "1", "b": "\u00e4"}
    assert request["headers"]["Content-Type"] == "application/x-www-form-urlencoded"
    assert request["userCtx"] == {"db": "orders", "name": None, "roles": ["_admin"]}
    assert request["info"]["db_name"] == "orders"
    assert request["secObj"] == {}
    assert len(request["uuid"]) == 32
    await client.post(PATH)
    assert seen[1][1]["id"] is None
    assert seen[1][1]["form"] == {}


async def test_an_answer_of_its_own(client, answers, body):
    wanted = {"code": 303, "headers": {"Location": "/x"}, "base64": "AAE="}
    answers(lambda document, request: ({"_id": "y"}, wanted))
    response = await client.post(PATH, allow_redirects=False)
    assert (response.status, response.headers["Location"]) == (303, "/x")
    assert await response.read() == b"\0\1"
    assert response.headers["X-Couch-Update-NewRev"].startswith("1-")
    await body(await client.get("/orders/y"))


@pytest.mark.parametrize(
    ("document", "answer", "status", "error"),
    [
        ({"_id": "new"}, {"code": 7}, 500, "render_error"), ({}, {}, 400, "illegal_docid"),
        ({"_id": "_local/new"}, {}, 400, "illegal_docid"),
        ({"_id": "new", "_rev": "1-a"}, {}, 409, "conflict"),
        ({"_id": "new", "_what": 1}, {}, 400, "doc_validation"),
    ],
)  # fmt: skip
async def test_nothing_is_stored_of_what_is_refused(
    client, answers, body, document, answer, status, error
):
    answers(lambda *_: (document, answer))
    assert (await body(await client.post(PATH), status))["error"] == error
    await body(await client.get("/orders/new"), 404)


async def test_validation_functions_are_asked(client, answers, body, open_node):
    answers(lambda *_: ({"_id": "new"}, {}))
    open_node.functions.judge = lambda new, old: AccessError("not so", code="forbidden")
    refused = await body(await client.post(PATH), 403)
    assert refused == {"error": "forbidden", "reason": "not so"}
    await body(await client.get("/orders/new"), 404)


async def test_functions_that_are_not_there_or_fail(client, answers, body):
    await body(await client.post(PATH), 404)
    await body(await client.post(PATH + "/_local/x"), 400)

    def fail(document, request):
        raise MillstreamError("loops", code="function_failed")

    answers(fail)
    assert (await body(await client.post(PATH), 500))["error"] == "function_failed"
    large = BytesIO(b"x" * (UPDATE_BODY_BYTES_MAX + 1))
    assert (await body(await client.post(PATH, data=large), 413))["error"] == "too_large"


async def test_attachments_of_the_document_stay_and_come(client, answers, body):
    stub = {"content_type": "text/plain", "data": "eA=="}
    answers(lambda document, request: (
        (document or {"_id": "z"}) | {"_attachments": {"a": stub}}, {}
    ))  # fmt: skip
    await client.post(PATH)
    answers(lambda document, request: (document | {"n": 1}, {"json": document}))
    shown = await body(await client.post(PATH + "/z"), 201)
    assert shown["_attachments"]["a"]["stub"] is True
    assert await (await client.get("/orders/z/a")).read() == b"x"


async def test_rights(guarded, answers, body, bearer, ada, bob, guarded_node):
    answers(lambda document, request: ({"_id": "w"}, {"json": request["userCtx"]}))
    await body(await guarded.post(PATH), 401)
    await body(await guarded.post(PATH, headers=bob), 403)
    shown = await body(await guarded.post(PATH, headers=ada), 201)
    assert shown == {"db": "orders", "name": "ada", "roles": ["_admin"]}


async def test_what_a_function_threw_is_not_logged(client, answers, body, caplog):
    def fail(document, request):
        raise MillstreamError("text of a document", code="thrown-name")

    answers(fail)
    found = await body(await client.post(PATH + "/the-id"), 500)
    assert found["reason"] == "text of a document"
    # The test client's server has a log of requests of its own, with their paths.
    logged = [r.getMessage() for r in caplog.records if r.name.startswith("millstream.")]
    assert any("a function of a design document failed" in line for line in logged)
    for hidden in ("the-id", "text of a document", "thrown-name"):
        assert not any(hidden in line for line in logged)
