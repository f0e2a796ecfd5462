from millstream.documents.sent import parse_sent
from millstream.documents.updating import interactive
from millstream.gateway.aio.writing import VALIDATION_TRIES_MAX


def change(host, text):
    """Change a document underneath."""
    documents = host.documents.database("orders").documents
    documents["x"] = interactive(documents.get("x"), parse_sent(text), revs_limit=9).document
    return documents["x"].winner.rev


async def test_a_function_refuses_a_change(client, open_host, body):
    open_host.functions.refuse = b"bad"
    await body(await client.put("/orders/x", json={"n": 1}), 201)
    answer = await body(await client.put("/orders/y", json={"bad": 1}), 403)
    assert answer == {"error": "forbidden", "reason": "not that"}
    await body(await client.get("/orders/y"), 404)
    told = await body(
        await client.post("/orders/_bulk_docs", json={"docs": [{"bad": 1}, {"good": 1}]}), 201
    )
    assert [one.get("error") for one in told] == ["forbidden", None]


async def test_it_sees_what_was_and_what_is_to_be(client, open_host, body):
    open_host.functions.refuse = b"bad"
    made = await body(await client.put("/orders/x", json={"n": 1}), 201)
    await body(await client.delete(f"/orders/x?rev={made['rev']}"))
    (first,), user, security = open_host.functions.asked[0]
    assert first.old is None
    assert b'"_revisions"' in first.new
    assert (user["db"], user["roles"], security) == ("orders", ["_admin"], b"{}")
    (second,), _, _ = open_host.functions.asked[1]
    assert b'"n":1' in second.old
    assert b'"_deleted":true' in second.new


async def test_conflicts_and_designs_are_not_asked(client, open_host, body):
    await body(await client.put("/orders/x", json={}), 201)
    open_host.functions.refuse = b"_design"
    await body(await client.put("/orders/x", json={}), 409)
    await body(await client.put("/orders/_design/d", json={}), 201)
    assert open_host.functions.asked == []


async def test_what_changed_meanwhile_is_validated_anew(client, open_host, body):
    functions = open_host.functions
    functions.refuse = b"bad"
    made = await body(await client.put("/orders/x", json={}), 201)
    functions.asked.clear()

    def meanwhile():
        functions.meanwhile = lambda: None
        change(open_host, b'{"_rev":"%b","n":2}' % made["rev"].encode())

    functions.meanwhile = meanwhile
    sent = {"_rev": "2-a", "_revisions": {"start": 2, "ids": ["a", made["rev"][2:]]}}
    await body(await client.put("/orders/x?new_edits=false", json=sent), 201)
    assert len(functions.asked) == 2
    shown = await body(await client.get("/orders/x?conflicts=true"))
    assert {shown["_rev"], *shown["_conflicts"]} >= {"2-a"}


async def test_it_is_given_up_at_last(client, open_host, body):
    functions, count = open_host.functions, 0
    functions.refuse = b"bad"

    def meanwhile():
        nonlocal count
        count += 1
        documents = open_host.documents.database("orders").documents
        before = documents.get("x")
        rev = b"" if before is None else b',"_rev":"%b"' % before.winner.rev.encode()
        change(open_host, b'{"n":%d%b}' % (count, rev))

    functions.meanwhile = meanwhile
    sent = {"_rev": "1-a"}
    answer = await body(await client.put("/orders/x?new_edits=false", json=sent), 503)
    assert answer["error"] == "temporarily_unavailable"
    assert count == VALIDATION_TRIES_MAX


async def test_a_design_document_has_to_compile(client, open_host, body):
    from millstream.errors import UsageError

    open_host.designs.refusal = UsageError("no", code="compilation_error")
    await body(await client.put("/orders/_design/d", json={}), 400)
    told = await body(
        await client.post(
            "/orders/_bulk_docs",
            json={"docs": [{"_id": "_design/d", "_rev": "1-a"}, {"_id": "x", "_rev": "1-a"}],
                  "new_edits": False},
        ), 201
    )  # fmt: skip
    assert [one["id"] for one in told] == ["_design/d"]
    gone = {"_id": "_design/d", "_rev": "1-a", "_deleted": True}
    sent = {"docs": [gone], "new_edits": False}
    assert await body(await client.post("/orders/_bulk_docs", json=sent), 201) == []
