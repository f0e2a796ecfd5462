from base64 import b64encode

import pytest

PATH = "/orders/_all_docs"


@pytest.fixture
async def filled(client, body):
    """Documents B, a, b, é and the deleted c."""
    docs = [{"_id": name, "n": name} for name in ("b", "é", "a", "B")]
    docs += [{"_id": "c", "_rev": "2-c", "_deleted": True}]
    for some, edits in ((docs[:4], True), (docs[4:], False)):
        asked = {"docs": some, "new_edits": edits}
        await body(await client.post("/orders/_bulk_docs", json=asked), 201)


async def test_none(client, body):
    assert await body(await client.get(PATH)) == {"total_rows": 0, "offset": 0, "rows": []}


async def test_the_end_of_the_changes_is_told_if_asked_for(client, body, filled):
    answer = await body(await client.get(PATH + "?update_seq=true&limit=1"))
    assert list(answer) == ["total_rows", "offset", "update_seq", "rows"]
    since = answer["update_seq"]
    assert (await body(await client.get(f"/orders/_changes?since={since}")))["results"] == []
    assert "update_seq" not in await body(await client.get(PATH))


async def test_all_in_the_order_of_bytes(client, body, filled):
    answer = await body(await client.get(PATH))
    assert (answer["total_rows"], answer["offset"]) == (4, 0)
    assert [row["id"] for row in answer["rows"]] == ["B", "a", "b", "é"]
    row = answer["rows"][0]
    assert set(row) == {"id", "key", "value"}
    assert row["value"]["rev"].startswith("1-")


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ('startkey="a"', "abé"),
        ('start_key="a"&end_key="b"', "ab"),
        ('startkey="a"&endkey="b"&inclusive_end=false', "a"),
        ("descending=true", "ébaB"),
        ('descending=true&startkey="b"&endkey="a"', "ba"),
        ('descending=true&startkey="b"&endkey="a"&inclusive_end=false', "b"),
        ('key="b"', "b"),
        ('key="c"', ""),
        ("skip=1&limit=2", "ab"),
        ("limit=0", ""),
        ("skip=9", ""),
        ('startkey="B"&endkey="a"', "Ba"),
        ('startkey="b"&endkey="a"', ""),
    ],
)
async def test_ranges(client, body, filled, options, ids):
    answer = await body(await client.get(f"{PATH}?{options}"))
    assert "".join(row["id"] for row in answer["rows"]) == ids
    assert answer["total_rows"] == 4


async def test_keys_are_answered_one_by_one(client, body, filled):
    keys = ["b", "none", "c", "b", 7, "", "x" * 300]
    rows = (await body(await client.post(PATH + "?include_docs=true", json={"keys": keys})))[
        "rows"
    ]
    assert [row["key"] for row in rows] == keys
    assert rows[0] == rows[3]
    assert rows[0]["doc"]["n"] == "b"
    assert rows[1] == {"key": "none", "error": "not_found"}
    assert rows[2] == {
        "id": "c", "key": "c", "value": {"rev": "2-c", "deleted": True}, "doc": None,
    }  # fmt: skip
    assert [row["error"] for row in rows[4:]] == ["not_found"] * 3
    asked = {"keys": ["a", "b", "B"], "skip": 1, "limit": 1, "descending": True}
    rows = (await body(await client.post(PATH, json=asked)))["rows"]
    assert [row["key"] for row in rows] == ["b"]
    assert (await body(await client.post(PATH, json={"keys": []})))["rows"] == []


async def test_documents_come_with_it(client, body):
    data = b64encode(b"abc").decode()
    docs = [
        {"_id": "a", "_rev": rev, "_attachments": {"x": {"data": data}}} for rev in ("1-a", "1-b")
    ]
    asked = {"docs": docs, "new_edits": False}
    assert await body(await client.post("/orders/_bulk_docs", json=asked), 201) == []
    options = "?include_docs=true&conflicts=true"
    [row] = (await body(await client.get(PATH + options)))["rows"]
    assert row["doc"]["_conflicts"] == ["1-a"]
    assert row["doc"]["_attachments"]["x"]["stub"]
    [row] = (await body(await client.get(PATH + options + "&attachments=true")))["rows"]
    assert row["doc"]["_attachments"]["x"]["data"] == data


async def test_several_queries(client, body, filled):
    asked = {"queries": [{"keys": ["a"]}, {"startkey": "b", "limit": 1}]}
    found = await body(await client.post(PATH + "/queries", json=asked))
    assert [[row["id"] for row in one["rows"]] for one in found["results"]] == [["a"], ["b"]]
    assert await body(await client.post(PATH + "/queries", json={"queries": []})) == {
        "results": []
    }
    for bad in ({}, {"queries": 7}, {"queries": [7]}, {"queries": [{}, {"startkey": 7}]}):
        await body(await client.post(PATH + "/queries", json=bad), 400)


@pytest.mark.parametrize(
    "options",
    [
        "limit=-1",
        "skip=x",
        "startkey=a",
        "startkey=7",
        "key={}",
        "descending=7",
        "keys=7",
    ],
)
async def test_bad_options(client, body, options):
    await body(await client.get(f"{PATH}?{options}"), 400)


@pytest.mark.parametrize("data", [b"{", b"[]", b"7", b"\xff", b'{"keys":7}', b"[" * 100_000])
async def test_bad_bodies(client, body, data):
    await body(await client.post(PATH, data=data), 400)
    await body(await client.post("/none/_all_docs", json={}), 404)


async def test_who_may_list(guarded, body, bob, cleo):
    await body(await guarded.get(PATH), 401)
    await body(await guarded.get(PATH, headers=cleo), 403)
    await body(await guarded.get(PATH, headers=bob))
    await body(await guarded.post(PATH + "/queries", json={"queries": []}, headers=cleo), 403)
