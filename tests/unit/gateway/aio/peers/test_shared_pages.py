async def test_what_other_nodes_are_told(client, body):
    assert (await body(await client.get("/_millstream/shared")))["kv"] == 1
    shown = await body(await client.get("/_millstream/buckets/orders/shared"))
    assert shown == {"name": "orders"}
    await body(await client.get("/_millstream/buckets/none/shared"), 404)


async def test_only_nodes_and_administrators_ask(guarded, body, bob):
    for path in ("/_millstream/shared", "/_millstream/buckets/orders/shared"):
        await body(await guarded.get(path), 401)
        await body(await guarded.get(path, headers=bob), 403)
