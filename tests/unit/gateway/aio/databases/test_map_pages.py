from typing import Any

import pytest

from millstream.model.bucket_map import BucketMap, NodeAddress, bucket_map_to_json

PATH = "/_millstream/buckets/orders/map"
NODES = (NodeAddress("a", "10.0.0.1", 11210, 5984), NodeAddress("b", "10.0.0.2", 11210, 5984))
MAP = BucketMap(4, NODES, (("a", "b"), ("b", None)))
GIVEN: dict[str, Any] = {
    "uuid": "u1",
    "partitions": 2,
    "this": "a",
    **bucket_map_to_json(MAP),
}


async def test_a_map_is_given_and_shown(client, body, open_node):
    error = await body(await client.get(PATH), 404)
    assert error["error"] == "map_not_found"
    answer = await body(await client.put(PATH, json=GIVEN))
    assert open_node.maps == {"orders": (MAP, "a")}
    assert open_node.given == [("orders", "u1", 2)]
    assert answer == {**GIVEN, "left_over": [1]}, "the second copy is dead, and not placed here"
    assert await body(await client.get(PATH)) == answer
    listed = await body(await client.get("/_millstream/buckets/orders/partitions"))
    assert [copy["places"] for copy in listed["partitions"]] == [["a", "b"], ["b", None]]


async def test_what_is_shown_may_be_given_again(client, body, open_node):
    shown = await body(await client.put(PATH, json=GIVEN))
    assert await body(await client.put(PATH, json={**shown, "revision": 5})) == {
        **shown,
        "revision": 5,
    }


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"revision": 0}, "bad_map_revision"),
        ({"nodes": []}, "bad_map_nodes"),
        ({"rows": [["a"], ["c"]]}, "unknown_node"),
        ({"this": "c"}, "unknown_node"),
        ({"this": None}, "bad_node_name"),
        ({"uuid": 5}, "bad_bucket_uuid"),
        ({"partitions": "2"}, "bad_partitions"),
        ({"partitions": True}, "bad_partitions"),
    ],
)
async def test_a_faulty_map_changes_nothing(client, body, open_node, change, code):
    error = await body(await client.put(PATH, json={**GIVEN, **change}), 400)
    assert error["error"] == code
    assert open_node.maps == {}


async def test_of_an_unknown_bucket_there_is_no_map(client, body):
    error = await body(await client.get("/_millstream/buckets/none/map"), 404)
    assert error["error"] == "bucket_not_found"


async def test_only_administrators_see_and_give_maps(guarded, body, bob, ada):
    for method in ("get", "put"):
        await body(await getattr(guarded, method)(PATH), 401)
        await body(await getattr(guarded, method)(PATH, headers=bob), 403)
    await body(await guarded.put(PATH, json=GIVEN, headers=ada))
