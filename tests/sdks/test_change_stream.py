"""gocbcore receives every change: on one node, and while a cluster changes its nodes."""

from __future__ import annotations

from millstream import connect
from support.cluster.managed_nodes import BUCKET, ManagedNodes, Writer
from support.node.node_process import NodeProcess
from support.node.sdk_client import SdkClient
from support.node.sdk_stream import SdkStream
from support.node.waiting import until

LOGIN = ("ada", "correct horse, battery=staple")
ANYONE = ("anyone", "anything")


def check_order(stream: SdkStream) -> None:
    """Fail unless each partition's changes came in order, none of them twice."""
    assert stream.seqnos
    for partition, seqnos in stream.seqnos.items():
        assert seqnos == sorted(set(seqnos)), (partition, seqnos)


def test_every_change_of_a_node_with_users_arrives(node: NodeProcess) -> None:
    wanted = {f"streamed-{number}": {"n": number} for number in range(100)}
    with SdkClient("go") as client:
        client.connect(node.kv, LOGIN)
        client.do("open", bucket="documents")
        for key in list(wanted)[:50]:
            client.do("upsert", key=key, value={"n": -1})
        client.do("upsert", key="streamed-removed", value={})
        with SdkStream([str(node.ready["http"])], LOGIN, "documents") as stream:
            until(lambda: "streamed-removed" in stream.values, lambda: stream.others)
            for key, value in wanted.items():
                client.do("upsert", key=key, value=value)
            client.do("remove", key="streamed-removed")

            def found() -> dict[str, object]:
                return {k: v for k, v in stream.values.copy().items() if k.startswith("streamed")}

            until(lambda: found() == wanted, lambda: (found(), stream.others))
            check_order(stream)


def test_every_change_arrives_while_nodes_fail_come_back_and_join(nodes: ManagedNodes) -> None:
    http = [str(node.ready["http"]) for node in nodes.nodes.values()]
    with SdkStream(http, ANYONE, BUCKET) as stream:
        with Writer(nodes) as writer:
            until(lambda: len(stream.values) > 100, lambda: (stream.others, writer.errors))
            nodes.go_through_changes(writer, writes=200)
        with connect([str(nodes.nodes["n1"].ready["kv"])], bucket=BUCKET) as reader:
            wanted = {key: reader.get(key).value for key in writer.known}
        writer.check(nodes)
        until(
            lambda: stream.values.copy() == wanted,
            lambda: (stream.others[-50:], wanted, stream.values),
        )
        moved = [said for said in stream.others if "ended" in said]
        assert moved, "no stream ended: nothing was shown"
