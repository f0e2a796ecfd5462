"""Spark Connect: a server in a process of its own, and a client that knows it by its address."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.client.databases import Database
from millstream.client.http import http_of
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import BucketUnderTest
from support.pipelines.spark_cluster import (
    JOBS,
    SOURCE,
    ConnectServer,
    environment,
    without_traces,
)

KEYS = [f"k{n}" for n in range(3_000)]
DESIGN = {
    "views": {
        "by_parity": {"map": "function (doc) { emit([doc.n % 2], doc.n); }", "reduce": "_sum"}
    }
}
SUMS = {f"[{parity}]": sum(range(parity, len(KEYS), 2)) for parity in (0, 1)}


class Client:
    """`connect_job.py`, asked for one step after the other."""

    def __init__(self, directory: Path, *words: str) -> None:
        self._log = directory / "client.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", str(JOBS / "connect_job.py"), *words],
                cwd=directory, env=environment(directory, PYTHONPATH=str(SOURCE)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def do(self, step: str) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{step}\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, without_traces(self._log.read_text())
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        with self._process as process:
            process.kill()


@pytest.fixture
def client(
    source: BucketUnderTest, targets: dict[str, BucketUnderTest], tmp_path: Path
) -> Iterator[Client]:
    addresses = source.address, targets["copy"].address
    with ConnectServer(tmp_path) as server:
        client = Client(tmp_path, server.address, *addresses, str(tmp_path))
        yield client
        client.close()


def present(bucket: BucketUnderTest) -> dict[str, bytes]:
    with bucket.client() as client:
        return {key: bytes(found.data) for key, found in client.get_many(KEYS).items()}


def test_a_remote_session_reads_writes_follows_and_repairs(
    source_node: NodeProcess,
    source: BucketUnderTest,
    targets: dict[str, BucketUnderTest],
    client: Client,
) -> None:
    source.write({key: {"n": n} for n, key in enumerate(KEYS)})
    with source.client() as kv:
        http = http_of(kv, user=None, password="", tls=None, timeout_s=30)
        Database(http, source.name).put("_design/d", DESIGN)
        for p in range(4):
            kv.upsert(f"flush{p}", {"n": 0}, durability="persisted")
    count = len(KEYS) + 4
    assert client.do("copy") == {"seqnos": count, "view": SUMS}
    assert client.do("upsert")["batches"] >= 2
    assert present(targets["copy"]) == present(targets["upserted"]) == present(source)

    source.write(dict.fromkeys(KEYS[:900], b"lost"))
    source.write(dict.fromkeys(KEYS[900:1_000]))
    client.do("follow")
    assert present(targets["applied"]) == present(source)
    source_node.kill()
    source_node.start()
    source.write(dict.fromkeys(KEYS[:50], b"after"))
    assert len(client.do("follow")["rows"]) == count + 1  # the design document, too
    assert present(targets["applied"]) == present(source)
    assert present(source)[KEYS[950]] == b'{"n":950}'

    assert client.do("refuse") == {"codes": ["needs_classic_session"] * 3}
