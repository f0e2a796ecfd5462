"""Durability levels as the official Couchbase Python SDK asks for them, on nodes with copies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from millstream.model.partitions import partition_of
from support.kv.nodes_with_map import activate_first, give_map
from support.node.node_process import NodeProcess

pytest.importorskip("couchbase", reason="the couchbase SDK is not installed")

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    DurabilityImpossibleException,
    DurabilitySyncWriteAmbiguousException,
    TemporaryFailException,
)
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    DecrementOptions,
    DeltaValue,
    IncrementOptions,
    InsertOptions,
    RemoveOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertOptions,
)

from support.node.waiting import until

LOGIN = ("ada", "lovelace and more")
SECRET = {"MILLSTREAM_CLUSTER_SECRET": "of the nodes of this test alone"}
PARTITIONS = 4
LEVELS = [
    DurabilityLevel.MAJORITY,
    DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    DurabilityLevel.PERSIST_TO_MAJORITY,
]
Nodes = dict[str, NodeProcess]
MakeNodes = Callable[[str], Nodes]


@pytest.fixture
def make_nodes(tmp_path: Path) -> Iterator[MakeNodes]:
    made: Nodes = {}

    def nodes(names: str) -> Nodes:
        """Nodes of which the first has all active copies, and the others follow it."""
        for name in names:
            made[name] = NodeProcess(
                tmp_path / name, "--no-memcached", "--user", ":".join(LOGIN), env=SECRET
            ).start()
        rows = [list(names)] * PARTITIONS
        give_map(made, "shared", rows, login=LOGIN)
        activate_first(made, "shared", rows, login=LOGIN)
        return made

    yield nodes
    for node in made.values():
        if node.is_running:
            for pid in node.pids():
                os.kill(pid, signal.SIGCONT)
        node.kill()


@pytest.fixture
def collection_of() -> Iterator[Callable[[NodeProcess], Collection]]:
    made: list[Cluster] = []

    def connected(node: NodeProcess) -> Collection:
        limit = timedelta(seconds=60)
        timeouts = ClusterTimeoutOptions(
            bootstrap_timeout=limit, connect_timeout=limit, kv_timeout=limit,
            kv_durable_timeout=limit,
        )  # fmt: skip
        options = ClusterOptions(PasswordAuthenticator(*LOGIN), timeout_options=timeouts)
        cluster = Cluster.connect("couchbase://{}:{}".format(*node.kv), options)
        made.append(cluster)
        return cluster.bucket("shared").default_collection()

    yield connected
    for cluster in made:
        cluster.close()


def at(level: DurabilityLevel) -> ServerDurability:
    return ServerDurability(level)


def outcome(collection: Collection, key: str) -> str:
    try:
        collection.upsert(key, 0, UpsertOptions(durability=at(LEVELS[0])))
    except DurabilityImpossibleException:
        return "impossible"
    except DurabilitySyncWriteAmbiguousException:
        return "ambiguous"
    except TemporaryFailException:
        return "awaited"  # for some seconds after a copy went away
    return "done"


def until_all_are(wanted: str, collection: Collection) -> None:
    """Wait until a write to each partition has that outcome."""
    keys: dict[int, str] = {}
    for number in range(100):
        keys.setdefault(partition_of(b"try-%d" % number, PARTITIONS), f"try-{number}")
    assert len(keys) == PARTITIONS
    for key in keys.values():
        until(lambda key=key: outcome(collection, key) == wanted)  # type: ignore[misc]


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_each_level_is_reached_by_each_kind_of_write(
    make_nodes: MakeNodes, collection_of: Callable[[NodeProcess], Collection], names: str
) -> None:
    nodes = make_nodes(names)
    collection = collection_of(nodes["a"])
    until_all_are("done", collection)
    for level in LEVELS:
        key, durability = f"doc-{level.value}", at(level)
        collection.insert(key, {"n": 1}, InsertOptions(durability=durability))
        collection.upsert(key, {"n": 2}, UpsertOptions(durability=durability))
        collection.replace(key, {"n": 3}, ReplaceOptions(durability=durability))
        assert collection.get(key).content_as[dict] == {"n": 3}
        collection.remove(key, RemoveOptions(durability=durability))
        counter = collection.binary()
        for change, options in (
            (counter.increment, IncrementOptions), (counter.decrement, DecrementOptions),
        ):  # fmt: skip
            change(
                f"count-{level.value}",
                options(initial=SignedInt64(5), delta=DeltaValue(1), durability=durability),
            )


def test_nothing_is_stored_where_a_level_is_impossible(
    make_nodes: MakeNodes, collection_of: Callable[[NodeProcess], Collection]
) -> None:
    nodes = make_nodes("ab")
    collection = collection_of(nodes["a"])
    until_all_are("done", collection)
    collection.upsert("k", {"n": 1}, UpsertOptions(durability=at(LEVELS[2])))
    nodes["b"].kill()
    until_all_are("impossible", collection)
    for level in LEVELS:
        for key in ("k", "k2"):
            with pytest.raises(DurabilityImpossibleException):
                collection.upsert(key, {"n": 2}, UpsertOptions(durability=at(level)))
    assert collection.get("k").content_as[dict] == {"n": 1}
    assert not collection.exists("k2").exists
    collection.upsert("k", {"n": 3})


def test_one_of_three_copies_may_be_gone(
    make_nodes: MakeNodes, collection_of: Callable[[NodeProcess], Collection]
) -> None:
    nodes = make_nodes("abc")
    collection = collection_of(nodes["a"])
    until_all_are("done", collection)
    nodes["c"].kill()
    until_all_are("done", collection)  # perhaps only `c` followed until now
    for level in LEVELS:
        for number in range(20):
            collection.upsert(f"k{number}", {}, UpsertOptions(durability=at(level)))


def test_a_copy_that_stands_still_after_a_write_was_accepted_leaves_it_ambiguous(
    make_nodes: MakeNodes, collection_of: Callable[[NodeProcess], Collection]
) -> None:
    nodes = make_nodes("ab")
    collection = collection_of(nodes["a"])
    until_all_are("done", collection)
    for pid in nodes["b"].pids():
        os.kill(pid, signal.SIGSTOP)
    for level in LEVELS:
        with pytest.raises((DurabilitySyncWriteAmbiguousException, AmbiguousTimeoutException)):
            collection.upsert(
                f"k-{level.value}", {"n": 1},
                UpsertOptions(durability=at(level), timeout=timedelta(seconds=2)),
            )  # fmt: skip
        assert collection.get(f"k-{level.value}").content_as[dict] == {"n": 1}, "it was made"
    for pid in nodes["b"].pids():
        os.kill(pid, signal.SIGCONT)
    until_all_are("done", collection)
    collection.upsert("k", {"n": 2}, UpsertOptions(durability=at(LEVELS[2])))


def test_what_a_majority_acknowledged_survives_the_active_copy(
    make_nodes: MakeNodes, collection_of: Callable[[NodeProcess], Collection], tmp_path: Path
) -> None:
    nodes = make_nodes("abc")
    collection = collection_of(nodes["a"])
    until_all_are("done", collection)
    written: dict[str, int] = {}
    for number in range(150):
        key, level = f"k{number % 40}", LEVELS[number % 3]
        collection.upsert(key, {"n": number}, UpsertOptions(durability=at(level)))
        written[key] = number
    nodes["a"].kill()
    password = tmp_path / "password"
    password.write_text(LOGIN[1])
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "cluster", "promote", "shared",
         "--connect", "{}:{}".format(*nodes["b"].kv),
         "--user", LOGIN[0], "--password-file", str(password)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    collection = collection_of(nodes["b"])
    for key, number in written.items():
        assert collection.get(key).content_as[dict] == {"n": number}, key
    collection.upsert("k0", {"n": 0})
