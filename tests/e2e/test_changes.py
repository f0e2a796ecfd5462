"""`_changes` of a real node: tokens that stay good over a kill, and rows that are durable."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import millstream
from support.http.http_calls import call
from support.node.node_process import NodeProcess


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


def test_documents_with_what_is_attached(own_node: Callable[..., NodeProcess]) -> None:
    node = own_node("--bucket", "default:4")
    text = "words " * 1000
    for name in ("one", "two", "three"):
        data = b64encode((name + text).encode()).decode()
        document = {
            "of": name, "_attachments": {"a.txt": {"content_type": "text/plain", "data": data}},
        }  # fmt: skip
        assert call(node.http, "PUT", f"/default/{name}", document)[0] == 201
    write(node, ["four"])
    found = changes(node, include_docs="true", attachments="true")["results"]
    assert sorted(row["id"] for row in found) == ["four", "one", "three", "two"]
    for row in found:
        attached = row["doc"].get("_attachments", {})
        data = {name: b64decode(one["data"]).decode() for name, one in attached.items()}
        assert data == ({} if row["id"] == "four" else {"a.txt": row["id"] + text})
    stubs = changes(node, include_docs="true", att_encoding_info="true")["results"]
    for row in stubs:
        for one in row["doc"].get("_attachments", {}).values():
            assert one["stub"] is True
            assert one["encoding"] == "gzip"
            assert one["encoded_length"] < one["length"]
    limited = changes(node, include_docs="true", attachments="true", limit="2")
    assert limited["pending"] == 2
    rest = changes(node, limited["last_seq"], include_docs="true", attachments="true")
    assert len(rest["results"]) == 2
