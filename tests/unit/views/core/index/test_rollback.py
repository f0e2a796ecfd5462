from msgspec.structs import replace

from millstream.model.position import FailoverEntry, Position
from millstream.trees.core.shapes import Root
from millstream.views.core.index.header import Header, Judged
from millstream.views.core.index.rollback import again, emptied, refused_partitions, serving_header

LOG = (FailoverEntry(2, 50, 2), FailoverEntry(1, 0, 1))
JUDGED = {p: Judged(LOG, 60) for p in range(3)}


def closed(seqno):
    return Position(1, seqno, seqno, seqno)


def header(commit, seqnos, cleanup=(), void=0):
    return Header(
        signature="", collation="", reduces=((),), commit=commit, fence=commit,
        writer=f"w{commit}",
        states={**dict.fromkeys(seqnos, "active"), **dict.fromkeys(cleanup, "cleanup")},
        positions={p: closed(seqno) if seqno else Position() for p, seqno in seqnos.items()},
        failover_logs=dict.fromkeys(seqnos, LOG), purge_seqnos=dict.fromkeys(seqnos, commit),
        void=void, back=Root(commit, 0, 1, 1, b""), trees=(Root(commit, 1, 2, 1, b"x"),),
        nodes=commit, next_node=commit * 10,
    )  # fmt: skip


def test_partitions_refused_by_their_source():
    newest = header(3, {0: 50, 1: 51, 2: 99})
    assert refused_partitions(newest, JUDGED) == [1, 2]
    assert refused_partitions(newest, {0: JUDGED[0], 2: JUDGED[2]}) == [2]


def test_the_newest_header_in_which_all_positions_are_accepted_serves():
    kept = [header(1, {0: 10, 1: 10}), header(2, {0: 50, 1: 40}), header(3, {0: 55, 1: 41}),
            header(4, {0: 60, 1: 51})]  # fmt: skip
    assert serving_header(kept, JUDGED) is kept[1]
    assert serving_header(kept[2:], JUDGED) is None


def test_a_partition_whose_source_was_not_asked_does_not_count():
    kept = [header(1, {0: 50, 1: 99}), header(2, {0: 60, 1: 99})]
    assert serving_header(kept, JUDGED) is None
    assert serving_header(kept, {0: JUDGED[0]}) is kept[0]


def test_a_header_without_a_partition_or_with_it_in_cleanup_does_not_serve():
    newest = header(3, {0: 60, 1: 5})
    assert serving_header([header(1, {0: 10}), newest], JUDGED) is None
    assert serving_header([header(1, {0: 10}, cleanup=(1,)), newest], JUDGED) is None
    assert serving_header([header(1, {0: 10, 1: 0}), newest], JUDGED) is not None


def test_partitions_that_are_gone_now_are_not_judged_but_cleaned_again():
    older = header(1, {0: 10, 1: 99, 2: 3})
    newest = replace(header(2, {0: 60}, cleanup=(2,)))
    assert serving_header([older, newest], JUDGED) is older
    made = again(older, newest)
    assert made.states == {0: "active", 1: "cleanup", 2: "cleanup"}
    assert made.positions == {0: closed(10)}


def test_members_of_a_rolled_back_header():
    older = header(1, {0: 10, 1: 20}, void=0b10)
    newest = header(7, {0: 60, 1: 70}, void=0b01)
    newest = replace(newest, states={0: "passive", 1: "active"})
    made = again(older, newest)
    assert (made.back, made.trees, made.nodes, made.void) == (
        older.back, older.trees, older.nodes, older.void,
    )  # fmt: skip
    assert (made.positions, made.purge_seqnos) == (older.positions, older.purge_seqnos)
    assert made.failover_logs == older.failover_logs
    assert (made.states, made.fence, made.writer) == (newest.states, newest.fence, newest.writer)
    assert made.next_node == newest.next_node


def test_emptied_partitions_stand_at_0_and_keep_their_state():
    newest = header(3, {0: 60, 1: 20, 2: 5}, void=0b100)
    made = emptied(newest, [0])
    assert made.positions == {**newest.positions, 0: Position()}
    assert (made.failover_logs[0], made.purge_seqnos[0]) == ((), 0)
    assert made.void == 0b101
    assert (made.states, made.back, made.trees) == (newest.states, newest.back, newest.trees)
