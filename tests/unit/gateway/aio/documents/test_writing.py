import json

import pytest

from millstream.documents.json_text import LARGE_BYTES
from millstream.errors import AccessError, UnavailableError
from millstream.gateway.aio.documents import writing
from millstream.gateway.aio.documents.writing import VALIDATION_TRIES_MAX

PATH = "/orders/d"
AS_JSON = {"Accept": "application/json"}


@pytest.fixture
def judged(open_node):
    """What validators were shown; `bad` is refused."""
    seen = []

    def judge(new, old):
        seen.append((json.loads(new), None if old is None else json.loads(old)))
        return AccessError("no", code="forbidden") if b'"bad"' in new else None

    open_node.functions.judge = judge
    return seen


async def test_who_refuses_and_what_is_shown(client, open_node, body, judged):
    refused = {"error": "forbidden", "reason": "no"}
    assert await body(await client.put(PATH, json={"bad": 1}), 403) == refused
    made = await body(await client.put(PATH, json={"n": 1}), 201)
    await body(await client.delete(f"{PATH}?rev={made['rev']}"))
    (_, none), (new, nothing), (gone, old) = judged
    assert none is nothing is None
    sig = made["rev"][2:]
    assert new == {
        "_id": "d",
        "_rev": made["rev"],
        "n": 1,
        "_revisions": {"start": 1, "ids": [sig]},
    }
    assert (gone["_deleted"], old) == (True, {"_id": "d", "_rev": made["rev"], "n": 1})
    user = {"db": "orders", "name": None, "roles": ["_admin"]}
    assert open_node.functions.asked == [(user, b"{}")] * 3


async def test_what_changes_nothing_and_designs_are_not_judged(client, body, judged):
    await body(await client.put(PATH + "?new_edits=false", json={"_rev": "1-a"}), 201)
    await body(await client.put(PATH + "?new_edits=false", json={"_rev": "1-a", "bad": 1}), 201)
    await body(await client.put("/orders/_design/x", json={"bad": 1}), 201)
    await body(await client.put(PATH, json={"bad": 1}), 409)
    assert len(judged) == 1


async def test_a_change_underneath_is_judged_again(client, open_node, body):
    shown = []

    def judge(new, old):
        shown.append(old and json.loads(old)["_rev"])
        if len(shown) == 1:
            documents = open_node.documents.database("orders").documents
            documents["d"] = documents["other"]
        return

    made = await body(await client.put("/orders/other", json={}), 201)
    open_node.functions.judge = judge
    await body(await client.put(PATH + "?new_edits=false", json={"_rev": "1-zz"}), 201)
    assert shown == [None, made["rev"]]
    found = await body(await client.get(PATH + "?conflicts=true"))
    assert (found["_rev"], found["_conflicts"]) == ("1-zz", [made["rev"]])


async def test_an_edit_that_is_overtaken_conflicts(client, open_node, body):
    def judge(new, old):
        documents = open_node.documents.database("orders").documents
        documents["d"] = documents["other"]

    await body(await client.put("/orders/other", json={}), 201)
    open_node.functions.judge = judge
    assert (await body(await client.put(PATH, json={"n": 1}), 409))["error"] == "conflict"


async def test_a_document_that_never_rests(client, open_node, body):
    docs = [{"_id": f"x{n}", "_rev": f"1-{n}"} for n in range(2)]
    asked = {"docs": docs, "new_edits": False}
    await body(await client.post("/orders/_bulk_docs", json=asked), 201)
    turns = []

    def judge(new, old):
        documents = open_node.documents.database("orders").documents
        documents["d"] = documents[f"x{len(turns) % 2}"]
        turns.append(1)

    open_node.functions.judge = judge
    error = await body(await client.put(PATH + "?new_edits=false", json={"_rev": "1-z"}), 503)
    assert error["error"] == "temporarily_unavailable"
    assert len(turns) == VALIDATION_TRIES_MAX


async def test_two_edits_of_one_document_at_once(client, open_node, body, judged):
    asked = {"docs": [{"_id": "d", "n": 1}, {"_id": "d", "n": 2}]}
    first, second = await body(await client.post("/orders/_bulk_docs", json=asked), 201)
    assert (first["ok"], second["error"]) == (True, "conflict")


async def test_users_are_told_to_validators(guarded, guarded_node, body, ada):
    guarded_node.functions.judge = lambda new, old: None
    await body(await guarded.put("/orders/told", json={}, headers=ada), 201)
    guarded_node.functions.judge = None
    assert guarded_node.functions.asked[-1][0] == {
        "db": "orders", "name": "ada", "roles": ["_admin"],
    }  # fmt: skip


async def test_many_changes_of_one_document_are_judged_one_after_the_other(client, body, judged):
    count = 2 * VALIDATION_TRIES_MAX
    docs = [{"_id": "d", "_rev": f"1-{n:032x}", "n": n} for n in range(count)]
    docs[5]["bad"] = 1
    sent = {"docs": docs, "new_edits": False}
    refused = await body(await client.post("/orders/_bulk_docs", json=sent), 201)
    assert [(one["id"], one["rev"], one["error"]) for one in refused] == [
        ("d", docs[5]["_rev"], "forbidden")
    ]
    assert len(await body(await client.get(f"{PATH}?open_revs=all", headers=AS_JSON))) == count - 1
    assert [new["n"] for new, _ in judged] == list(range(count))
    winners = [-1 if old is None else old["n"] for _, old in judged]
    assert winners == [-1, 0, 1, 2, 3, 4, 4, *range(6, count - 1)]


async def test_a_large_document_that_cannot_be_read_is_refused_alone(
    client, open_node, body, monkeypatch
):
    documents, read = open_node.documents, open_node.documents.read

    async def failing(bucket, doc_id, *, is_durable=False):
        if doc_id == "large":
            raise UnavailableError("its node is away", code="node_failed")
        return await read(bucket, doc_id, is_durable=is_durable)

    monkeypatch.setattr(documents, "read", failing)
    asked = {"docs": [{"_id": "a"}, {"_id": "large", "x": "x" * LARGE_BYTES}, {"_id": "b"}]}
    told = await body(await client.post("/orders/_bulk_docs", json=asked), 201)
    assert [(one["id"], one.get("error")) for one in told] == [
        ("a", None), ("large", "node_failed"), ("b", None),
    ]  # fmt: skip
    assert set(documents.database("orders").documents) == {"a", "b"}


@pytest.mark.parametrize("is_judged", [False, True])
async def test_a_large_document_is_read_and_signed_once(
    client, open_node, body, monkeypatch, is_judged
):
    signed, read = [], []
    sign, read_one = writing.signature_of, open_node.documents.read

    def signing(*texts, **said):
        signed.append(said["parent"])
        return sign(*texts, **said)

    async def reading(bucket, doc_id, *, is_durable=False):
        read.append(doc_id)
        return await read_one(bucket, doc_id, is_durable=is_durable)

    monkeypatch.setattr(writing, "signature_of", signing)
    monkeypatch.setattr(open_node.documents, "read", reading)
    open_node.functions.judge = (lambda new, old: None) if is_judged else None
    await body(await client.put(PATH, json={"x": "x" * LARGE_BYTES}), 201)
    assert (signed, read) == ([None], ["d"])
