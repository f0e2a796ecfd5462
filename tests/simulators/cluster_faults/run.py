"""One run: faults and changes one after the other, while clients work; then healing, and a look.

Invariants:
1. The seed draws faults and changes, their order and pauses, for nodes that are members then. What
   nodes and clients do depends on the machine, too: a seed does not always give the same run.
2. A run is right if nobody saw anything wrong, if everything is there again within a time after
   each healing, and if followers, copies and index equal the documents at the end.
3. Between two healings at most one node loses its memory: more is what level majority excludes.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import millstream
from millstream.client.databases import Database
from millstream.client.http import HttpClient
from millstream.demo.pouchdb import PouchPeer, find_pouchdb
from millstream.errors import MillstreamError
from simulators.cluster_faults.askers import DESIGN, STILL, Asker, ChangesReader, number_of
from simulators.cluster_faults.faults import CHANGES, FAULTS, LOSES_MEMORY, Change, Scene
from simulators.cluster_faults.members import BUCKET, LISTENERS, SETTLE_S_MAX, Members
from simulators.cluster_faults.plants import PLANTS, Plants
from simulators.cluster_faults.spark_follower import SparkFollower
from simulators.cluster_faults.truth import Stop, Truth
from simulators.cluster_faults.writers import WRITERS, SdkWriter, connected
from simulators.coordination_faults.network import Links, Network, Proxies
from simulators.coordination_faults.nodes import LOGIN
from support.cluster.managed_followers import Consuming, Tailing
from support.node.node_process import free_port
from support.node.waiting import until

__all__ = ["PLANTS", "Outcome", "as_text", "run_once"]

NODES, ASKERS = 4, 2
FAULT_S, CALM_S = (0.5, 7.0), (0.5, 3.0)
AFTER_CHANGE_S = (0.0, 2.5)
CHANGE_SHARE, TWO_SHARE, SETTLE_SHARE = 0.6, 0.3, 0.4
LEVEL_S_MAX = 90.0
"""From the last write until followers have everything."""
INDEXED_S_MAX = 60.0
"""Until an index answers for the first time."""


class Outcome(NamedTuple):
    """What came of a run."""

    wrong: list[str]
    figures: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether it was right."""
        return not self.wrong


def run_once(
    seed: int, seconds: float, folder: Path, hub: str | None, *,
    plant: str = "", with_spark: bool = False,
) -> Outcome:  # fmt: skip
    """Run for so long in `folder`; `hub` is the namespace we are in."""
    found: list[Members] = []

    def pids(node: int) -> list[int]:
        return found[0].pids(node) if found else []

    network: Network = (
        Links(hub, NODES, LISTENERS) if hub else Proxies(NODES, free_port(), pids, LISTENERS)
    )
    try:
        members = Members(folder, network, NODES)
        found.append(members)
        try:
            members.found()
            with ExitStack() as stack:
                return _Run(seed, members, folder, plant).go(stack, seconds, with_spark=with_spark)
        finally:
            members.close()
    finally:
        network.close()


