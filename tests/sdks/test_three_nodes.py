"""Official SDKs on a managed cluster of three nodes, one of which is killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster.managed_nodes import BUCKET, ManagedNodes
from support.node.sdk_client import SdkClient
from support.node.waiting import until

KEYS = [f"key-{number}" for number in range(60)]
ANYONE = ("anyone", "anything")
AMBIGUOUS = {"timeout", "durability_ambiguous", "temporary", "cancelled"}
"""What a write may end with whose node was killed: it may be there or not."""


@pytest.fixture
def client(nodes: ManagedNodes, sdk: str) -> Iterator[SdkClient]:
    options = {"plain": True} if sdk == "java" else {}
    with SdkClient(sdk) as running:
        every = ",".join("{}:{}".format(*nodes.nodes[name].kv) for name in nodes.nodes)
        who = running.at(nodes.nodes["n1"].kv, ANYONE) | {"connection": f"couchbase://{every}"}
        running.do("connect", **who, **options)
        running.do("open", bucket=BUCKET)
        yield running
        running.do("close")


def test_a_killed_node_loses_nothing_that_a_majority_acknowledged(
    nodes: ManagedNodes, client: SdkClient
) -> None:
    written = dict.fromkeys(KEYS, 0)
    tried = dict(written)
    for key in KEYS:
        client.do("upsert", key=key, value={"n": 0}, majority=True)
    until(lambda: pinged(client) == ["ok"] * 3, lambda: client.ask("ping"))
    check_copies(client)

    nodes.nodes["n2"].kill()
    for round_ in range(1, 4):
        for key in KEYS:
            write(nodes, client, key, round_, written, tried)
    nodes.until_served(["n1", "n3"])
    check(client, written, tried)
    nodes.nodes["n2"].start()
    nodes.until_all_in()
    check(client, written, tried)
    until(lambda: pinged(client) == ["ok"] * 3, lambda: client.ask("ping"))
    for key in KEYS:
        client.do("remove", key=key, majority=True)


def write(
    nodes: ManagedNodes,
    client: SdkClient,
    key: str,
    number: int,
    written: dict[str, int],
    tried: dict[str, int],
) -> None:
    """Write until it is acknowledged."""
    answers: list[object] = []

    def is_written() -> bool:
        tried[key] = number
        # The SDKs for Node and Rust wait for the node that was killed, though a later map names
        # another one: their users' time-outs end that.
        answer = client.ask("upsert", key=key, value={"n": number}, majority=True, limit_s=10)
        assert answer.get("error") in {None, *AMBIGUOUS}, answer
        answers.append(answer)
        return "error" not in answer

    until(is_written, lambda: (client.sdk, key, answers, nodes.status("n1")))
    written[key] = number


def check(client: SdkClient, written: dict[str, int], tried: dict[str, int]) -> None:
    """Fail unless every acknowledged write is there, or a later one that was tried."""
    for key in KEYS:
        found = client.do("get", key=key)["value"]["n"]
        assert written[key] <= found <= tried[key], (client.sdk, key, found)


def check_copies(client: SdkClient) -> None:
    """Fail unless each copy has each document, soon: a majority is less than all."""

    def has_three() -> bool:
        answers = [client.ask("get_all_replicas", key=key) for key in KEYS[:10]]
        return all(sorted(one.get("replicas", [])) == [False, True, True] for one in answers)

    until(has_three, lambda: client.ask("get_all_replicas", key=KEYS[0]))
    assert client.do("get_any_replica", key=KEYS[0])["value"] == {"n": 0}


def pinged(client: SdkClient) -> list[str]:
    """Return the states of the kv services."""
    return list(client.ask("ping").get("services", {}).get("kv", []))
