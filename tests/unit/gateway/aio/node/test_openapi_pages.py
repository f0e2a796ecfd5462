"""The page that tells the pages."""

ADDRESS = "/_millstream/openapi.json"


async def test_a_node_tells_its_pages(client, dataless, body):
    found = await body(await client.get(ADDRESS))
    assert found["openapi"] == "3.1.0"
    assert "/_millstream/samples" in found["paths"]
    without = await body(await dataless.get(ADDRESS))
    assert "/_millstream/samples" in without["paths"]
    assert "/_millstream/buckets/{name}/map" not in without["paths"], "it has no such page"


async def test_who_is_logged_in_is_told(guarded, bob, body):
    await body(await guarded.get(ADDRESS), 401)
    assert (await body(await guarded.get(ADDRESS, headers=bob)))["paths"]
