"""What a request for a list asks for."""

import pytest

from millstream.gateway.aio import parsing

PATH = "/orders/_all_docs"


@pytest.mark.parametrize("small_bytes", [0, 64 * 1024])
async def test_body_and_address_are_put_together_wherever_that_is_done(
    client, body, monkeypatch, small_bytes
):
    monkeypatch.setattr(parsing, "SMALL_TEXT_BYTES", small_bytes)
    await body(await client.put("/orders/b", json={}), 201)
    asked = {"keys": ["a", "b", 7], "limit": 3}
    found = await body(await client.post(PATH + "?limit=2", json=asked))
    assert [row["key"] for row in found["rows"]] == ["a", "b"]
    found = await body(await client.post(PATH + "?descending=true&skip=1", json=asked))
    assert [row["key"] for row in found["rows"]] == ["b", "a"]
    found = await body(await client.post(PATH, json={"startkey": "a", "endkey": "c"}))
    assert [row["key"] for row in found["rows"]] == ["b"]
    assert (await client.post("/orders/_design_docs", json=asked)).status == 400
    found = await client.post(PATH + "/queries", json={"queries": [asked, {"limit": 0}]})
    assert [len(one["rows"]) for one in (await body(found))["results"]] == [3, 0]
