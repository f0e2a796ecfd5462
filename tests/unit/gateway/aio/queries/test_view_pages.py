from io import BytesIO

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.views.core.query.parameters import QUERY_BODY_BYTES_MAX

VIEW = "/orders/_design/sales/_view/by"


async def test_parameters_are_decoded_and_the_body_gives_way(client, open_node, body):
    open_node.indexes.pieces = [b'{"rows":[', b'{"id":"a","key":1,"value":2}', b"]}\n"]
    response = await client.get(VIEW + '?startkey=["a",1]&limit=5&reduce=false&startkey_docid=x')
    assert (await body(response))["rows"] == [{"id": "a", "key": 1, "value": 2}]
    assert response.headers["ETag"] == '"e1"'
    assert response.headers["Cache-Control"] == "must-revalidate"
    options = {"startkey": ["a", 1], "limit": 5, "reduce": False, "startkey_docid": "x"}
    assert open_node.indexes.asked == [("orders", "sales", "by", options)]
    await body(await client.post(VIEW + "?limit=5", json={"keys": ["a", None], "limit": 7}))
    assert open_node.indexes.asked[-1][3] == {"keys": ["a", None], "limit": 5}
    assert all(answer.is_closed for answer in open_node.indexes.answers)


async def test_names_are_percent_encoded(client, open_node, body):
    await body(await client.get("/a%2Fb/_design%2Fx%2Fy/_view/by%20day"))
    assert open_node.indexes.asked == [("a/b", "x/y", "by day", {})]


async def test_what_the_client_has_is_not_sent_again(client, open_node, body):
    response = await client.get(VIEW, headers={"If-None-Match": '"e1"'})
    assert (response.status, await response.read(), response.headers["ETag"]) == (304, b"", '"e1"')
    assert open_node.indexes.answers[0].is_closed
    await body(await client.get(VIEW, headers={"If-None-Match": '"e0"'}))
    response = await client.head(VIEW)
    assert (response.status, response.headers["ETag"], await response.read()) == (200, '"e1"', b"")
    assert all(answer.is_closed for answer in open_node.indexes.answers)


@pytest.mark.parametrize(
    ("error", "status", "code", "reason"),
    [
        (UsageError("why", code="query_parse_error"), 400, "query_parse_error", "why"),
        (UsageError("why", code="missing_named_view"), 404, "not_found", "missing_named_view"),
        (ConditionError("why", code="missing"), 404, "not_found", "missing"),
        (
            ConditionError("why", code="bucket_not_found"), 404, "not_found",
            "Database does not exist.",
        ),
        (UsageError("why", code="compilation_error"), 500, "compilation_error", "why"),
        (UsageError("why", code="unknown_function"), 500, "compilation_error", "why"),
        (UnavailableError("why", code="timeout"), 504, "timeout", "why"),
        (ConditionError("why", code="seq_unreachable"), 412, "seq_unreachable", "why"),
        (UnavailableError("why", code="index_unavailable"), 503, "index_unavailable", "why"),
    ],
)  # fmt: skip
async def test_refusals(client, open_node, body, error, status, code, reason):
    open_node.indexes.refusal = error
    for path in (VIEW, "/orders/_design/sales/_info"):
        assert await body(await client.get(path), status) == {"error": code, "reason": reason}


async def test_a_deleted_design_document_is_said_to_be(client, dataless, open_node, body):
    path = "/orders/_design/sales"
    made = await body(await dataless.put(path, json={"language": "javascript"}), 201)
    open_node.indexes.refusal = ConditionError("why", code="missing")
    assert (await body(await client.get(VIEW), 404))["reason"] == "missing"
    await body(await dataless.delete(f"{path}?rev={made['rev']}"))
    assert (await body(await client.get(VIEW), 404))["reason"] == "deleted"
    assert (await body(await client.get(path + "/_info"), 404))["reason"] == "deleted"


