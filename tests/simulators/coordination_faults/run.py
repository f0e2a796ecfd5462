"""One run: faults one after the other, sometimes two at a time, while clients work; then healing.

Invariants:
1. What happens when is drawn from the seed before anything runs; what comes of it is not.
2. A run is right if the history is, if a client is answered within `HEALED_S_MAX` of the end of
   all faults, if no client failed in itself, and if enough was answered to mean something.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simulators.coordination_faults.callers import Shared
from simulators.coordination_faults.clients import Client
from simulators.coordination_faults.faults import CHANGES, FAULTS, Scene, heal
from simulators.coordination_faults.network import Links, Network, Proxies
from simulators.coordination_faults.nodes import LOGIN, Nodes
from simulators.coordination_faults.talk import Refused
from simulators.coordination_faults.workloads import WORKLOADS, Counting, Queueing
from simulators.histories.check import Verdict, check
from simulators.histories.events import Recorder, operations
from simulators.histories.versions import pinned
from support.node.node_process import free_port
from support.node.waiting import until

__all__ = ["HEALED_S_MAX", "Outcome", "run_once"]

NODES, CLIENTS = 5, 6
WORKERS = 3
"""Of each kind of work in namespaces."""
FAULT_S, CALM_S = (1.0, 6.0), (1.0, 4.0)
HEALED_S_MAX = 30.0
ANSWERED_MIN_PER_S = 2.0
PRIMARY_SHARE = 0.6
TWO_SHARE = 0.2


class Outcome(NamedTuple):
    """What came of a run."""

    verdict: Verdict
    wrong: list[str]
    figures: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether it was right."""
        return self.verdict.holds and not self.wrong


def run_once(
    seed: int, seconds: float, folder: Path, hub: str | None, count: int = NODES
) -> Outcome:
    """Run for so long in `folder`, where the history stays; `hub` is the namespace we are in."""
    recorder = Recorder(folder / "history.jsonl")
    found: list[Nodes] = []

    def pids(node: int) -> list[int]:
        return found[0].pids(node) if found else []

    network: Network = Links(hub, count) if hub else Proxies(count, free_port(), pids)
    try:
        nodes = Nodes(folder, network, count)
        found.append(nodes)
        try:
            nodes.form()
            return _run(random.Random(seed), seconds, nodes, network, recorder)
        finally:
            nodes.close()
    finally:
        network.close()
        recorder.close()


def _run(
    rng: random.Random, seconds: float, nodes: Nodes, network: Network, recorder: Recorder
) -> Outcome:
    addresses = [network.clients_address(node) for node in nodes.numbers]
    shared = Shared(recorder, lambda: addresses, LOGIN)
    kinds = [Client] * CLIENTS + [kind for kind in WORKLOADS for _ in range(WORKERS)]
    clients = [kind(shared, f"{rng.random()}") for kind in kinds]
    for client in clients:
        client.start()
    started = time.monotonic()
    done: Counter[str] = Counter()
    possible = [name for name in FAULTS if name != "full" or nodes.has_disks]
    names = _faults(rng, possible)
    wrong: list[str] = []
    while time.monotonic() < started + seconds:
        shared.stop.wait(rng.uniform(*CALM_S))
        name = ""
        for _ in range(2 if rng.random() < TWO_SHARE else 1):
            name = next(names)
            done[name] += 1
            _begin(name, rng, nodes, network, shared)
        if name in CHANGES:  # and something happens to it
            name = next(names)
            done[name] += 1
            _begin(name, rng, nodes, network, shared)
        shared.stop.wait(rng.uniform(*FAULT_S))
        heal(nodes, network)
        wrong += _await_answer(shared, nodes)
        if wrong:
            break
    shared.stop.set()
    for client in clients:
        client.join()
        if client.failure is not None:
            wrong.append(f"a client failed: {client.failure!r}")
    if not wrong:
        wrong += _last_looks(shared)
        wrong += _await_agreement(nodes)
        wrong += nodes.stop_and_check()
    return _judged(shared, nodes, recorder, Counter(done), wrong, time.monotonic() - started)


def _faults(rng: random.Random, names: Sequence[str]) -> Iterator[str]:
    """Yield names for ever: all of them in some order, then again in another one."""
    while True:
        yield from rng.sample(names, len(names))


def _begin(name: str, rng: random.Random, nodes: Nodes, network: Network, shared: Shared) -> None:
    node = rng.choice(nodes.numbers)
    if rng.random() < PRIMARY_SHARE:
        node = shared.primary + 1
    FAULTS[name](Scene(random.Random(rng.random()), nodes, network, node))


def _await_answer(shared: Shared, nodes: Nodes) -> list[str]:
    """Wait until a client is answered; begins when all is healed."""
    began = time.monotonic()
    while shared.answered_at < began:
        if time.monotonic() > began + HEALED_S_MAX:
            return [
                f"nobody is answered {HEALED_S_MAX:g} s after all is healed\n{nodes.log_ends()}"
            ]
        shared.stop.wait(0.05)
    return []


def _last_looks(shared: Shared) -> list[str]:
    """See what is left when nobody does anything any more."""
    shared.go_on()
    counting, queueing = Counting(shared, "last"), Queueing(shared, "last")
    try:
        counting.count()
        if queueing.rest(HEALED_S_MAX):
            return []
        return ["what sessions had taken does not come back to the queue"]
    finally:
        counting.hang_up()
        queueing.hang_up()


def _await_agreement(nodes: Nodes) -> list[str]:
    """Wait until all members have applied the same."""

    def is_one() -> bool:
        try:
            return nodes.is_one()
        except (Refused, OSError):
            return False

    try:
        until(is_one, wait_s=HEALED_S_MAX)
    except AssertionError:
        return [f"the nodes do not come to the same\n{nodes.log_ends()}"]
    return []


def _judged(
    shared: Shared,
    nodes: Nodes,
    recorder: Recorder,
    done: Counter[str],
    wrong: list[str],
    seconds: float,
) -> Outcome:
    verdict = check(pinned(operations(recorder.events)))
    if shared.counts["ok"] < ANSWERED_MIN_PER_S * seconds:
        wrong.append(f"only {shared.counts['ok']} operations were answered in {seconds:.0f} s")
    figures = {
        "seconds": round(seconds, 1),
        "answered": shared.counts["ok"],
        "refused for good": shared.counts["fail"],
        "outcome unknown": shared.counts["info"],
        "longest without an answer, s": round(shared.longest_silence_s, 2),
        "faults": dict(sorted(done.items())),
        "refusals": {
            name.removeprefix("refused "): count
            for name, count in sorted(shared.counts.items())
            if name.startswith("refused ")
        },
        "nodes that ended by themselves": nodes.counts["ended by itself"],
        "administrators": {
            name: count for name, count in sorted(nodes.counts.items()) if name[0].isupper()
        },
        "packets lost, or connections broken": nodes.network.losses,
        "keys": verdict.keys,
        "undecided": verdict.undecided,
    }
    return Outcome(verdict, wrong, figures)


def as_text(outcome: Outcome) -> str:
    """Return it for people."""
    lines = [json.dumps(outcome.figures), str(outcome.verdict), *outcome.wrong]
    return "\n".join([*lines, "holds" if outcome.holds else "WRONG"])