class _Run:
    """Clients and faults of a run."""

    def __init__(self, seed: int, members: Members, folder: Path, plant: str) -> None:
        self._rng = random.Random(seed)
        self._members, self._folder = members, folder
        self._truth, self._stop = Truth(), Stop()
        self._plants = Plants(plant)
        self._done: Counter[str] = Counter()
        self._at_rest: dict[int, HttpClient] = {}
        """Nodes that are members; a stranger knows other documents."""
        self._longest_settle_s = 0.0

    def go(self, stack: ExitStack, seconds: float, *, with_spark: bool) -> Outcome:
        """Do all of it."""
        members = self._members
        self._note_members()
        self._write_still()
        kvs = [members.kv(node) for node in members.members()]
        cluster = connected(kvs, LOGIN)
        stack.callback(cluster.close)
        self._collection = cluster.bucket(BUCKET).default_collection()
        self._consuming = stack.enter_context(Consuming(kvs[0], LOGIN))
        self._tailing = stack.enter_context(Tailing(kvs[0], self._folder / "tail.jsonl", LOGIN))
        self._pouch = self._pouch_peer(stack)
        self._spark = SparkFollower(stack, kvs, self._folder) if with_spark else None
        self._reader = ChangesReader(
            self._nodes, self._stop, f"{self._rng.random()}", self._plants.answer
        )
        self._reader.start()
        stack.callback(self._reader.is_over.set)
        self._writers = [
            SdkWriter(n, self._collection, self._truth, self._stop, f"{self._rng.random()}")
            for n in range(WRITERS)
        ]
        askers = [self._asker() for _ in range(ASKERS)]
        for thread in (*self._writers, *askers):
            thread.start()
        began = time.monotonic()
        wrong = self._upset(began + seconds)
        self._stop.event.set()
        for thread in (*self._writers, *askers):
            thread.join()
        wrong += self._stop.wrong
        if not wrong:
            wrong += self._look()
        return Outcome(wrong, self._figures(time.monotonic() - began))

    # ---- who works

    def _write_still(self) -> None:
        """Write documents that never change, and have them indexed."""
        members = self._members
        with millstream.connect(members.kv(1), user=LOGIN[0], password=LOGIN[1]) as client:
            for number in range(STILL):
                client.upsert(f"p{number}", {"still": number}, durability="majority")
        Database(members.http(1), BUCKET).put("watched", DESIGN)
        path = "/default/_design/watched/_view/still?stale=ok"

        def are_indexed() -> bool:
            try:
                return all(
                    len(http.request("GET", path, timeout_s=INDEXED_S_MAX)["rows"]) == STILL
                    for http in self._at_rest.values()
                )
            except MillstreamError:  # it is busy, or still begins
                return False

        until(are_indexed, members.log_ends)

    def _nodes(self) -> Mapping[int, HttpClient]:
        return self._at_rest

    def _note_members(self) -> dict[int, str]:
        """Note who is asked from now on; return the ids of the members, empty: nobody tells."""
        members = self._members
        ids = {node: str(one["id"]) for node, one in members.records().items()}
        if ids:
            self._at_rest = {node: members.http(node) for node in ids}
        return ids

    def _asker(self) -> Asker:
        return Asker(
            self._nodes, self._truth, self._stop, f"{self._rng.random()}", self._plants.answer
        )

    def _pouch_peer(self, stack: ExitStack) -> PouchPeer | None:
        folder = find_pouchdb()
        if folder is None:
            return None
        host, port = self._members.network.clients_address(1, "http")
        user, password = (part.replace(" ", "%20") for part in LOGIN)
        url = f"http://{user}:{password}@{host}:{port}/{BUCKET}"
        return stack.enter_context(PouchPeer(folder, url, self._folder / "pouchdb.log"))

    # ---- what happens

    def _upset(self, end_s: float) -> list[str]:
        """Let things go wrong, and heal them, until the time is over or something is wrong."""
        faults, changes = _in_turn(self._rng, [*FAULTS]), _in_turn(self._rng, [*CHANGES])
        wrong: list[str] = []
        while time.monotonic() < end_s and not wrong and not self._stop.wrong:
            self._stop.event.wait(self._rng.uniform(*CALM_S))
            first = next(faults)
            node = self._rng.choice([*self._at_rest])
            if self._rng.random() < CHANGE_SHARE:
                self._change(next(changes), node)
                self._stop.event.wait(self._rng.uniform(*AFTER_CHANGE_S))
            names = [first, *([next(faults)] if self._rng.random() < TWO_SHARE else [])]
            if {*names} <= {*LOSES_MEMORY}:
                names = [first]
            for name in names:
                self._begin(name, node)
                node = self._rng.choice([*self._at_rest])
            self._stop.event.wait(self._rng.uniform(*FAULT_S))
            loses_memory = not {*names}.isdisjoint(LOSES_MEMORY)
            wrong = self._heal(settles=loses_memory or self._rng.random() < SETTLE_SHARE)
        return wrong or self._heal(settles=True)

    def _begin(self, fault: str, node: int) -> None:
        self._done[fault] += 1
        scene = Scene(
            random.Random(self._rng.random()), self._members, self._members.network, node
        )
        FAULTS[fault](scene)

    def _change(self, name: str, faulty: int) -> None:
        self._done[name] += 1
        at = self._rng.choice([node for node in self._at_rest if node != faulty])
        rng = random.Random(self._rng.random())
        ids = self._note_members()
        if len(ids) > 1:
            CHANGES[name](Change(rng, self._members, at, ids))

    def _heal(self, *, settles: bool) -> list[str]:
        """End all faults; wait until writers are answered, and if it `settles` until all is whole.

        Without that the next fault meets fail-overs and moves that are under way.
        """
        members, began = self._members, time.monotonic()
        members.network.heal()
        members.go_on()
        members.revive()
        wrong = []
        if settles:
            wrong = members.settle()
            self._longest_settle_s = max(self._longest_settle_s, time.monotonic() - began)
        else:
            members.administer_cluster(1, "failover", "--reset")
        self._note_members()
        counts = [writer.acknowledged for writer in self._writers]
        while not wrong and any(
            writer.acknowledged == count
            for writer, count in zip(self._writers, counts, strict=True)
        ):
            if time.monotonic() > began + SETTLE_S_MAX:
                wrong = [f"a writer is not answered after all is healed\n{members.log_ends()}"]
            self._stop.event.wait(0.05)
        return wrong

    # ---- what must be so at the end

    def _look(self) -> list[str]:
        members = self._members
        self._plants.lose(self._collection, self._truth)
        floors = self._truth.floors()
        expected = self._documents([*floors])
        wrong = [f"at the end: {one}" for one in self._truth.judge(floors, expected)]
        wrong += self._unequal(expected)
        final = self._asker()
        for node in members.members():
            wrong += [f"node {node} refuses {question}" for question in final.ask_all(node)]
        wrong += self._stop.wrong
        wrong += members.odd_copies()
        wrong += self._unequal_replicas(expected)
        wrong += self._unequal_pouch(expected)
        wrong += members.log_faults()
        if members.counts["ended by itself"]:
            wrong.append(f"{members.counts['ended by itself']} nodes ended by themselves")
        if self._spark is not None:
            self._spark.stop()
        return wrong + members.stop_and_check()

    def _documents(self, keys: Sequence[str]) -> dict[str, int]:
        """Return key -> number, as the nodes have it."""
        kvs = [self._members.kv(node) for node in self._members.members()]
        user, password = LOGIN
        with millstream.connect(kvs, user=user, password=password, timeout_s=30.0) as client:
            found = client.get_many(keys)
        return {str(key): number_of(one.value) for key, one in found.items()}

    def _unequal(self, expected: Mapping[str, int]) -> list[str]:
        """Return followers that do not come to what the nodes have."""
        followers: dict[str, Callable[[], Mapping[str, Any]]] = {
            "Consumer": self._consuming.state,
            "tail": self._tailing.state,
            "_changes": self._reader.state,
        }
        if self._spark is not None:
            followers["Spark"] = self._spark.state
        wrong = []
        end = time.monotonic() + LEVEL_S_MAX
        for name, state in followers.items():
            while differences := _differences(name, _numbers(state()), expected):
                if time.monotonic() > end:
                    wrong += differences
                    break
                time.sleep(0.2)  # nobody tells: looked at again
        for follower in (self._consuming, self._tailing, self._spark):
            try:
                if follower is not None:
                    follower.check()
            except AssertionError as error:
                wrong.append(str(error))
        return wrong

    def _unequal_pouch(self, expected: Mapping[str, int]) -> list[str]:
        if self._pouch is None:
            return []
        try:
            found = {key: number_of(doc) for key, doc in self._pouch.documents().items()}
        except MillstreamError as error:
            log = (self._folder / "pouchdb.log").read_text()
            return [f"{error}: {log[-2000:]}"]
        return _differences("PouchDB", {k: n for k, n in found.items() if n}, expected)

    def _unequal_replicas(self, expected: Mapping[str, int]) -> list[str]:
        """Ask every copy for every document."""
        wrong = []
        for key, number in expected.items():
            copies = [one.content_as[dict]["n"] for one in self._collection.get_all_replicas(key)]
            if set(copies) != {number}:
                wrong.append(f"copies of {key}: {copies}, {number} is right")
        return wrong[:5]

    def _figures(self, seconds: float) -> dict[str, Any]:
        return {
            "seconds": round(seconds, 1),
            "acknowledged": self._truth.acknowledged,
            "keys": len(self._truth.floors()),
            "faults and changes": dict(sorted(self._done.items())),
            "longest until whole again, s": round(self._longest_settle_s, 1),
            "clients": dict(sorted(self._stop.counts.items())),
            "administrators": dict(sorted(self._members.counts.items())),
            "rollbacks of the Consumer": self._consuming.rollbacks,
            "packets lost, or connections broken": self._members.network.losses,
            "PouchDB": self._pouch is not None,
            "Spark": self._spark is not None,
        }


def _in_turn(rng: random.Random, names: Sequence[str]) -> Iterator[str]:
    """Yield names for ever: all of them in some order, then again in another one."""
    while True:
        yield from rng.sample(names, len(names))


def _numbers(documents: Mapping[str, Any]) -> dict[str, int]:
    """Return key -> number of those documents that writers write."""
    return {
        key: one if isinstance(one, int) else number_of(one)
        for key, one in documents.items()
        if isinstance(one, int) or "k" in one
    }


def _differences(name: str, found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    wrong = [
        f"{name}: {key} is {found.get(key)}, {expected.get(key)} is right"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
    return [*wrong[:5], f"{name}: {len(wrong)} differ"] if wrong else []


def as_text(outcome: Outcome) -> str:
    """Return it for people."""
    return "\n".join(
        [json.dumps(outcome.figures), *outcome.wrong, "holds" if outcome.holds else "WRONG"]
    )