async def test_bad_queries(client, open_node, body):
    assert (await body(await client.get(VIEW + "?startkey=a"), 400))["error"] == "bad_request"
    for data in (b"{", b"[]"):
        headers = {"Content-Type": "application/json"}
        await body(await client.post(VIEW, data=data, headers=headers), 400)
    error = await body(await client.post(VIEW, data=b"{}"), 415)
    assert error["error"] == "bad_content_type"
    big = BytesIO(b" " * (QUERY_BODY_BYTES_MAX + 1))
    headers = {"Content-Type": "application/json"}
    assert (await body(await client.post(VIEW, data=big, headers=headers), 413))["error"]
    await body(await client.put(VIEW, json={}), 405)
    assert open_node.indexes.asked == []


async def test_several_queries_in_one(client, open_node, body):
    open_node.indexes.pieces = [b'{"rows":[]', b"}\n"]
    queries = {"queries": [{"key": 1}, {"limit": 2, "reduce": False}]}
    response = await client.post(VIEW + "/queries?reduce=true", json=queries)
    assert await body(response) == {"results": [{"rows": []}, {"rows": []}]}
    asked = [options for *_, options in open_node.indexes.asked]
    assert asked == [{"key": 1, "reduce": True}, {"limit": 2, "reduce": False}]
    assert await body(await client.post(VIEW + "/queries", json={"queries": []})) == {
        "results": []
    }


@pytest.mark.parametrize(
    "content", [{}, {"queries": 1}, {"queries": [1]}, {"queries": [{}, {"limit": -1}]}]
)
async def test_several_queries_are_looked_at_before_the_first_is_asked(
    client, open_node, body, content
):
    error = await body(await client.post(VIEW + "/queries", json=content), 400)
    assert error["error"] == "query_parse_error"
    assert open_node.indexes.asked == []


async def test_a_query_that_fails_among_several_is_the_answer(client, open_node, body):
    open_node.indexes.failure = UnavailableError("gone", code="index_unavailable")
    await body(await client.post(VIEW + "/queries", json={"queries": [{}, {}]}), 503)
    assert all(answer.is_closed for answer in open_node.indexes.answers)


async def test_what_is_known_of_an_index(client, body):
    info = await body(await client.get("/orders/_design/sales/_info"))
    assert (info["name"], info["view_index"]["signature"]) == ("sales", "s1")


async def test_indexes_are_compacted_and_cleaned_up(client, open_node, body):
    assert await body(await client.post("/orders/_compact/sales"), 202) == {"ok": True}
    assert await body(await client.post("/orders/_view_cleanup"), 202) == {"ok": True}
    assert open_node.indexes.compacted == [("orders", "sales")]
    assert open_node.indexes.cleaned == ["orders"]


async def test_temporary_views_are_gone(client, body):
    assert (await body(await client.post("/orders/_temp_view", json={}), 410))["error"] == "gone"


@pytest.mark.parametrize("path", ["_show/f", "_show/f/doc", "_list/f/v", "_rewrite/a/b"])
async def test_what_is_there_instead_of_show_and_list_functions_is_said(
    client, guarded, body, path
):
    for method in ("GET", "POST", "PUT", "DELETE"):
        response = await client.request(method, f"/orders/_design/x/{path}", json={})
        told = await body(response, 410)
        assert (told["error"], "_update" in told["reason"]) == ("gone", True)
    await body(await guarded.get(f"/orders/_design/x/{path}"), 401)


async def test_what_is_being_done(client, body):
    index, replication = await body(await client.get("/_active_tasks"))
    assert (index["database"], replication["type"]) == ("orders", "replication")


async def test_who_may_what(guarded, guarded_node, body, ada, bob, cleo):
    await body(await guarded.get(VIEW), 401)
    await body(await guarded.get(VIEW, headers=cleo), 403)
    await body(await guarded.get(VIEW, headers=bob))
    await body(await guarded.post(VIEW + "/queries", json={"queries": []}, headers=cleo), 403)
    await body(await guarded.get("/orders/_design/sales/_info", headers=cleo), 403)
    for path in ("/orders/_compact/sales", "/orders/_view_cleanup"):
        await body(await guarded.post(path, headers=bob), 403)
        await body(await guarded.post(path, headers=cleo), 202)
    await body(await guarded.get("/_active_tasks"), 401)
    assert await body(await guarded.get("/_active_tasks", headers=cleo)) == []
    assert len(await body(await guarded.get("/_active_tasks", headers=bob))) == 1
    assert len(await body(await guarded.get("/_active_tasks", headers=ada))) == 2
