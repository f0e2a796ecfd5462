"""`_changes` of a real node: tokens that stay good over a kill, and rows that are durable."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import millstream
from node_process import NodeProcess


def changes(node: NodeProcess, since: str = "0", **options: str) -> dict[str, Any]:
    query = "".join(f"&{name}={value}" for name, value in options.items())
    address = f"{node.http}/default/_changes?since={quote(since)}{query}"
    with urlopen(address, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def write(node: NodeProcess, keys: list[str]) -> None:
    host, port = node.kv
    with millstream.connect(f"{host}:{port}", timeout_s=30) as client:
        for key in keys:
            client.upsert(key, {"of": key}, durability="persisted")


def test_a_feed_in_batches_goes_on_over_a_kill(own_node: Callable[..., NodeProcess]) -> None:
    node = own_node("--bucket", "default:16")
    write(node, [f"k{number}" for number in range(40)])
    first = changes(node, limit="15", include_docs="true")
    assert len(first["results"]) == 15
    assert first["pending"] == 25
    assert all(row["doc"]["of"] == row["id"] for row in first["results"])
    node.kill()
    node.start()
    second = changes(node, first["last_seq"])
    assert second["pending"] == 0
    ids = [row["id"] for row in first["results"] + second["results"]]
    assert sorted(ids) == sorted(f"k{number}" for number in range(40))
    write(node, ["k7", "new"])
    third = changes(node, second["last_seq"])
    assert [row["id"] for row in third["results"]] == ["k7", "new"]
    assert third["results"][0]["changes"][0]["rev"].startswith("2-")


def test_a_token_of_a_thousand_partitions_fits_into_an_address(
    own_node: Callable[..., NodeProcess],
) -> None:
    node = own_node("--bucket", "default:1024")
    write(node, ["a"])
    last = changes(node, "now")["last_seq"]
    write(node, ["b"])
    assert [row["id"] for row in changes(node, last)["results"]] == ["b"]
