import pytest

CHECKPOINT = {"session_id": "s", "history": [{"recorded_seq": 1.0}]}


async def test_a_checkpoint_is_kept_and_replaced(client, body):
    path = "/orders/_local/abc"
    await body(await client.get(path), 404)
    made = await body(await client.put(path, json=CHECKPOINT), 201)
    assert made == {"ok": True, "id": "_local/abc", "rev": "0-1"}
    found = await client.get(path)
    assert await found.text() == (
        '{"_id":"_local/abc","_rev":"0-1","session_id":"s","history":[{"recorded_seq": 1.0}]}\n'
    )
    again = await body(await client.put(path, json=CHECKPOINT | {"_rev": "0-1"}), 201)
    assert again["rev"] == "0-2"
    stale = await body(await client.put(path, json=CHECKPOINT | {"_rev": "0-1"}), 409)
    assert stale["error"] == "conflict"
    blind = await body(await client.put("/orders/_local%2Fabc", json={}), 201)
    assert blind["rev"] == "0-1"


async def test_it_is_deleted(client, body):
    path = "/orders/_local/abc"
    await body(await client.put(path, json={}), 201)
    gone = await body(await client.delete(path + "?rev=0-1"))
    assert gone["rev"] == "0-0"
    await body(await client.get(path), 404)
    await body(await client.delete(path), 404)
    await body(await client.put(path, json={}), 201)
    await body(await client.put(path, json={"_deleted": True, "_rev": "0-1"}), 201)
    await body(await client.get(path), 404)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "bad_request"),
        ("[]", "bad_request"),
        ('{"_rev": "1-abc"}', "bad_request"),
        ('{"_rev": 7}', "bad_request"),
        ('{"_odd": 1}', "doc_validation"),
    ],
)
async def test_what_is_refused(client, body, text, error):
    assert (await body(await client.put("/orders/_local/x", data=text), 400))["error"] == error


async def test_attachments_are_passed_over_and_none_can_be_asked_for(client, body):
    sent = {"n": 1, "_attachments": {"a": {"data": "", "content_type": "text/plain"}}}
    await body(await client.put("/orders/_local/x", json=sent), 201)
    assert (await body(await client.get("/orders/_local/x?attachments=true"))) == {
        "_id": "_local/x", "_rev": "0-1", "n": 1
    }  # fmt: skip
    for answer in (
        await client.get("/orders/_local/x/a"),
        await client.get("/orders/_local/none/a/b"),
        await client.put("/orders/_local/x/a", data=b"1"),
    ):
        found = await body(answer, 400)
        assert found["reason"] == "_local documents do not accept attachments."


async def test_the_address_names_one_whatever_id_is_in_it(client, body):
    sent = {"_id": "_local/other", "n": 1}
    assert (await body(await client.put("/orders/_local/x", json=sent), 201))["id"] == "_local/x"
    assert (await body(await client.get("/orders/_local/x")))["_id"] == "_local/x"


async def test_they_are_listed_and_copied(client, body):
    for name in ("b", "a"):
        await body(await client.put(f"/orders/_local/{name}", json={"n": name}), 201)
    copied = await client.request("COPY", "/orders/_local/a", headers={"Destination": "_local/c"})
    assert (await body(copied, 201))["id"] == "_local/c"
    listed = await body(await client.get("/orders/_local_docs"))
    assert [row["id"] for row in listed["rows"]] == ["_local/a", "_local/b", "_local/c"]
    assert listed["total_rows"] is None
    some = await body(await client.post("/orders/_local_docs", json={"keys": ["_local/b", "x"]}))
    assert [row.get("error") for row in some["rows"]] == [None, "not_found"]


async def test_rights(guarded, body, ada, bob, cleo):
    await body(await guarded.put("/orders/_local/x", json={}), 401)
    await body(await guarded.put("/orders/_local/x", json={}, headers=bob), 403)
    await body(await guarded.put("/orders/_local/x", json={}, headers=ada), 201)
    await body(await guarded.get("/orders/_local/x", headers=bob))
    assert (await body(await guarded.get("/none/_local/x", headers=ada), 404))["reason"] == (
        "Database does not exist."
    )
