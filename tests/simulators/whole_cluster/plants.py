"""Mistakes in the real code that whole clusters must find.

Those of the decisions (`simulators.cluster.plants`) and of the data engine's streams
(`simulators.simulation.plants`) are tried here too; those of the engine in a managed cluster are
below. Each replaces functions of the real code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from millstream.cluster.aio.order_taker import OrderTaker
from millstream.cluster.core import admission, dropping, members, planner
from millstream.cluster.core.elements import ClusterState
from millstream.databases import adopted_records
from millstream.databases.adopted_records import AdoptedRecords
from millstream.databases.managed_engine import IndexStep, ManagedEngine
from millstream.kv.aio.copies import Copies
from millstream.kv.core import bucket, serving
from millstream.kv.core.copies.agreeing_stream import AgreeingFeed
from millstream.kv.core.copies.replica_stream import Feed, Line
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.serving import ServingRights
from millstream.model import serving_rights
from millstream.model.partitions import PartitionState
from millstream.storage.core import branches
from millstream.vsr.core.versions import NEVER
from simulators.cluster import plants as of_decisions
from simulators.cluster.plants import Plant, patched
from simulators.simulation import plants as of_streams

_CONTACT: Final = serving_rights.contact_until_ms
_MAY_SERVE: Final = serving_rights.may_serve
_USE: Final = Acknowledged._use
_PROMISE_ALL: Final = Copies.promise_all
_FEED_ACKNOWLEDGE: Final = Feed._acknowledge
_CARRY_OUT: Final = ManagedEngine.carry_out
_DROP_GONE: Final = ManagedEngine._drop_gone
_SET_RIGHT: Final = ManagedEngine.set_right


def _contact_of_last(node: str, branch: int, rows: Any, contacts: Any, window_ms: int) -> Any:
    return _CONTACT(node, branch, rows[-1:], contacts, window_ms)


def _contact_of_one(node: str, branch: int, rows: Any, contacts: Any, window_ms: int) -> Any:
    times = [one.sent_ms for one in contacts.values()]
    return max(times) + window_ms if times else _CONTACT(node, branch, rows, contacts, window_ms)


def _contact_for_ever(node: str, branch: int, rows: Any, contacts: Any, window_ms: int) -> Any:
    return _CONTACT(node, branch, rows, contacts, 1 << 40)


def _right_unadmitted(**facts: Any) -> Any:
    return _MAY_SERVE(**(facts | {"is_admitted": True}))


def _right_for_ever(**facts: Any) -> Any:
    lease_ms = None if facts["lease_ms"] is None else 1 << 60
    return _MAY_SERVE(**(facts | {"lease_ms": lease_ms}))


def _keeps_its_lease(self: OrderTaker) -> None:
    """Be out of step, but serve on."""
    self.boots = 0


async def _adopts_in_memory(self: AdoptedRecords, records: Any) -> None:
    """Use records that are not durable."""
    known = self.adopted.records
    news = {p: one for p, one in records.items() if one.at > known[p].at}
    merged = tuple(news.get(p, one) for p, one in enumerate(known))
    self.adopted = self.adopted._replace(records=merged)
    if news:
        self._bucket.use_records(news)
    await self._copies.take_places()


async def _promises_in_memory(self: Copies, branches: Any) -> list[int]:
    """Promise, and forget it in a crash."""
    store, self._store.promise = self._store.promise, lambda promised: None  # type: ignore[method-assign]
    try:
        return await _PROMISE_ALL(self, branches)
    finally:
        self._store.promise = store  # type: ignore[method-assign]


async def _promises_and_serves(self: Copies, branches: Any) -> list[int]:
    """An active copy promises, and serves on."""
    every = self._bucket.partitions
    serving = [every[p] for p in branches if every[p].state.name == "ACTIVE"]
    replicas = {p: one for p, one in branches.items() if every[p] not in serving}
    asked = [one.partition_id for one in serving if branches[one.partition_id] > one.last_branch]
    return [*asked, *(await _PROMISE_ALL(self, replicas))]


ENGINE: Final[dict[str, Plant]] = {
    "engine: a take-over that a stop cut off is not begun again": Plant(
        0,
        (
            (admission, "_MAY_TAKE", (PartitionState.REPLICA,)),
            (branches, "take_over_ended", lambda p, summary: ()),
        ),
    ),
    "engine: a majority of the last row acknowledges": Plant(
        0, ((Acknowledged, "_use", lambda self, rows: _USE(self, rows[-1:])),)
    ),
    "engine: a majority of the first row acknowledges": Plant(
        0, ((Acknowledged, "_use", lambda self, rows: _USE(self, rows[:1])),)
    ),
    "engine: the last row is confirmed at once": Plant(
        0, ((Acknowledged, "is_confirmed", property(lambda self: True)),)
    ),
    "engine: acknowledgements go to sources with older records": Plant(
        0,
        (
            (AgreeingFeed, "_acknowledge", lambda self, line: _FEED_ACKNOWLEDGE(self, line)),
            (AgreeingFeed, "_agree", lambda self, line: True),
        ),
    ),
    "engine: a copy that has promised more follows on": Plant(
        0, ((Line, "is_fenced", property(lambda self: False)),)
    ),
    "engine: any branch is followed": Plant(
        0,
        (
            (Feed, "_accepts", staticmethod(lambda line, branch: True)),
            (Line, "is_fenced", property(lambda self: False)),
        ),
    ),
    "engine: contact counts by the last row alone": Plant(
        0, ((serving, "contact_until_ms", _contact_of_last),)
    ),
    "engine: contact with one copy is enough": Plant(
        0, ((serving, "contact_until_ms", _contact_of_one),)
    ),
    "engine: contact does not lapse": Plant(
        0, ((serving, "contact_until_ms", _contact_for_ever),)
    ),
    "engine: a new session serves at once": Plant(
        0,
        (
            (serving, "may_serve", _right_unadmitted),
            (ServingRights, "_is_lease_held", lambda self, now_ms: self._lease_ms is not None),
        ),
    ),
    "engine: a lease does not lapse": Plant(
        0,
        (
            (serving, "may_serve", _right_for_ever),
            (ServingRights, "_is_lease_held", lambda self, now_ms: self._is_admitted),
        ),
    ),
    "engine: who loses the session keeps the lease": Plant(
        0, ((OrderTaker, "leave", _keeps_its_lease),)
    ),
    "engine: who may not serve hands over": Plant(
        0, ((bucket, "may_hand_over", lambda record, reader, right: record.row[0] == reader),)
    ),
    "engine: any reader takes a partition over": Plant(
        0, ((bucket, "may_hand_over", lambda record, reader, right: right.is_given),)
    ),
    "engine: adopted records are not durable": Plant(
        0, ((AdoptedRecords, "adopt", _adopts_in_memory),)
    ),
    "engine: older records replace newer ones": Plant(
        0, ((adopted_records, "is_news", lambda record, known: record != known),)
    ),
    "engine: promises are not durable": Plant(0, ((Copies, "promise_all", _promises_in_memory),)),
    "engine: an active copy that promised serves on": Plant(
        0, ((Copies, "promise_all", _promises_and_serves),)
    ),
    "engine: a new copy knows no branch": Plant(
        0, ((Copies, "_branch_of_record", lambda self, partition: 0),)
    ),
}


def _first_bucket(self: ManagedEngine, uuid: str) -> str:
    return next(iter(self._buckets.served))


async def _index_unchecked(self: ManagedEngine, bucket: str, steps: Any) -> None:
    """Have the index do what it is told of any bucket."""
    index = [step for step in steps if isinstance(step, IndexStep)]
    if index and self._index is not None:
        await self._index.carry_out(bucket, index)
    rest = [step for step in steps if step not in index]
    if rest:
        await _CARRY_OUT(self, bucket, rest)


async def _drops_by_any_maps(self: ManagedEngine, maps: Any) -> None:
    self._newest = NEVER
    await _DROP_GONE(self, maps)


async def _drops_nothing(self: ManagedEngine, maps: Any) -> None:
    """Keep buckets that are gone."""


def _rights_of_first(self: ManagedEngine, lease_ms: int | None, *, is_admitted: bool) -> None:
    """Take the lease of the first bucket only."""
    managed = self._managed()
    if lease_ms is None and managed:
        managed[0].set_right(None, is_admitted=is_admitted)
        return
    _SET_RIGHT(self, lease_ms, is_admitted=is_admitted)


def _one_replica(rows: Any, zones: Any, replicas: int) -> Any:
    return planner.plan_rows(rows, zones, 1)


WIDE: Final[dict[str, Plant]] = {
    "bucket: an order for one is carried out in another": Plant(
        0, ((ManagedEngine, "_name_of", _first_bucket),)
    ),
    "bucket: a late order makes an index part of a dropped one": Plant(
        0, ((ManagedEngine, "carry_out", _index_unchecked),)
    ),
    "bucket: late maps drop new ones": Plant(
        0, ((ManagedEngine, "_drop_gone", _drops_by_any_maps),)
    ),
    "bucket: nodes keep what was dropped": Plant(
        0, ((ManagedEngine, "_drop_gone", _drops_nothing),)
    ),
    "bucket: who loses the session keeps the lease of others than the first": Plant(
        0, ((ManagedEngine, "set_right", _rights_of_first),)
    ),
    "bucket: all get the number of copies of one": Plant(
        0, ((members, "plan_rows", _one_replica),)
    ),
    "group: a node is out while it coordinates": Plant(
        0, ((members, "_coordinates", lambda step, name, node: False),)
    ),
    "bucket: one that is being dropped is decided about": Plant(
        0, ((ClusterState, "without_dropped", lambda self: self),)
    ),
    "bucket: a name is free while nodes have some of it": Plant(
        0, ((dropping, "_may_have", lambda step, name, uuid: False),)
    ),
}
"""Mistakes with several buckets and groups; a seed that plays one bucket cannot find them."""


@contextmanager
def patched_everywhere(plant: Plant) -> Iterator[None]:
    """Have a mistake also where a module has imported the function by its name."""
    modules = [one for name, one in sys.modules.items() if name.startswith("millstream.")]
    found = list(plant.patches)
    for where, what, instead in plant.patches:
        known = where.__dict__[what]
        found += [
            (one, what, instead)
            for one in modules
            if one is not where and known is not None and one.__dict__.get(what) is known
        ]
    with patched(Plant(plant.seed, tuple(found))):
        yield


PLANTS: Final[dict[str, Callable[[], Any]]] = {
    **{name: partial(patched_everywhere, one) for name, one in of_decisions.PLANTS.items()},
    **{name: partial(patched, plant) for name, plant in (ENGINE | WIDE).items()},
    **{f"stream: {name}": plant.make for name, plant in of_streams.PLANTS.items()},
}
FOUND: Final[dict[str, int]] = {
    "maps are written without their version": 7,
    "a row is replaced in one step": 3,
    "a stale plan is carried out": 9,
    "a lost index owner leaves no floor": 1,
    "orders are obeyed out of step": 0,
    "tokens are not compared": 1,
    "orders of older records are carried out": 0,
    "older records replace newer ones": 0,
    "a copy is removed before the row is left": 1,
    "a new session serves at once": 1,
    "contact counts by the last row alone": 1,
    "one promise is enough": 38,
    "the copy of a branch is chosen anew": 3,
    "every promotion is safe": 1,
    "failed nodes are given up without a word": 64,
    "engine: adopted records are not durable": 0,
    "engine: older records replace newer ones": 0,
    "engine: promises are not durable": 0,
    "engine: an active copy that promised serves on": 3,
    "engine: a majority of the last row acknowledges": 1,
    "engine: a majority of the first row acknowledges": 3,
    "engine: contact counts by the last row alone": 1,
    "engine: contact with one copy is enough": 3,
    "engine: contact does not lapse": 0,
    "engine: a new session serves at once": 1,
    "engine: who loses the session keeps the lease": 3,
    "engine: any branch is followed": 3,
    "bucket: an order for one is carried out in another": 16,
    "bucket: late maps drop new ones": 17,
    "bucket: who loses the session keeps the lease of others than the first": 16,
    "group: a node is out while it coordinates": 63,
    "stream: memory_switch": 0,
    "stream: early_barrier": 30,
    "stream: half_is_a_majority": 1,
    "stream: rollback_too_short": 14,
}
"""Mistakes that are found, and by which seed."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have the mistake in the code inside."""
    with PLANTS[name]():
        yield
