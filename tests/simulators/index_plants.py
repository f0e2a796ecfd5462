"""Mistakes to plant in the rules of an index's commits, one per rule; schedules must find each.

A plant takes a monkeypatch. Names say which rule is broken.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from millstream.errors import CorruptionError
from millstream.model.position import Position
from millstream.trees.core.nodes import decode_inner, inner_body, sealed
from millstream.views.core.index import commits, index, publishing, rollback
from millstream.views.core.index.header import Header, decode_header, encode_header
from millstream.views.core.index.index import Index
from millstream.views.core.index.kept_roots import FreeList, decode_free_list, encode_free_list
from simulators.index_world import SHAPE, World

Patch = Any
CHECKSUM_BYTES = 4
PLANTS: dict[str, Callable[[Patch], None]] = {}


def plant(make: Callable[[Patch], None]) -> Callable[[Patch], None]:
    PLANTS[make.__name__] = make
    return make


@plant
def a_rollback_takes_states_and_fence_of_the_older_header(patch: Patch) -> None:
    right = rollback.again

    def again(older: Header, newest: Header) -> Header:
        return msgspec.structs.replace(
            right(older, newest), states=older.states, fence=older.fence,
            positions=older.positions, failover_logs=older.failover_logs,
            purge_seqnos=older.purge_seqnos,
        )  # fmt: skip

    patch.setattr(rollback, "again", again)


@plant
def free_lists_of_discarded_commits_stay(patch: Patch) -> None:
    def go_back(self: Any, older: Header, header: Header, now_ms: int) -> None:
        self._give_up()
        kept = [each for each in self.kept if each.commit <= older.commit]
        freed = FreeList(ranges=((older.next_node, self.newest.next_node),))
        self._commit(header, now_ms, kept, dict(self._free), freed)

    patch.setattr(commits.Commits, "go_back", go_back)


@plant
def only_what_the_discarded_commits_made_is_freed(patch: Patch) -> None:
    world = current_world(patch)

    def go_back(self: Any, older: Header, header: Header, now_ms: int) -> None:
        self._give_up()
        kept = [each for each in self.kept if each.commit <= older.commit]
        gone = [each for each in self.kept if each.commit > older.commit]
        free = {commit: free for commit, free in self._free.items() if commit <= older.commit}
        numbers: list[int] = []
        for before, each in zip([older, *gone], gone, strict=False):
            numbers += [n for n in world().live(each) if n >= before.next_node]
        self._commit(header, now_ms, kept, free, FreeList(tuple(numbers)))

    patch.setattr(commits.Commits, "go_back", go_back)


def current_world(patch: Patch) -> Callable[[], World]:
    made: list[World] = []
    begin = World.__init__

    def remember(self: World, *given: Any) -> None:
        begin(self, *given)
        made.append(self)

    patch.setattr(World, "__init__", remember)
    return lambda: made[-1]


@plant
def what_is_dropped_is_not_cleaned_again(patch: Patch) -> None:
    right = rollback.again

    def again(older: Header, newest: Header) -> Header:
        return msgspec.structs.replace(right(older, newest), states=newest.states)

    patch.setattr(rollback, "again", again)


@plant
def a_header_that_lacks_a_partition_serves(patch: Patch) -> None:
    serve_without(patch, lambda older, p: p not in older.states)


@plant
def a_header_that_cleans_a_partition_serves(patch: Patch) -> None:
    serve_without(patch, lambda older, p: older.states.get(p) == "cleanup")


def serve_without(patch: Patch, excuses: Callable[[Header, int], bool]) -> None:
    """Where a partition is excused, its position stays as it is in the newest header."""

    def filled(older: Header, newest: Header) -> Header:
        lacks = [p for p in newest.positions if p not in older.positions and excuses(older, p)]
        return msgspec.structs.replace(
            older,
            positions={**older.positions, **{p: newest.positions[p] for p in lacks}},
            failover_logs={**older.failover_logs, **dict.fromkeys(lacks, ())},
            purge_seqnos={**older.purge_seqnos, **dict.fromkeys(lacks, 0)},
        )

    def serves(older: Header, newest: Header, judged: Mapping[int, Any]) -> bool:
        positions = filled(older, newest).positions
        return all(
            p in positions and judged[p].accepts(older.positions.get(p, Position()))
            for p in newest.positions
        )

    right = rollback.again
    patch.setattr(rollback, "_serves", serves)
    patch.setattr(rollback, "again", lambda older, newest: right(filled(older, newest), newest))


@plant
def parts_need_not_join(patch: Patch) -> None:
    patch.setattr(publishing, "_why_not_joined", lambda here, part: None)


@plant
def the_position_of_the_index_is_not_judged(patch: Patch) -> None:
    leave_in(patch, "position_refused")


@plant
def a_lost_lease_does_not_matter(patch: Patch) -> None:
    leave_in(patch, "lease_lost")


def leave_in(patch: Patch, excused: str) -> None:
    right = publishing.why_left_out

    def why_left_out(header: Header, partition: int, part: Any, judged: Any) -> Any:
        why = right(header, partition, part, judged)
        if why != excused:
            return why
        if not judged[partition].accepts(part.end):
            return "end_refused"
        here = header.positions[partition]
        if excused == "lease_lost" and not judged[partition].accepts(here):
            return "position_refused"
        return publishing._why_not_joined(here, part)

    patch.setattr(index, "why_left_out", why_left_out)


@plant
def what_no_root_serves_is_not_read_from_0(patch: Patch) -> None:
    world = current_world(patch)
    right = rollback.emptied

    def emptied(header: Header, partitions: list[int]) -> Header:
        positions = dict(header.positions)
        for p in partitions:
            source = world().sources[p]
            seqno = source.rollback_seqno(positions[p])
            positions[p] = Position(source.uuid, seqno, seqno, seqno)
        return msgspec.structs.replace(right(header, partitions), positions=positions)

    patch.setattr(rollback, "emptied", emptied)


@plant
def void_partitions_are_not_cleaned_when_filled(patch: Patch) -> None:
    right = rollback.emptied

    def emptied(header: Header, partitions: list[int]) -> Header:
        return msgspec.structs.replace(right(header, partitions), void=header.void)

    patch.setattr(rollback, "emptied", emptied)


@plant
def positions_lose_their_snapshot(patch: Patch) -> None:
    right = index._with_parts

    def with_parts(header: Header, taken: Mapping[int, Any]) -> Header:
        bare = {
            p: part._replace(end=Position(part.end.uuid, *[part.end.seqno] * 3))
            for p, part in taken.items()
        }
        return right(header, bare)

    patch.setattr(index, "_with_parts", with_parts)


@plant
def anybody_publishes(patch: Patch) -> None:
    patch.setattr(Index, "check_fence", lambda self, fence: None)


@plant
def compaction_numbers_anew(patch: Patch) -> None:
    def compact(self: World) -> None:
        self.queries.clear()
        number_anew(self)
        self.index = Index(self.store, SHAPE, self.now_ms, self.bounds)
        self.note("numbered anew")

    patch.setattr(World, "compact", compact)


def number_anew(world: World) -> None:
    """Give every stored node a new number, after all that were given, in the same order."""
    store = world.store
    first = world.index.newest.next_node
    new = {number: first + at for at, number in enumerate(sorted(store.nodes))}
    nodes = {new[number]: moved(number, data, new) for number, data in store.nodes.items()}
    store.nodes = nodes
    for commit, data in store.headers.items():
        header = decode_header(data)
        roots = [root and root._replace(number=new[root.number]) for root in header.roots]
        header = msgspec.structs.replace(header, back=roots[0], trees=tuple(roots[1:]))
        if commit == max(store.headers):
            header = msgspec.structs.replace(header, next_node=first + len(new))
        store.headers[commit] = encode_header(header)
    for commit, data in store.free_lists.items():
        free = decode_free_list(data)
        numbers = [*free.numbers, *(n for begin, end in free.ranges for n in range(begin, end))]
        kept = FreeList(tuple(new[number] for number in numbers if number in new))
        store.free_lists[commit] = encode_free_list(kept)


def moved(number: int, data: bytes, new: Mapping[int, int]) -> bytes:
    try:
        node = decode_inner(number, data)
    except CorruptionError:  # a leaf
        return sealed(new[number], data[CHECKSUM_BYTES:])
    numbers = [new[child] for child in node.numbers]
    body, _ = inner_body(node.lasts, numbers, node.counts, node.sets, node.partials)
    return sealed(new[number], body)


@plant
def compaction_keeps_the_newest_root_only(patch: Patch) -> None:
    right = World.compact

    def compact(self: World) -> None:
        right(self)
        live = self.live(self.index.newest)
        self.store.nodes = {n: data for n, data in self.store.nodes.items() if n in live}

    patch.setattr(World, "compact", compact)


@plant
def queries_do_not_hold_their_root(patch: Patch) -> None:
    def oldest_needed(self: Any, kept: list[Header], now_ms: int) -> int:
        return kept[0].commit

    patch.setattr(commits.Commits, "_oldest_needed", oldest_needed)
