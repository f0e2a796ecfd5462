"""Readers and nodes killed before any effect of a reader; nodes lose what was not flushed.

`MILLSTREAM_KILL_ROUNDS=N` (`make kills`) makes N rounds instead of a few, and kills nodes as often
as readers.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.model.partitions import partition_of
from millstream.upr import BucketReader, SqliteSink
from millstream.upr.aio import link
from millstream.wire.cluster_map import ClusterMap, NodeAddress
from millstream.wire.mcbp import Opcode
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess, is_gone
from support.node.waiting import until

MakeNode = Callable[..., NodeProcess]
CHILD = Path(__file__).parents[1] / "support" / "streams" / "following_child.py"
ROUNDS_ASKED = int(os.environ.get("MILLSTREAM_KILL_ROUNDS", "0"))
ROUNDS = ROUNDS_ASKED or 25
NODE_EVERY = 2 if ROUNDS_ASKED else 8
"""One round in so many kills the node in the middle of a stream, the others kill the reader."""
ROUND_S = 10.0
"""Time limit of a round of many."""
KEYS = 40


def address_of(node: NodeProcess) -> str:
    return str(node.ready["kv"])


def write(address: str, rng: random.Random, *, durability: Any = "memory") -> None:
    """Some documents, some deletions; each value occurs once."""
    with millstream.connect(address, bucket="default", timeout_s=30) as client:
        for _ in range(6):
            key = f"k{rng.randrange(KEYS)}"
            if rng.random() < 0.3:
                if client.exists(key):
                    client.remove(key, durability=durability)
            else:
                client.upsert(key, rng.randrange(10**12), durability=durability)


def truth(address: str) -> dict[str, Any]:
    with millstream.connect(address, bucket="default", timeout_s=30) as client:
        found = client.get_many(f"k{number}" for number in range(KEYS))
        return {key: document.value for key, document in found.items()}


def table(path: Path) -> dict[str, Any]:
    database = sqlite3.connect(path)
    try:
        rows = list(database.execute("SELECT key, value FROM documents"))
    finally:
        database.close()
    return {key.decode(): json.loads(value) for key, value in rows}


def replayed(path: Path) -> dict[str, Any]:
    """Apply the lines, and see that no change of a history stands there twice in a load."""
    state: dict[str, tuple[Any, int, int]] = {}
    seen: set[tuple[Any, ...]] = set()
    for line in map(json.loads, path.read_bytes().splitlines()):
        if line.get("event") == "rollback":
            seen = {known for known in seen if known[0] != line["partition"]}
        elif line.get("event") == "sweep":
            state = {
                key: held
                for key, held in state.items()
                if held[1] != line["partition"] or held[2] >= line["load"]
            }
        else:
            if "event" not in line:
                change = (line["partition"], line["uuid"], line["seqno"], line["load"])
                assert change not in seen, line
                seen.add(change)
            state.pop(line["key"], None)
            if line["value"] is not None:
                state[line["key"]] = (line["value"], line["partition"], line["load"])
    return {key: value for key, (value, _, _) in state.items()}


def follow(
    node: NodeProcess, kind: str, path: Path, kill_at: int, *, kills_node: bool = False
) -> bool:
    """Run a reader; return whether somebody was killed."""
    engine = node.pids()[1]
    command = [sys.executable, str(CHILD), address_of(node), kind, str(path), str(kill_at)]
    command.append(str(engine if kills_node else 0))
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    if done.stdout:  # who kills the node tells so, and lives on
        until(lambda: is_gone(engine))
    return done.returncode != 0 or bool(done.stdout)


@pytest.mark.timeout(max(600, ROUNDS_ASKED * ROUND_S))
@pytest.mark.parametrize(
    ("kind", "state_of"),
    [
        pytest.param("sqlite", table, marks=pytest.mark.nightly),
        pytest.param("plain", table, marks=pytest.mark.nightly),
        ("lines", replayed),
    ],
)
def test_killed_before_any_effect(
    make_node: MakeNode, tmp_path: Path, kind: str, state_of: Callable[[Path], dict[str, Any]]
) -> None:
    options = ("--bucket", "default:2", "--flush-interval", "600000")
    node = make_node(*options).start()
    rng, path, kills = random.Random(kind), tmp_path / "state", [0, 0]
    write(address_of(node), rng, durability="persisted")
    for number in range(ROUNDS):
        # Now and then all is read, so that what the node then loses has to be undone.
        kill_at = rng.randint(1, 40) if number % 5 != 3 else 0
        is_node = number % NODE_EVERY == NODE_EVERY - 1
        killed = follow(node, kind, path, kill_at, kills_node=is_node)
        kills[is_node] += killed
        if number % 5 == 4 or (is_node and killed):  # a supervisor starts it a few times only
            node.kill()
            node.start()
        durability = "persisted" if rng.random() < 0.3 else "memory"
        write(address_of(node), rng, durability=durability)
    assert sum(kills) > ROUNDS // 2
    assert kills[True] > 0
    assert not follow(node, kind, path, 0)
    assert state_of(path) == truth(address_of(node))
    if kind == "lines":
        events = {json.loads(line).get("event") for line in path.read_bytes().splitlines()}
        assert {"rollback", "restore"} <= events


async def test_partitions_are_followed_to_the_node_that_has_them(
    make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [make_node("--bucket", "default:2", name=f"node{n}").start() for n in range(2)]
    places = tuple(NodeAddress(*node.kv) for node in nodes)
    owners = [0, 1]

    def map_(*_: Any, **__: Any) -> ClusterMap:
        return ClusterMap(1, 1, places, tuple(owners), {}, "same")

    monkeypatch.setattr(link, "cluster_map_from", map_)
    keys = [b"a%d" % number for number in range(20)]

    def put(value: bytes) -> None:
        for key in keys:
            number = partition_of(key, 2)
            with RawClient(nodes[owners[number]].kv, "default") as client:
                extras = bytes(8)
                answer = client.ask(
                    Opcode.SET, vbucket=number, key=key, value=value, extras=extras
                )
                assert answer.status == 0

    def set_state(node: int, number: int, state: bytes) -> None:
        with RawClient(nodes[node].kv, "default") as client:
            answer = client.ask(Opcode.SET_VBUCKET_STATE, vbucket=number, extras=state)
            assert answer.status == 0

    set_state(0, 1, b"\4")
    set_state(1, 0, b"\4")
    await asyncio.to_thread(put, b"1")
    sink = SqliteSink(tmp_path / "state")
    reader = BucketReader(address_of(nodes[0]), bucket="default", sink=sink)
    running = asyncio.ensure_future(reader.run())

    async def wait_for(value: bytes) -> None:
        expected = dict.fromkeys((key.decode() for key in keys), json.loads(value))
        while table(tmp_path / "state") != expected:
            assert not running.done(), running.exception()
            await asyncio.sleep(0.02)  # the table tells nobody: looked at again

    async with asyncio.timeout(60):
        await wait_for(b"1")
        # Partition 0 moves: its new copy has a history of its own, without the old documents.
        owners[0] = 1
        set_state(1, 0, b"\1")
        set_state(0, 0, b"\4")
        await asyncio.to_thread(put, b"2")
        await wait_for(b"2")
        assert await reader.lag() == {0: 0, 1: 0}
    running.cancel()
    await asyncio.wait((running,))
    sink.close()
