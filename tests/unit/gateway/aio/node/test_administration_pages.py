import pytest

NODE = "/_node/_local"


async def test_who_is_there_and_who_does_not_answer(client, open_node, body):
    here, there = "millstream@127.0.0.1:2", "millstream@[fd00::2]:4"
    told = await body(await client.get("/_membership"))
    assert told == {"all_nodes": [here, there], "cluster_nodes": [here, there]}
    open_node.silent = {"[fd00::2]:4"}
    told = await body(await client.get("/_membership"))
    assert told == {"all_nodes": [here], "cluster_nodes": [here, there]}
    assert await body(await client.get(NODE)) == {"name": here}
    assert await body(await client.get(f"/_node/{here}")) == {"name": here}
    for page in ("", "/_stats", "/_config"):
        told = await body(await client.get(f"/_node/{there}{page}"), 404)
        assert "tells of itself alone" in told["reason"]


async def test_figures_are_those_of_the_metrics(client, open_node, body):
    told = await body(await client.get(NODE + "/_stats"))
    metrics = open_node.metrics()
    node = told["millstream"]["node"]
    assert node.keys() == metrics.node.keys()
    assert {name: one["value"] for name, one in node.items()} == dict(metrics.node)
    assert told["millstream"]["buckets"].keys() == metrics.buckets.keys()
    kinds = {
        one["type"] for bucket in told["millstream"]["buckets"].values() for one in bucket.values()
    }
    assert kinds <= {"counter", "gauge", "histogram"}
    name = next(iter(node))
    one = await body(await client.get(f"{NODE}/_stats/millstream/node/{name}"))
    assert one == node[name]
    assert one["desc"]
    await body(await client.get(f"{NODE}/_stats/millstream/none"), 404)
    await body(await client.get(f"{NODE}/_stats/millstream/node/{name}/value/x"), 404)


async def test_settings_are_read_and_not_changed(client, open_node, body):
    settings = await body(await client.get(NODE + "/_config"))
    assert settings["couchdb"]["uuid"] == open_node.uuid
    assert all(isinstance(v, str) for section in settings.values() for v in section.values())
    for section, members in settings.items():
        assert await body(await client.get(f"{NODE}/_config/{section}")) == members
        for name, value in members.items():
            assert await body(await client.get(f"{NODE}/_config/{section}/{name}")) == value
    assert await body(await client.get(NODE + "/_config/none")) == {}
    told = await body(await client.get(NODE + "/_config/couchdb/none"), 404)
    assert told == {"error": "not_found", "reason": "unknown_config_value"}
    for method in ("PUT", "DELETE"):
        refused = await client.request(method, NODE + "/_config/couchdb/uuid", data=b'"x"')
        assert (await body(refused, 400))["error"] == "not_supported"


@pytest.mark.parametrize("path", ["/_membership", NODE, NODE + "/_stats", NODE + "/_config"])
async def test_only_administrators_are_told(guarded, body, path, ada, bob):
    await body(await guarded.get(path), 401)
    await body(await guarded.get(path, headers=bob), 403)
    told = await body(await guarded.get(path, headers=ada))
    assert "secret" not in str(told)
