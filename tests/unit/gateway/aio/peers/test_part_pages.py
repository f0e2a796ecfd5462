import pytest

from millstream.errors import RoutingError
from millstream.model.cluster_maps import MapKey

PATH = "/_millstream/buckets/orders/part"
ASKED = {"design": "d", "view": "v", "options": {"limit": 5}, "partitions": [1, 3], "form": "part"}


async def test_a_part_is_streamed_as_it_is(client, open_node):
    open_node.indexes.pieces = [b"\x00\x01", b"\xff" * 100_000]
    response = await client.post(PATH, json=ASKED)
    assert (response.status, response.content_type) == (200, "application/octet-stream")
    assert await response.read() == b"\x00\x01" + b"\xff" * 100_000
    assert response.headers["ETag"] == '"e1"'
    assert open_node.indexes.asked == [("orders", "d", "v", {**ASKED, "keys": None})]
    await client.post(PATH, json={**ASKED, "keys": {"1": [2, 7]}})
    assert open_node.indexes.asked[1][3]["keys"] == {1: MapKey(2, 7)}
    assert all(answer.is_closed for answer in open_node.indexes.answers)


async def test_a_part_may_have_no_etag(client, open_node):
    open_node.indexes.head = {}
    response = await client.post(PATH, json=ASKED)
    assert (response.status, "ETag" in response.headers) == (200, False)


async def test_a_partition_that_is_not_here_is_said_to_be_so(client, open_node, body):
    open_node.indexes.refusal = RoutingError("moved")
    answered = await body(await client.post(PATH, json=ASKED), 503)
    assert answered == {"error": "not_my_partition", "reason": "moved"}
    open_node.indexes.refusal.records = {3: {"at": [2, 7], "owner": "n"}}
    answered = await body(await client.post(PATH, json=ASKED), 503)
    assert answered["records"] == {"3": {"at": [2, 7], "owner": "n"}}


@pytest.mark.parametrize(
    "asked",
    [{}, {**ASKED, "form": "x"}, {**ASKED, "partitions": ["1"]}, {**ASKED, "more": 1}],
)
async def test_what_asks_for_no_part_is_refused(client, body, asked):
    assert (await body(await client.post(PATH, json=asked), 400))["error"] == "bad_request"


async def test_only_administrators_ask(guarded, body, ada, bob):
    await body(await guarded.post(PATH, json=ASKED), 401)
    await body(await guarded.post(PATH, json=ASKED, headers=bob), 403)
    assert (await guarded.post(PATH, json=ASKED, headers=ada)).status == 200
