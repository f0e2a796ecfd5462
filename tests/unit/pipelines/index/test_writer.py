"""Decisions of the cycle that need no node; with one: tests/e2e/test_outside_index.py."""

import threading

import pytest

from millstream.client.extensions import LeaseHold, PartitionPosition
from millstream.errors import ConditionError, UsageError
from millstream.model.limits import PARTITIONS_MAX
from millstream.model.position import FailoverEntry, Position, position_from_json, position_to_json
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index import writer as module
from millstream.pipelines.index.mapping import Failures, MapSpec, TaskDone
from millstream.pipelines.index.planning import AGAIN_CHANGES_MAX, PartPlan
from millstream.pipelines.index.shard import IndexAddress, IndexState
from millstream.pipelines.index.writer import (
    KEEP_S,
    ROWS_PER_COMMIT,
    ROWS_PER_COMMIT_MAX,
    IndexWriter,
    divided,
    rows_per_commit,
)
from millstream.views.aio.indexing.staging import STAGED_LEASE_S
from millstream.views.aio.serving.outside_writer import DOCUMENTS_MAX
from millstream.views.core.index.header import MapFailure
from millstream.wire.cluster_map import ClusterMap, NodeAddress


def plans(*sizes):
    return [
        PartPlan(p, Position(), Position(1, size, size, size), 1) for p, size in enumerate(sizes)
    ]


def test_tasks_are_of_about_equal_size():
    tasks = divided(plans(10, 1, 5, 4, 6, 2), 3)
    assert sorted(sum(plan.rows_max for plan in task) for task in tasks) == [9, 9, 10]
    assert sorted(plan.partition for task in tasks for plan in task) == [0, 1, 2, 3, 4, 5]


def test_there_is_no_task_without_work():
    assert divided([], 3) == []
    assert len(divided(plans(5), 3)) == 1


def map_of(*hosts):
    nodes = tuple(NodeAddress(host, 1) for host in hosts)
    return ClusterMap(1, 1, nodes, (0,), {}, "u", nodes[0], (8,) * len(nodes))


class Node:
    """One partition with an index: leases and commits, instead of a node."""

    def __init__(self, high):
        self.cluster_map = map_of("h")
        self.high = high
        self.at = Position()
        self.commits = []
        self.takes = True
        self.unserved = set()
        self.staged = None
        """Names of files; None: whatever is named is there."""
        self.kept = threading.Event()

    def __call__(self, _):  # as `IndexShard` and as `NodeControl`
        return self

    def close(self):
        pass

    def positions_now(self, partitions):
        served = [p for p in partitions if p not in self.unserved]
        return {p: PartitionPosition(p, 1, 7, 1, *[self.high] * 5, 0) for p in served}

    def open_lease(self, partitions):
        return {p: LeaseHold(9, p, self.high, 7, 2, 0) for p in partitions}

    def renew_lease(self, _, partitions):
        return self.open_lease(partitions)

    def let_go(self, _, partitions):
        pass

    def failover_log(self, _):
        return (FailoverEntry(7, 0, 1),)

    def judge(self, fence, published=()):
        return IndexState(
            signature="s", engine="spark", writer="w", fence=fence, commit=1, committed_ms=0,
            is_empty=not self.at.seqno, trees=1, rows=[0], states={0: "active"},
            positions={0: position_to_json(self.at)}, published=list(published),
        )  # fmt: skip

    def load(self, fence, said):
        return self.take("load", fence, said)

    def publish(self, fence, said):
        return self.take("publish", fence, said)

    def keep(self, fence):
        self.kept.set()
        return sorted(self.staged or ())

    def take(self, kind, fence, said):
        named = {*said.get("documents", ()), *said.get("back", ())}
        if self.staged is not None and not named <= self.staged:
            raise ConditionError("a file is gone", code="run_missing")
        self.commits.append((kind, said))
        if self.takes:
            self.at = position_from_json(said["parts"]["0"]["end"])
        return self.judge(fence, [0] if self.takes else [])


class NoKeeper:
    def __init__(self, options, *_):
        self.options = options

    def stop(self):
        pass


@pytest.fixture
def node(monkeypatch):
    node = Node(1000)
    monkeypatch.setattr(module, "IndexShard", node)
    monkeypatch.setattr(module, "NodeControl", node)
    monkeypatch.setattr(module, "LeaseKeeper", NoKeeper)
    return node


def writer_of(run_tasks=lambda spec, tasks: [TaskDone(changes=1)], rows_max=100):
    spec = MapSpec(
        source=parse_options({"bucket": "b"}),
        address=IndexAddress(host="h", port=1, bucket="b", design="d"),
        bucket_uuid="ab" * 16, design=b"{}", signature="s", fence=6, is_first=False,
    )  # fmt: skip
    return IndexWriter(spec, run_tasks, name="w", rows_max=rows_max)


def test_tasks_and_leases_follow_nodes_that_are_replaced(node):
    hosts = []

    def run(spec, tasks):
        hosts.append(spec.source.hosts)
        return [TaskDone(changes=1)]

    writer = writer_of(run)
    assert writer.cycle()
    node.cluster_map = map_of("n3", "n4")
    node.high += 1
    assert writer.cycle()
    assert hosts == ["127.0.0.1:11210,h:1", "127.0.0.1:11210,n3:1,n4:1"]
    assert writer._keeper.options.hosts == hosts[-1]


