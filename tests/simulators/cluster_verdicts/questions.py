"""Asks the cores of a managed cluster what the recorded questions ask.

    for fact in facts(): assert answer_of(fact) == wanted(fact)

README.md says what each kind of question means.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.cluster.core import admission, deciding, fail_over, index_moving, planner, quorums
from millstream.cluster.core.elements import ClusterState, Live, NodeRecord, Plan
from millstream.cluster.core.memory import Memory, Promised, Promotion
from millstream.cluster.core.moving import Moves
from millstream.cluster.core.orders import Order, Place
from millstream.cluster.core.reports import CopyReport, NodeReport, PartReport
from millstream.cluster.core.step import Step, View
from millstream.kv.core.serving import HEARD_MS
from millstream.model import rows as of_rows
from millstream.model import serving_rights
from millstream.model.cluster_maps import (
    NO_KEY,
    DataMap,
    DataRecord,
    IndexRecord,
    MapKey,
    next_data_map,
)
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row
from millstream.model.serving_rights import Contact, Right
from millstream.model.standing import Standing
from millstream.vsr.core.versions import NEVER, Version

FILE: Final = Path(__file__).with_name("verdicts.jsonl.xz")
HERE: Final = Place("b", 0)
CLUSTER: Final = "c1"
NOW_MS: Final = 10_000
WINDOW_MS: Final = 500
STATES: Final = {
    "A": PartitionState.ACTIVE, "R": PartitionState.REPLICA, "D": PartitionState.DEAD,
    "-": PartitionState.ABSENT,
}  # fmt: skip
LETTERS: Final = {state: letter for letter, state in STATES.items()}
Told = dict[str, list[Any]]
Json = dict[str, Any]


class Fact(NamedTuple):
    """A question, and what the model answered."""

    seed: int
    """The first schedule in which it was asked."""
    times: int
    """How often it was asked."""
    kind: str
    question: Any
    answer: Any


@functools.cache
def facts() -> tuple[Fact, ...]:
    """Return all of them, in the order of their kinds."""
    with lzma.open(FILE) as lines:
        return tuple(Fact(*json.loads(line)) for line in lines)


def answer_of(fact: Fact) -> Any:
    """Return the answer of the cores, in the form of the recorded one."""
    return ASKED[fact.kind](fact.question)


# ---- what questions are made of


def key(number: int) -> MapKey:
    return MapKey(1, number) if number else NO_KEY


def rows_of(found: list[list[str | None]]) -> tuple[Row, ...]:
    return tuple(map(tuple, found))


def record_of(found: list[Any]) -> DataRecord:
    at, active, branch, rows, *rest = found
    building, since = rest or ((), 0)
    return DataRecord(key(at), active, branch, rows_of(rows), tuple(building), key(since))


def copy_of(state: str, branch: int, last: int, **others: Any) -> CopyReport:
    """Return the report of a copy; `others` are members of its standing, or of the report."""
    mine = {name: others.pop(name) for name in list(others) if name not in Standing._fields}
    standing = Standing(0, STATES[state], last, branch, 0, 0, 0, False, False)
    return CopyReport(standing._replace(**others), **mine)


def standing_of(*told: Any, **others: Any) -> Standing:
    return copy_of(*told, **others).standing


class Scene:
    """One partition before a step of the orchestrator."""

    def __init__(self, record: DataRecord, live: list[str], **state: Any) -> None:
        self.memory, self.record, self.now_ms = Memory(), record, NOW_MS
        self.state = ClusterState(
            data={HERE.bucket: DataMap(record.at, HERE.bucket, (record,))},
            live={name: Live("i", {}, 1) for name in live}, boots=dict.fromkeys(live, 1), **state,
        )  # fmt: skip

    def hear(self, name: str, copy: CopyReport, *, is_admitted: bool = True) -> None:
        self.memory.hear(NodeReport(name, 1, is_admitted, {HERE.bucket: {0: copy}}))

    def step(self) -> Step:
        answered = frozenset(self.memory.nodes)
        view = View("o", NEVER, self.state, True, answered, self.now_ms, 0, 0, 7)
        return Step(view, self.memory)


def _names_of(step: Step) -> list[list[str]]:
    return sorted([order.kind, order.to] for order in step.decision.orders)


def _failed(names: list[str], by: Any) -> dict[str, NodeRecord]:
    return {name: NodeRecord(name, name, {}, ("data",), "", "failed", by) for name in names}


# ---- quorums and rights


def _serves(q: Json) -> Any:
    branch, rows = q["record"]
    answers = {name: standing_of(*told) for name, told in q["told"].items() if told[0] != "-"}
    return quorums.serving_copy(DataRecord(key(1), None, branch, rows_of(rows)), answers)


def _quorum(q: Json) -> Any:
    answers = {
        name: standing_of("R", 0, 0, is_intact=bool(intact), is_whole=bool(whole))
        for name, (intact, whole) in q["told"].items()
    }
    verdict = quorums.judge_rows(rows_of(q["rows"]), answers)
    return [int(verdict.is_safe), sorted(verdict.kept)]


def _reached(q: Json) -> Any:
    return of_rows.reached(rows_of(q["rows"]), q["ends"])


def _confirmed(q: Json) -> Any:
    return int(of_rows.has_all(tuple(q["row"]), q["ends"], q["end"]))


def _contact(q: Json) -> Any:
    contacts = {name: Contact(NOW_MS, last) for name, last in q["peers"].items()}
    until_ms = serving_rights.contact_until_ms(
        q["node"], q["branch"], rows_of(q["rows"]), contacts, WINDOW_MS
    )
    return int(until_ms is not None and until_ms > NOW_MS)


def _right(q: Json) -> Any:
    right = serving_rights.may_serve(
        now_ms=NOW_MS, is_active=bool(q["active"]), is_admitted=bool(q["admitted"]),
        lease_ms=NOW_MS + HEARD_MS if q["session"] else None,
        contact_ms=NOW_MS + WINDOW_MS if q["contact"] else NOW_MS,
    )  # fmt: skip
    return int(right.is_given)


def _hand_over(q: Json) -> Any:
    record = DataRecord(key(1), None, 0, rows_of([q["row"]]))
    right = Right(bool(q["right"]), False)
    return int(serving_rights.may_hand_over(record, q["reader"], right))


def _answer(q: Json) -> Any:
    own, part = q["own"], q["part"]
    record = None if own is None else IndexRecord(key(own[0]), own[1])
    found = None
    if part is not None and record is not None:
        found = PartReport(part[0], (0, 0), record.at, bool(part[1]))  # type: ignore[arg-type]
    asked = IndexRecord(key(q["asked"]), None)
    return int(index_moving.may_answer(q["node"], asked, record, found))


# ---- layouts and maps


def _layout(q: Json) -> Any:
    rows = planner.plan_rows(rows_of(q["rows"]), q["nodes"], q["replicas"])
    return [list(row) for row in rows]


def _owners(q: Json) -> Any:
    return list(planner.plan_index(q["owners"], q["nodes"]))


def _written(q: Json) -> Any:
    before = record_of(q["before"])
    active, branch, rows, building = q["next"]
    new = DataRecord(before.at, active, branch, rows_of(rows), tuple(building), before.since)
    made = next_data_map(DataMap(before.at, "b", (before,)), {0: new})
    since, moves = made.records[0].since, made.records[0].is_moving
    return [int(moves and since == made.key), int(moves and since == before.since)]


# ---- the orchestrator


def _tend(q: Json) -> Any:
    record = record_of(q["record"])
    scene = Scene(record, q["live"], nodes=_failed(q["lost"], "force"))
    if q["target"] is not None:
        rows = {HERE.bucket: rows_of([q["target"]])}
        plan = Plan(1, "rebalance", scene.state.basis, rows, {HERE.bucket: (None,)}, 0)
        scene = Scene(record, q["live"], nodes=scene.state.nodes, plan=plan)
    for name, (state, branch, last, intact, whole, at, confirmed) in q["told"].items():
        scene.hear(name, copy_of(
            state, branch, last, is_intact=bool(intact), is_whole=bool(whole), at=key(at),
            is_confirmed=bool(confirmed),
        ))  # fmt: skip
    step = scene.step()
    new = deciding._tend(step, Moves(step), HERE, record)
    written = None
    if new is not None:
        written = [new.active, new.branch, [list(row) for row in new.rows], list(new.building)]
    return {"orders": _names_of(step), "record": written}


def _begin(q: Json) -> Any:
    """A silent node whose copy is replaced was failed over before that."""
    record, told = record_of(q["record"]), q["told"]
    silent = [name for name in (record.active,) if name is not None and name not in told]
    scene = Scene(record, q["live"], nodes=_failed(silent, "auto"))
    for name, (state, branch, last, intact, whole, heard) in told.items():
        scene.hear(name, copy_of(
            state, branch, last, is_intact=bool(intact), is_whole=bool(whole), heard=heard,
        ))  # fmt: skip
    step, is_again = scene.step(), bool(q["again"])
    assert fail_over.promote(step, HERE, record, replaces_active=is_again) is None
    newest = [record.branch, *(one for told in q["told"].values() for one in (told[2], told[5]))]
    for order in step.decision.orders:
        assert order.kind == "adopt" or order.branch > max(newest), "a branch is asked for twice"
    return _names_of(step)


def _go_on(q: Json) -> Any:
    record = record_of(q["record"])
    scene = Scene(record, q["live"])
    scene.now_ms += WINDOW_MS if q["lapsed"] else 0
    for name, told in q["told"].items():
        scene.hear(name, copy_of(*told))
    promised = {
        name: Promised(
            standing_of(
                state, branch, last, is_intact=bool(intact), is_whole=bool(whole),
                branch_at_end=at_end, complete_end=end,
            ), 0, NOW_MS,
        )
        for name, (state, branch, last, intact, whole, at_end, end) in q["promised"].items()
    }  # fmt: skip
    promotion = Promotion(q["branch"], key(q["since"]), 60_000, NOW_MS, promised)
    memory, step = scene.memory, scene.step()
    memory.promotions[HERE], memory.begun[HERE] = promotion, 1
    fail_over.promote(step, HERE, record, replaces_active=False)
    if HERE not in memory.promotions:
        return "again" if HERE in memory.begun else "made"
    orders = [one for one in step.decision.orders if one.kind == "activate"]
    if not orders:
        return "waits" if promotion.chosen is None else ["not live", promotion.chosen.node]
    return [[orders[0].to], orders[0].end, sorted(orders[0].kept)]


def _admit(q: Json) -> Any:
    node, copies = q["node"], q["copies"]
    records = [record_of(one["record"]) for one in copies] or [
        DataRecord(key(1), None, 0, (("z",),))
    ]
    scene = Scene(records[0], [node])
    data = DataMap(max(one.at for one in records), HERE.bucket, tuple(records))
    scene.state = ClusterState(data={HERE.bucket: data}, live=scene.state.live)
    heard: dict[str, dict[int, CopyReport]] = {node: {}}
    for p, one in enumerate(copies):
        heard[node][p] = copy_of("A", one["branch"], one["last"])
        for name, (last, state) in one["told"].items():
            heard.setdefault(name, {})[p] = copy_of(state, 0, last)
        place = Place(HERE.bucket, p)
        if one["begun"]:
            scene.memory.begun[place] = 1
        if one["made"]:
            scene.memory.made[place] = one["made"]
    for name, mine in heard.items():
        scene.memory.hear(NodeReport(name, 1, name != node, {HERE.bucket: mine}))
    step = scene.step()
    fail_over.admit(step, node)
    orders = step.decision.orders
    fences = [one.branch for one in orders if one.kind == "fence"]
    return {"is_admitted": int(any(one.kind == "admit" for one in orders)), "fence": fences}


# ---- nodes


def _order(q: Json) -> Any:
    """The session that an order to activate names is the one that the node has."""
    record, copy = record_of(q["record"]), q["copy"]
    own = record if q["own"] == "same" else None
    if own is None and q["own"] is not None:
        row = (q["node"],) if q["own_places"] else ("z",)
        own = DataRecord(key(q["own"]), None, 0, (row,))
    known = admission.Known(
        CLUSTER, q["node"], int(q["in_step"]), Version(1, 1, q["token"][1]), own,
        None if copy is None else copy_of(*copy[:3], complete_end=copy[3]),
    )  # fmt: skip
    kind: Any = {"takeover": "take_over"}.get(q["kind"], q["kind"])
    order = Order(
        kind, CLUSTER, q["node"], Version(1, 1, q["token"][0]), HERE, record, q["branch"],
        q["end"], (), known.boots,
    )  # fmt: skip
    ruling = admission.judge_order(order, known)
    return _outcome(ruling, q, copy, own)


def _outcome(ruling: admission.Ruling, q: Json, copy: Any, own: DataRecord | None) -> Any:
    """Carry the steps out."""
    mine = None if copy is None else list(copy[:3])
    for step in ruling.steps:
        if isinstance(step, admission.Adopt):
            own = step.record
            if mine is None and q["node"] in own.placed:
                mine = ["R", 0, own.branch]
        elif isinstance(step, admission.Remove):
            mine = None
        elif mine is not None and isinstance(step, admission.Promise):
            mine = ["R" if step.stands_down else mine[0], mine[1], step.branch]
        elif mine is not None and isinstance(step, admission.Activate):
            mine = ["A", step.branch, mine[2]]
        elif mine is not None and isinstance(step, admission.Follow):
            mine[0] = "R"
    code = ruling.code if ruling.refusal is None else ruling.refusal.code
    return {"code": code, "copy": mine, "own": None if own is None else own.at.revision}


ASKED: Final[dict[str, Callable[[Json], Any]]] = {
    "admit": _admit, "answer": _answer, "begin": _begin, "confirmed": _confirmed,
    "contact": _contact, "go_on": _go_on, "hand_over": _hand_over, "layout": _layout,
    "order": _order, "owners": _owners, "quorum": _quorum, "reached": _reached, "right": _right,
    "serves": _serves, "tend": _tend, "written": _written,
}  # fmt: skip
