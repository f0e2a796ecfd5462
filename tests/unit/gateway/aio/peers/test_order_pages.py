import base64
import io

import pytest

from millstream.access.users import UserStore

PATHS = ("member", "reign")


def basic(name, password):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


async def test_members_are_asked(client, body, open_node):
    assert await body(await client.get("/_millstream/cluster/member")) == {"cluster": "c1"}
    assert await body(await client.get("/_millstream/cluster/reign")) == {"plan": None}
    sent = b"x" * 3_000_000
    assert await body(await client.post("/_millstream/cluster/orders", data=io.BytesIO(sent))) == {
        "replies": []
    }
    assert await body(await client.post("/_millstream/cluster/held", data=b"{}")) == {"node": "n1"}
    assert open_node.cluster.taken == [sent, b"{}"]


async def test_only_nodes_and_administrators_ask(guarded, body, bob):
    for path in PATHS:
        await body(await guarded.get(f"/_millstream/cluster/{path}"), 401)
        await body(await guarded.get(f"/_millstream/cluster/{path}", headers=bob), 403)


@pytest.mark.parametrize("page", ["orders", "held"])
async def test_only_nodes_give_orders(guarded, guarded_node, body, bob, page):
    path = f"/_millstream/cluster/{page}"
    await body(await guarded.post(path, data=b"x"), 401)
    for user in (bob, basic("ada", "secret")):
        await body(await guarded.post(path, data=b"x", headers=user), 403)
    assert guarded_node.cluster.taken == []


@pytest.fixture(scope="module")
def users_of_a_cluster():
    users = UserStore(node_secret="secret of the cluster")
    users.put("ada", "secret", ["admin"])
    return users


async def test_a_node_logs_in_with_the_secret_of_the_cluster(
    guarded, guarded_node, body, users_of_a_cluster
):
    guarded_node.users = users_of_a_cluster
    node = basic("@node", "secret of the cluster")
    path = "/_millstream/cluster/orders"
    assert await body(await guarded.post(path, data=b"x", headers=node)) == {"replies": []}
    assert guarded_node.cluster.taken == [b"x"]