def test_after_a_first_build_in_vain_changes_are_brought_in_piece_by_piece(node):
    writer = writer_of()
    node.takes = False
    assert writer.cycle().is_first
    node.takes = True
    assert not writer.cycle().is_first
    assert node.at.seqno == 100
    assert [kind for kind, _ in node.commits] == ["load", "publish"]


def test_a_lease_lost_far_inside_a_snapshot_has_the_index_built_anew(node):
    node.high = 2_000_000
    node.at = Position(7, 1_520_000, 1_000_000, 2_000_000)
    assert writer_of(rows_max=20_000).cycle().is_first
    assert node.at.seqno == 2_000_000


def test_a_commit_lists_the_last_failures_of_each_tree_and_counts_the_others(node, monkeypatch):
    def failures(tree, partition):
        return [MapFailure(tree, f"k{partition}.{n}", "x") for n in range(20)]

    done = TaskDone(
        failures={p: Failures([*failures(0, p), *failures(1, p)], {1: 3}) for p in range(4)}
    )
    plans = [PartPlan(p, Position(), Position(7, 9, 9, 9), 9) for p in range(4)]
    writer = writer_of()
    monkeypatch.setattr(writer, "_still_held", lambda plans: {0, 1, 2})
    parts = writer._parts(plans, [done])
    for tree, before in ((0, 40), (1, 40 + 9)):
        told = [parts[str(p)] for p in range(3)]
        listed = [each for part in told for each in part["failures"] if each.tree == tree]
        assert len(listed) == 20
        assert sum(part["failures_before"].get(tree, 0) for part in told) == before
    assert not parts["3"]["is_whole"]
    assert parts["3"]["failures"] == []


def test_a_failed_build_is_repeated_only_after_the_lease(node):
    node.high = 2_000_000
    writer = writer_of(rows_max=600_000)
    node.takes = False
    writer.cycle()
    node.takes = True
    for _ in range(2):
        assert not writer.cycle().is_first
    assert node.at[1:4] == (1_200_000, 0, 2_000_000)
    writer._held.clear()
    assert writer.cycle().is_first
    assert node.at.seqno == 2_000_000


def test_tasks_whose_files_are_gone_run_once_more(node):
    node.staged = set()
    ran = []

    def run(spec, tasks):
        ran.append([plan.partition for task in tasks for plan in task])
        name = f"r{len(ran)}"
        if len(ran) > 1:
            node.staged.add(name)
        return [TaskDone(changes=1, back=[name], partitions=[0])]

    writer = writer_of(run)
    assert writer.cycle().parts == 1
    assert ran == [[0], [0]]
    assert [said["back"] for _, said in node.commits] == [["r2"]]


def test_tasks_whose_files_are_there_do_not(node):
    node.staged = {"a", "b"}
    ran = []

    def run(spec, tasks):
        ran.append(tasks)
        node.staged.add("d")
        return [TaskDone(back=["d"], partitions=[2])]

    writer = writer_of(run)
    tasks = [[plan] for plan in plans(5, 5, 5)]
    done = [TaskDone(back=[name], partitions=[p]) for p, name in enumerate("abc")]
    again = writer._again(writer._spec, tasks, done)
    assert ran == [[tasks[2]]]
    assert [each.back for each in again] == [["a"], ["b"], ["d"]]


def test_files_that_are_gone_again_end_the_cycle(node):
    node.staged = set()
    writer = writer_of(lambda spec, tasks: [TaskDone(back=["x"], partitions=[0])])
    with pytest.raises(ConditionError) as caught:
        writer.cycle()
    assert caught.value.code == "run_missing"


def test_the_node_hears_of_a_writer_whose_tasks_take_long(node, monkeypatch):
    monkeypatch.setattr(module, "KEEP_S", 0.001)

    def slow(spec, tasks):
        assert node.kept.wait(60)
        return [TaskDone(changes=1)]

    assert writer_of(slow).cycle().parts == 1
    assert KEEP_S * 4 < STAGED_LEASE_S


def test_a_commit_has_no_more_changes_than_the_node_takes():
    assert ROWS_PER_COMMIT_MAX + AGAIN_CHANGES_MAX + PARTITIONS_MAX < DOCUMENTS_MAX
    assert rows_per_commit(None) == ROWS_PER_COMMIT
    assert rows_per_commit(ROWS_PER_COMMIT_MAX) == ROWS_PER_COMMIT_MAX
    for given in (0, ROWS_PER_COMMIT_MAX + 1):
        with pytest.raises(UsageError) as caught:
            rows_per_commit(given)
        assert caught.value.code == "bad_rows_per_commit"


def test_an_unserved_partition_waits(node):
    writer = writer_of()
    node.unserved = {0}
    assert writer.cycle() is None
    assert writer.is_waiting
    node.unserved = set()
    assert writer.cycle().parts == 1
    node.high += 1
    node.unserved = {0}
    assert writer.cycle() is None
    assert writer.is_waiting
    node.unserved = set()
    assert writer.cycle().parts == 1
    assert writer.cycle() is None
    assert not writer.is_waiting


def test_a_leased_but_unserved_partition_is_not_planned(node):
    writer = writer_of(rows_max=100)
    node.takes = False
    writer.cycle()
    node.takes = True
    writer.cycle()
    assert writer._held, "it is read in pieces"
    node.unserved = {0}
    assert writer.cycle() is None


def test_an_index_that_was_begun_anew_has_younger_fencing_numbers(node):
    writer = writer_of()
    for fence, is_new in ((5, True), (6, False), (7, False)):
        node.state = lambda fence=fence: node.judge(fence)
        assert writer.was_made_anew() == is_new
