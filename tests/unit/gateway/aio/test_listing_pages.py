import pytest


@pytest.fixture
async def filled(client, body):
    docs = [{"_id": name, "n": number} for number, name in enumerate(["b", "a", "c", "é", "B"])]
    made = await body(await client.post("/orders/_bulk_docs", json={"docs": docs}), 201)
    await body(await client.delete(f"/orders/c?rev={made[2]['rev']}"))
    return client


async def ids(client, body, options=""):
    found = await body(await client.get(f"/orders/_all_docs{options}"))
    return [row["id"] for row in found["rows"]]


async def test_documents_are_listed_by_the_bytes_of_their_ids(filled, body):
    found = await body(await filled.get("/orders/_all_docs"))
    assert (found["total_rows"], found["offset"]) == (4, 0)
    assert [row["id"] for row in found["rows"]] == ["B", "a", "b", "é"]
    assert found["rows"][0]["key"] == "B"
    assert found["rows"][0]["value"]["rev"].startswith("1-")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ('?startkey="a"', ["a", "b", "é"]),
        ('?startkey="a"&endkey="b"', ["a", "b"]),
        ('?startkey="a"&endkey="b"&inclusive_end=false', ["a"]),
        ('?key="b"', ["b"]),
        ('?key="c"', []),
        ("?descending=true", ["é", "b", "a", "B"]),
        ('?descending=true&startkey="b"&endkey="B"', ["b", "a", "B"]),
        ('?descending=true&startkey="b"&endkey="B"&inclusive_end=false', ["b", "a"]),
        ("?skip=1&limit=2", ["a", "b"]),
        ("?limit=0", []),
    ],
)
async def test_ranges(filled, body, options, found):
    assert await ids(filled, body, options) == found


async def test_keys_are_answered_in_their_order(filled, body):
    found = await body(
        await filled.post("/orders/_all_docs", json={"keys": ["b", "c", "none", "b", 7]})
    )
    rows = found["rows"]
    assert [row.get("id") for row in rows] == ["b", "c", None, "b", None]
    assert rows[1]["value"]["deleted"] is True
    assert rows[2] == {"key": "none", "error": "not_found"}
    whole = await body(
        await filled.post("/orders/_all_docs?include_docs=true", json={"keys": ["c", "b"]})
    )
    assert whole["rows"][0]["doc"] is None
    assert whole["rows"][1]["doc"]["n"] == 0


async def test_documents_may_be_beside_the_rows(filled, body):
    docs = [{"_id": "a", "_rev": "1-z", "x": 1}, {"_id": "a", "_rev": "1-y"}]
    sent = {"docs": docs, "new_edits": False}
    await body(await filled.post("/orders/_bulk_docs", json=sent), 201)
    found = await body(
        await filled.get('/orders/_all_docs?include_docs=true&conflicts=true&key="a"')
    )
    document = found["rows"][0]["doc"]
    assert document["_rev"] == "1-z"
    assert "1-y" in document["_conflicts"]


async def test_several_queries_at_once(filled, body):
    asked = {"queries": [{"keys": ["b"]}, {"startkey": "é"}]}
    found = await body(await filled.post("/orders/_all_docs/queries", json=asked))
    assert [[row["id"] for row in one["rows"]] for one in found["results"]] == [["b"], ["é"]]
    assert await body(await filled.post("/orders/_all_docs/queries", json={"queries": []})) == {
        "results": []
    }


async def test_wrong_options_and_rights(client, guarded, body, bob):
    await body(await client.get("/orders/_all_docs?limit=x"), 400)
    await body(await client.get("/orders/_all_docs?reduce=true"), 400)
    await body(await client.get("/none/_all_docs"), 404)
    await body(await guarded.get("/orders/_all_docs"), 401)
    await body(await guarded.get("/orders/_all_docs", headers=bob))
