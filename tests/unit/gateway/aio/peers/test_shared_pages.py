import pytest

from millstream.gateway.aio.peers.shared_pages import ASKED_DOCUMENTS_MAX

DOCUMENTS = "/_millstream/buckets/orders/documents"


async def test_what_other_nodes_are_told(client, body):
    assert (await body(await client.get("/_millstream/shared")))["kv"] == 1
    shown = await body(await client.get("/_millstream/buckets/orders/shared"))
    assert shown == {"name": "orders"}
    await body(await client.get("/_millstream/buckets/none/shared"), 404)


async def test_documents_are_answered_in_order(client, body):
    asked = {"documents": [["a", None], ["none", "1-x"], ["b"]]}
    answered = await body(await client.post(DOCUMENTS, json=asked))
    assert answered == {"documents": [{"_id": "a"}, None, {"_id": "b"}]}
    moved = await client.post("/_millstream/buckets/other/documents", json=asked)
    assert (await body(moved, 503))["error"] == "not_my_partition"


@pytest.mark.parametrize(
    "asked",
    [{}, {"documents": []}, {"documents": [[1]]}, {"documents": "a"},
     {"documents": [["a"]] * (ASKED_DOCUMENTS_MAX + 1)}],
)  # fmt: skip
async def test_what_asks_for_no_documents(client, body, asked):
    assert (await body(await client.post(DOCUMENTS, json=asked), 400))["error"] == "bad_request"


async def test_only_nodes_and_administrators_ask(guarded, body, bob):
    for path in ("/_millstream/shared", "/_millstream/buckets/orders/shared"):
        await body(await guarded.get(path), 401)
        await body(await guarded.get(path, headers=bob), 403)
    await body(await guarded.post(DOCUMENTS, json={}), 401)
    await body(await guarded.post(DOCUMENTS, json={}, headers=bob), 403)
