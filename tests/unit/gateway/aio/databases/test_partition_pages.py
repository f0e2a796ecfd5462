import pytest

PATH = "/_millstream/buckets/orders/partitions"


async def test_copies_are_shown(client, body):
    listed = (await body(await client.get(PATH)))["partitions"]
    assert [copy["state"] for copy in listed] == ["active", "dead"]
    one = await body(await client.get(f"{PATH}/1"))
    assert one == listed[1]
    assert one == {
        "partition": 1,
        "state": "dead",
        "high_seqno": 7,
        "persisted_seqno": 6,
        "purge_seqno": 2,
        "received_seqno": 8,
        "failover_log": [
            {"uuid": "00000000beef", "seqno": 3, "branch": 9},
            {"uuid": "00000000000a", "seqno": 0, "branch": 1},
        ],
        "places": [],
        "follows": None,
    }


async def test_states_are_set(client, body):
    set_ = await body(await client.put(f"{PATH}/0", json={"state": "replica"}))
    assert (set_["partition"], set_["state"]) == (0, "replica")
    error = await body(await client.put(f"{PATH}/0", json={"state": "pending"}), 409)
    assert error["error"] == "illegal_move"
    for content in ({}, {"state": "ACTIVE"}, {"state": 1}):
        error = await body(await client.put(f"{PATH}/0", json=content), 400)
        assert error["error"] == "bad_state"


async def test_a_copy_becomes_active_in_the_branch_it_promised(client, body):
    asked = {"state": "active", "branch": 9}
    assert (await body(await client.put(f"{PATH}/1", json=asked)))["state"] == "active"
    error = await body(await client.put(f"{PATH}/1", json=asked | {"branch": 8}), 409)
    assert error["error"] == "not_promised"
    error = await body(await client.put(f"{PATH}/1", json=asked | {"state": "replica"}), 400)
    assert error["error"] == "bad_state"
    await body(await client.put(f"{PATH}/1", json=asked | {"branch": "9"}), 400)


async def test_a_partition_is_taken_over(client, body):
    asked = {"state": "active", "take_over": True}
    await body(await client.put(f"{PATH}/0", json={"state": "replica"}))
    assert (await body(await client.put(f"{PATH}/0", json=asked)))["state"] == "active"
    error = await body(await client.put(f"{PATH}/1", json=asked), 503)
    assert error["error"] == "not_taken_over"
    for wrong in ({"state": "replica"}, {"branch": 9}, {"take_over": 1}):
        error = await body(await client.put(f"{PATH}/0", json=asked | wrong), 400)
        assert error["error"] == "bad_state"


async def test_copies_are_rolled_back(client, body, open_node):
    asked = len(open_node.rolled_back)
    answer = await body(await client.post(f"{PATH}/1/rollback", json={"seqno": 5}))
    assert answer["partition"] == 1
    assert open_node.rolled_back[asked:] == [("orders", 1, 5)]
    for seqno in (None, -1, "5", True, 1.5):
        error = await body(await client.post(f"{PATH}/1/rollback", json={"seqno": seqno}), 400)
        assert error["error"] == "bad_seqno"


@pytest.mark.parametrize("number", ["2", "-1", "x", "1e0", "%C2%B2"])
async def test_what_is_not_there_is_not_found(client, body, number):
    error = await body(await client.get(f"{PATH}/{number}"), 404)
    assert error["error"] == "partition_not_found"


async def test_of_an_unknown_bucket_there_are_no_copies(client, body):
    error = await body(await client.get("/_millstream/buckets/none/partitions"), 404)
    assert error["error"] == "bucket_not_found"


async def test_only_administrators_see_and_change_copies(guarded, body, bob):
    for method, path in (
        ("get", PATH), ("get", f"{PATH}/0"), ("put", f"{PATH}/0"), ("post", f"{PATH}/0/rollback")
    ):  # fmt: skip
        await body(await getattr(guarded, method)(path), 401)
        await body(await getattr(guarded, method)(path, headers=bob), 403)
