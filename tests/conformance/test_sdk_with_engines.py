"""The official Couchbase Python SDK on a machine with two engines: it sees two nodes."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest

from support.node.node_process import FREE, NodeProcess

pytest.importorskip("couchbase", reason="the couchbase SDK is not installed")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.options import ClusterOptions, ClusterTimeoutOptions, UpsertOptions

LOGIN = ("ada", "lovelace and more")
KEYS = [f"sdk-{number}" for number in range(100)]
PORTS = [word for name in ("kv", "http", "coord", "peer") for word in (f"--{name}", FREE)]


def changes_of(http: str) -> int:
    """Return how many changes the active copies of an engine have."""
    asked = urllib.request.Request(f"http://{http}/_millstream/buckets/default/partitions")
    asked.add_header("Authorization", "Basic " + b64encode(":".join(LOGIN).encode()).decode())
    with urllib.request.urlopen(asked) as answer:
        copies = json.load(answer)["partitions"]
    return sum(copy["high_seqno"] for copy in copies if copy["state"] == "active")


def test_writes_reach_both_engines(tmp_path: Path) -> None:
    options = (*PORTS, "--no-memcached", "--user", ":".join(LOGIN), "--engines", "2")
    with NodeProcess(tmp_path / "node", *options) as node:
        limit = timedelta(seconds=60)
        timeouts = ClusterTimeoutOptions(
            bootstrap_timeout=limit, connect_timeout=limit, kv_timeout=limit
        )
        cluster = Cluster.connect(
            "couchbase://{}:{}".format(*node.kv),
            ClusterOptions(PasswordAuthenticator(*LOGIN), timeout_options=timeouts),
        )
        try:
            collection = cluster.bucket("default").default_collection()
            majority = UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY))
            for number, key in enumerate(KEYS):
                collection.upsert(key, {"n": number}, majority)
            for number, key in enumerate(KEYS):
                assert collection.get(key).content_as[dict] == {"n": number}
        finally:
            cluster.close()
        counts = [changes_of(engine["http"]) for engine in node.ready["engines"]]
        assert sum(counts) == len(KEYS)
        assert min(counts) > len(KEYS) // 4, counts
