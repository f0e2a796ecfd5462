"""One index's life as a list of steps, each of at most one commit, the same whenever it is run.

A first build, changes, other states, failures of sources with a root to go back to and without,
cleaning, compaction in small steps. Who runs it on a store that fails or is killed anywhere knows
what every commit must look like, and at which step to go on.
"""

from collections.abc import Callable, Collection

from millstream.errors import CorruptionError
from millstream.model.position import FailoverEntry, FailoverLog, Position
from millstream.trees.core.reader import TreeReader
from millstream.views.core.index.back_index import back_key, back_value, entry_of
from millstream.views.core.index.header import (
    DocumentRows,
    Header,
    Judged,
    PartRead,
    encode_header,
)
from millstream.views.core.index.index import Index
from millstream.views.core.index.kept_roots import KeptBounds
from millstream.views.core.index.node_store import NodeStore
from millstream.views.core.rows import row_key, row_value
from support.views.filled_index import SHAPE, closed, document

LOG: FailoverLog = (FailoverEntry(7, 0, 1),)
LATER: FailoverLog = (FailoverEntry(8, 250, 2), *LOG)
ANEW: FailoverLog = (FailoverEntry(9, 0, 3),)
BOUNDS = KeptBounds(newest_min=4, roots_max=4)
DOCUMENTS = 240
Step = Callable[[Index], object]


def opened(store: NodeStore) -> Index:
    return Index(store, SHAPE, 1, BOUNDS)


def documents(partition: int, value: int, every: int = 1) -> list[DocumentRows]:
    numbers = range(partition, DOCUMENTS, 4)
    return [document(number, value) for number in list(numbers)[::every]]


def judged(log: FailoverLog, high_seqno: int = 10_000) -> dict[int, Judged]:
    return {partition: Judged(log, high_seqno) for partition in range(4)}


def publish(
    index: Index, start: int, end: int, every: int = 1, log: FailoverLog = LOG, uuid: int = 7
) -> None:
    partitions = [p for p in index.newest.positions if index.newest.positions[p].seqno == start]
    parts = {
        p: PartRead(
            index.newest.positions[p], Position(uuid, end, end, end), log, 0,
            documents(p, end, every),
        )
        for p in partitions
    }  # fmt: skip
    done = index.publish(index.newest.fence, parts, judged(log), end)
    assert not done.left_out


Runs = tuple[list[tuple[bytes, int, bytes]], list[list[tuple[bytes, int, bytes]]]]


def runs(partitions: Collection[int], value: int) -> Runs:
    """Sorted rows of all documents."""
    found = [each for p in partitions for each in documents(p, value)]
    back, trees = [], ([], [])
    for each in found:
        entry = entry_of(each.rows)
        back.append((back_key(each.partition, each.doc_id), each.partition, back_value(entry)))
        for tree, ekeys in entry.items():
            for ekey, pairs in ekeys.items():
                row = (row_key(ekey, each.doc_id), each.partition, row_value(pairs))
                trees[tree].append(row)
    return sorted(back), [*map(sorted, trees)]


def first_build(index: Index) -> None:
    parts = {p: PartRead(Position(), closed(100), LOG) for p in range(4)}
    index.load(index.newest.fence, parts, judged(LOG), *runs(range(4), 1), 100)


def rebuild(index: Index, at: int) -> None:
    logs = {0: ANEW, 1: LATER, 2: LATER}
    parts = {
        p: PartRead(Position(), Position(log[0].uuid, at, at, at), log) for p, log in logs.items()
    }
    judges = {p: judged(log)[p] for p, log in logs.items()}
    done = index.rebuild(index.newest.fence, parts, judges, *runs(logs, 500), at)
    assert not done.left_out


STEPS: list[Step] = [
    lambda index: index.set_states(range(4), [], 2),
    lambda index: index.take_over("a life", 3),
    first_build,
    lambda index: publish(index, 100, 200, every=7),
    lambda index: index.compact_step(5),
    lambda index: publish(index, 200, 300),
    lambda index: index.compact_step(5),
    lambda index: index.roll_back(judged(LATER), 310),
    lambda index: publish(index, 200, 320, every=5, log=LATER, uuid=8),
    lambda index: index.compact_step(1000),
    lambda index: index.set_states([0, 1, 2], [], 330),
    lambda index: index.clean_step(331, nodes_max=1),
    lambda index: publish(index, 320, 340, every=9, log=LATER, uuid=8),
    lambda index: index.clean_step(341, nodes_max=1),
    lambda index: index.roll_back({0: judged(ANEW)[0]}, 350),
    lambda index: publish(index, 340, 360, every=3, log=LATER, uuid=8),
    lambda index: publish(index, 0, 370, log=ANEW, uuid=9),
    lambda index: index.clean_step(371),
    lambda index: index.clean_step(372),
    lambda index: index.take_over("another life", 380),
    lambda index: index.compact_step(1000),
    lambda index: index.compact_step(5),
    lambda index: rebuild(index, 400),
    lambda index: index.compact_step(1000),
    lambda index: index.take_over("after a build", 410),
    lambda index: index.roll_back({0: Judged((FailoverEntry(10, 380, 4), *ANEW), 9999)}, 420),
    lambda index: rebuild(index, 430),
    *[lambda index, at=at: index.take_over("until nothing is kept", at) for at in range(431, 440)],
]


def contents(store: NodeStore, header: Header) -> bytes:
    """All that a commit shows: its header and its rows."""
    rows = [
        (leaf.keys, leaf.values, list(leaf.partitions))
        for root in header.roots
        for leaf in TreeReader(store, root).scan()
    ]
    return repr((encode_header(header), rows)).encode()


def expected(store: NodeStore) -> tuple[dict[int, bytes], dict[int, int]]:
    """Run all of it.

    Returns:
        By commit what it shows, and the step to go on with.
    """
    index = opened(store)
    shown = {0: contents(store, index.newest)}
    following = {0: 0}
    for number, step in enumerate(STEPS, 1):
        step(index)
        shown[index.newest.commit] = contents(store, index.newest)
        following[index.newest.commit] = number
    return shown, following


def is_complete(store: NodeStore, index: Index) -> bool:
    """Whether all kept roots can be read from beginning to end."""
    try:
        return all(contents(store, header) for header in index.kept)
    except CorruptionError:
        return False
