import asyncio

import pytest

import millstream
from millstream.client.connection import Connection
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.node.embedded import EmbeddedNode, Node


async def test_a_node_in_the_callers_loop(tmp_path):
    async with Node(tmp_path / "d", buckets=["a:4"]) as node:
        assert node.bucket("a").partition_count == 4
        await node.create_bucket("b", 2)
        assert node.bucket("b").name == "b"
        await node.delete_bucket("b")
        with pytest.raises(KeyError):
            node.bucket("b")
        assert node.memcached is None
        assert node.failure is None
        address = node.kv.rpartition(":")
        await asyncio.to_thread(
            lambda: Connection(address[0], int(address[2]), bucket="a").close()
        )
    with pytest.raises(UnavailableError, match="does not run"):
        _ = node.kv
    await node.stop()


def test_a_node_in_its_own_thread(tmp_path):
    with EmbeddedNode(tmp_path / "d", users=["ada:secret"], memcached="127.0.0.1:0") as node:
        host, _, port = node.kv.rpartition(":")
        Connection(host, int(port), user="ada", password="secret", bucket="default").close()
        status = node.create_bucket("x", 2)
        assert status.partitions == 2
        node.delete_bucket("x")
        assert node.http
        assert node.memcached
    with pytest.raises(UnavailableError):
        node.create_bucket("x")
    node.stop()
    with EmbeddedNode(tmp_path / "d", http=None) as node:
        assert node.http is None


def test_a_failed_start_leaves_no_thread(tmp_path):
    with EmbeddedNode(tmp_path / "d", buckets=["a:4"]):
        pass
    node = EmbeddedNode(tmp_path / "d", buckets=["a:8"])
    with pytest.raises(ConditionError, match="fixed"):
        node.start()
    assert node._thread is None


def test_wrong_options_are_refused_at_once(tmp_path):
    with pytest.raises(UsageError):
        EmbeddedNode(tmp_path / "d", kv="nonsense")
    with pytest.raises(TypeError):
        EmbeddedNode(tmp_path / "d", colour="red")


def test_the_public_names_lead_here():
    assert millstream.Node is Node
    assert millstream.EmbeddedNode is EmbeddedNode
