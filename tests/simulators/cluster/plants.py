"""Mistakes in the cores of a managed cluster that its schedules must find.

Each replaces functions of the real code. The seed is one that finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as with_fields
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from millstream.cluster.core import (
    admission,
    deciding,
    fail_over,
    index_moving,
    quorums,
    recovery,
    writes,
)
from millstream.cluster.core.admission import Remove, Ruling
from millstream.cluster.core.elements import ClusterState, NodeRecord
from millstream.cluster.core.index_moving import IndexChange, IndexMoves
from millstream.cluster.core.memory import Chosen, Promised
from millstream.cluster.core.moving import Moves
from millstream.cluster.core.orders import Reply
from millstream.model import rows, serving_rights
from millstream.model.cluster_maps import NO_FLOOR, Floor, MapKey
from millstream.model.serving_rights import Right

Patch = tuple[Any, str, Any]


class Plant(NamedTuple):
    seed: int
    patches: tuple[Patch, ...]
    is_restored: bool = False
    """Coordination has to lose entries for it."""


_JUDGE_ORDER: Final = admission.judge_order
_REFUSAL: Final = admission._refusal
_COPY_RULING: Final = admission._copy_ruling
_JUDGE_ROWS: Final = quorums.judge_rows
_DECIDE_STEP: Final = deciding.Step
_CONTACT: Final = serving_rights.contact_until_ms
_SETTLE: Final = Moves._settle
_IS_READY: Final = Moves._is_ready
_GO_ON: Final = fail_over._go_on
_DATA_MAP: Final = recovery._data_map


def _unless(code: str) -> Callable[..., Any]:
    def refusal(order: Any, known: Any) -> Reply | None:
        found = _REFUSAL(order, known)
        return None if found is not None and found.code == code else found

    return refusal


def _any_age(order: Any, known: Any) -> Ruling:
    """Carry out what an older record asks for; the record itself is not adopted."""
    old = known.record
    if order.record is not None and old is not None and order.record.at < old.at:
        if known.copy is None or _REFUSAL(order, known) is not None:
            return Ruling()
        return _COPY_RULING(order, known.node, known.boots, order.record, known.copy, [])
    return _JUDGE_ORDER(order, known)


def _removes_blindly(order: Any, known: Any) -> Ruling:
    if order.kind == "remove" and known.copy is not None and _REFUSAL(order, known) is None:
        return Ruling((Remove(order.place),))
    return _JUDGE_ORDER(order, known)


def _activates(order: Any, copy: Any) -> bool:
    return bool(order.branch > copy.standing.branch)


def _map_of_state(uuid: str, generation: int, state: ClusterState, held: Any) -> Any:
    return _DATA_MAP(uuid, generation, state, {} if uuid in state.data else held)


def _fences_softly(order: Any, *facts: Any) -> Ruling:
    ruling = _COPY_RULING(order, *facts)
    if order.kind != "fence":
        return ruling
    return Ruling(tuple(
        step._replace(stands_down=False) if isinstance(step, admission.Promise) else step
        for step in ruling.steps
    ))  # fmt: skip


def _serving_by_promises(record: Any, answers: Any) -> str | None:
    return quorums.serving(record.voters, answers)


def _towards_at_once(
    self: Moves, place: Any, record: Any, target: Any, chosen: str, mine: Any
) -> Any:
    new = tuple(name for name in target if name is not None and name not in record.voters)
    if not set(new) <= set(record.building):
        return replace(record, building=new)
    if all(_IS_READY(self, place, record, name, mine) for name in new):
        return replace(record, rows=(target,), building=())
    return None


def _is_ready_anyhow(**changes: Any) -> Callable[..., bool]:
    """Take reports of copies that are being built as if they said this."""

    def is_ready(self: Moves, place: Any, record: Any, name: str, mine: Any) -> bool:
        copy = self.step.memory.copy(name, place)
        if copy is None or not copy.is_there:
            return False
        better = replace(
            copy,
            at=record.at if "at" in changes else copy.at,
            standing=copy.standing._replace(
                **{name: value for name, value in changes.items() if name != "at"}
            ),
        )
        self.step.memory.copies[name][place] = better
        try:
            return _IS_READY(self, place, record, name, mine)
        finally:
            self.step.memory.copies[name][place] = copy

    return is_ready


def _leaves_if(confirmed: bool, known: bool, asleep: bool) -> Callable[..., bool]:
    def may_leave(self: Moves, place: Any, record: Any, mine: Any) -> bool:
        if confirmed and not (mine.is_confirmed and mine.at >= record.since):
            return False
        if mine.at < record.since:
            return False
        for row in record.rows[:-1]:
            knows = {n for n in row if n is None or self._knows(place, record, n, mine)}
            count = len(knows - {None}) + row.count(None)
            if known and count <= rows.spare(row):
                return False
            rest = {n for n in row if n is not None and n not in knows}
            if asleep and rest & self.step.state.live.keys():
                return False
        return True

    return may_leave


def _removes_early(self: Moves, place: Any, record: Any, chosen: str, mine: Any) -> Any:
    if chosen == record.row[0]:
        for name, copy in self.step.memory.told(place):
            if copy.is_there and name not in record.row:
                self.step.order("remove", name, place, record)
    return _SETTLE(self, place, record, chosen, mine)


def _without_coordination(view: Any, memory: Any) -> Any:
    """Take silent nodes for dead, though coordination does not say so."""
    live = {name: one for name, one in view.state.live.items() if name in memory.nodes}
    state = with_fields(view.state, live=live)
    answered = frozenset(memory.nodes)
    return _DECIDE_STEP(view._replace(is_fresh=True, state=state, answered=answered), memory)


def _go_on_by_reports(step: Any, place: Any, record: Any, promotion: Any) -> None:
    for name, standing in step.memory.answers(place, record.voters).items():
        promised = Promised(standing, None, step.view.now_ms)
        promotion.promised.setdefault(name, promised)
    _GO_ON(step, place, record, promotion)


def _chosen_anew(step: Any, record: Any, promotion: Any) -> Chosen:
    promised = promotion.standings()
    best = quorums.furthest(record, promised)
    return Chosen(best, promised[best].complete_end, ())


def _admits_replaced(step: Any, name: str, place: Any, record: Any, mine: Any) -> bool:
    if place in step.memory.begun:
        return False
    blocked = {
        voter for voter in record.voters if voter in step.view.answered
        and (copy := step.memory.copy(voter, place)) is not None
        and copy.standing.last_branch <= mine.branch
    }  # fmt: skip
    return all(quorums.promises_enough(row, blocked) for row in record.rows)


def _blocked_asleep(row: Any, blocked: Any) -> bool:
    """Take a copy that did not answer for one that has promised nothing."""
    return True


def _forgets_begun(step: Any, place: Any, record: Any, promotion: Any) -> None:
    _GO_ON(step, place, record, promotion)
    if place not in step.memory.promotions:
        step.memory.begun.pop(place, None)


def _contact_of_all(node: str, branch: int, rows: Any, contacts: Any, window_ms: int) -> Any:
    contacts = {name: one._replace(last_branch=0) for name, one in contacts.items()}
    return _CONTACT(node, branch, rows, contacts, window_ms)


def _contact_of_last(node: str, branch: int, rows: Any, contacts: Any, window_ms: int) -> Any:
    return _CONTACT(node, branch, rows[-1:], contacts, window_ms)


def _with_lease_only(**facts: Any) -> Right:
    return Right(facts["is_active"] and facts["lease_ms"] is not None, False)


def _right_unadmitted(**facts: Any) -> Right:
    return _MAY_SERVE(**(facts | {"is_admitted": True}))


_MAY_SERVE: Final = serving_rights.may_serve


def _hands_over_at_once(
    self: IndexMoves, place: Any, record: Any, owner: str, wanted: str, coming: Any
) -> Any:
    going = self._part(owner, place)
    if going is None or not index_moving._is_at(coming, going.reached):
        return None
    floor = max(coming.reached, record.floor)
    return IndexChange(replace(record, owner=wanted, building=None, floor=floor))


def _floor_of_any(self: IndexMoves, place: Any) -> Any:
    record = self.step.state.data[place.bucket].records[place.partition]
    chosen = record.active
    copy = None if chosen is None else self.step.memory.copy(chosen, place)
    if copy is None or not copy.is_there:
        return None
    return Floor(copy.standing.branch, copy.standing.complete_end)


_PUT_INDEX: Final = writes.put_index_map


def _exists(path: str, version: Any) -> Any:
    return writes._exists(path)


def _activates_in_any_session(order: Any, node: str, boots: int, *facts: Any) -> Ruling:
    return _COPY_RULING(order, node, order.boots, *facts)


PLANTS: Final[dict[str, Plant]] = {
    "an old session's activation is carried out": Plant(
        0, ((admission, "_copy_ruling", _activates_in_any_session),)
    ),
    "orders are obeyed out of step": Plant(0, ((admission, "_refusal", _unless("out_of_step")),)),
    "tokens are not compared": Plant(0, ((admission, "_refusal", _unless("deposed")),)),
    "orders of older records are carried out": Plant(8, ((admission, "judge_order", _any_age),)),
    "a copy is removed without a look at the record": Plant(
        8, ((admission, "judge_order", _removes_blindly),)
    ),
    "a copy is activated without its promise": Plant(
        13,
        (
            (admission, "_may_activate", _activates),
            (fail_over, "_go_on", _go_on_by_reports),
        ),
    ),
    "a fence leaves the old copy active": Plant(
        2047, ((admission, "_copy_ruling", _fences_softly),)
    ),
    "older records replace newer ones": Plant(
        1, ((admission, "is_news", lambda record, known: record != known),)
    ),
    "maps are written without their version": Plant(4, ((writes, "_version", _exists),)),
    "one promise is enough": Plant(74, ((quorums, "spare", lambda row: 0),)),
    "only the new row promises": Plant(
        4588, ((fail_over, "judge_rows", lambda rows, told: _JUDGE_ROWS(rows[-1:], told)),)
    ),
    "only the old active copy must promise": Plant(
        38,
        (
            (
                fail_over,
                "_askable",
                lambda step, record: [n for n in (record.active,) if n in step.state.live],
            ),
        ),
    ),
    "contact is not waited for": Plant(
        34, ((fail_over, "_has_contact_lapsed", lambda step, record, promotion: True),)
    ),
    "the copy of a branch is chosen anew": Plant(
        21,
        ((fail_over, "_chosen", _chosen_anew),),
    ),
    "a repeated promotion is not known to be begun": Plant(
        0, ((fail_over, "_go_on", _forgets_begun),)
    ),
    "two orchestrators take the same branch": Plant(
        0, ((fail_over, "branch_above", lambda newest, by_clock, noise: newest + 1),)
    ),
    "every promotion is safe": Plant(25, ((fail_over, "is_allowed", lambda *facts: True),)),
    "the branch of the record may fall": Plant(
        2004, ((fail_over, "serving_copy", _serving_by_promises),)
    ),
    "nobody cares what readers have heard": Plant(
        0, ((deciding, "is_heard_above", lambda memory, place, chosen: False),)
    ),
    "silent nodes are dead without coordination": Plant(
        33, ((deciding, "Step", _without_coordination),)
    ),
    "a node is admitted with copies that were replaced": Plant(
        6064, ((fail_over, "_is_admissible", _admits_replaced),)
    ),
    "a node is admitted without the answers of others": Plant(
        2344, ((fail_over, "promises_enough", _blocked_asleep),)
    ),
    "failed nodes are given up without a word": Plant(
        90, ((NodeRecord, "is_given_up", property(lambda node: node.state == "failed")),)
    ),
    "a row is replaced in one step": Plant(1, ((Moves, "_towards", _towards_at_once),)),
    "a copy is removed before the row is left": Plant(
        0,
        (
            (Moves, "_settle", _removes_early),
            (admission, "judge_order", _removes_blindly),
        ),
    ),
    "a row is left before the new one has everything": Plant(
        0, ((Moves, "_may_leave", _leaves_if(False, True, True)),)
    ),
    "a row is left before its copies know": Plant(
        0, ((Moves, "_may_leave", _leaves_if(True, False, False)),)
    ),
    "a row is left while one of its copies may obey": Plant(
        0, ((Moves, "_may_leave", _leaves_if(True, True, False)),)
    ),
    "a copy counts before it has what it owes": Plant(
        0, ((Moves, "_is_ready", _is_ready_anyhow(is_intact=True, is_whole=True)),)
    ),
    "a copy counts before it knows the record": Plant(
        0, ((Moves, "_is_ready", _is_ready_anyhow(at=True)),)
    ),
    "a stale plan is carried out": Plant(
        2, ((ClusterState, "basis", property(lambda state: {})),)
    ),
    "a new session serves at once": Plant(3, ((serving_rights, "may_serve", _right_unadmitted),)),
    "contact counts with copies that promised more": Plant(
        0, ((serving_rights, "contact_until_ms", _contact_of_all),)
    ),
    "contact counts by the last row alone": Plant(
        0, ((serving_rights, "contact_until_ms", _contact_of_last),)
    ),
    "acknowledgements go to sources with older records": Plant(
        0, ((serving_rights, "may_acknowledge", lambda own, source: True),)
    ),
    "who may not serve hands over": Plant(
        0,
        (
            (
                serving_rights,
                "may_hand_over",
                lambda record, reader, right: record.row[0] == reader,
            ),
        ),
    ),
    "any reader takes a partition over": Plant(
        0, ((serving_rights, "may_hand_over", lambda record, reader, right: right.is_given),)
    ),
    "an index answers before it has its floor": Plant(
        173, ((index_moving, "has_reached", lambda log, seqno, floor: True),)
    ),
    "an index answers in any state": Plant(
        32, ((index_moving, "may_answer", lambda node, asked, own, part: part is not None),)
    ),
    "a new index owner is named before it has everything": Plant(
        0, ((index_moving, "_is_at", lambda part, floor: True),)
    ),
    "an index is handed over without a stop": Plant(
        0, ((IndexMoves, "_hand_over", _hands_over_at_once),)
    ),
    "a lost index owner may have had a session since": Plant(
        0, ((deciding, "put_index_map", lambda state, new, lost: _PUT_INDEX(state, new)),)
    ),
    "the floor of a lost owner comes from any active copy": Plant(
        0, ((IndexMoves, "_floor", _floor_of_any),)
    ),
    "a lost index owner leaves no floor": Plant(
        8, ((IndexMoves, "_floor", lambda self, place: NO_FLOOR),)
    ),
    "a majority of the last row acknowledges": Plant(
        0, ((rows, "reached", lambda rows, ends: _REACHED(rows[-1:], ends)),)
    ),
    "a restored state is acted upon": Plant(
        1, ((ClusterState, "is_forked", property(lambda state: False)),), is_restored=True
    ),
    "restored maps are taken for true": Plant(
        4, ((recovery, "_data_map", _map_of_state),), is_restored=True
    ),
    "a rebuilt state uses keys again": Plant(
        121, ((recovery, "_keys", lambda state, held: [MapKey(0, 0)]),), is_restored=True
    ),
}

RARE: Final = frozenset(
    (
        "an old session's activation is carried out",
        "orders are obeyed out of step",
        "tokens are not compared",
        "a repeated promotion is not known to be begun",
        "two orchestrators take the same branch",
        "nobody cares what readers have heard",
        "a row is left before the new one has everything",
        "a row is left before its copies know",
        "a row is left while one of its copies may obey",
        "a copy counts before it has what it owes",
        "a copy counts before it knows the record",
        "contact counts with copies that promised more",
        "contact counts by the last row alone",
        "acknowledgements go to sources with older records",
        "who may not serve hands over",
        "any reader takes a partition over",
        "a new index owner is named before it has everything",
        "an index is handed over without a stop",
        "a lost index owner may have had a session since",
        "the floor of a lost owner comes from any active copy",
        "a majority of the last row acknowledges",
    )
)
"""Chance meets these too seldom: search longer, with `--plant`."""
_REACHED: Final = rows.reached


@contextmanager
def patched(plant: Plant) -> Iterator[None]:
    """Have a mistake in the code inside."""
    before = [(where, what, where.__dict__[what]) for where, what, _ in plant.patches]
    for where, what, instead in plant.patches:
        setattr(where, what, instead)
    try:
        yield
    finally:
        for where, what, known in before:
            setattr(where, what, known)


@contextmanager
def planted(name: str) -> Iterator[int]:
    """Have the mistake in the code inside; give the seed that finds it."""
    with patched(PLANTS[name]):
        yield PLANTS[name].seed
