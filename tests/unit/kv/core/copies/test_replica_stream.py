from __future__ import annotations

import random

import pytest

from millstream.kv.core.copies import replica_stream as feed_module
from millstream.kv.core.copies.feed_effects import Read, Send
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import PartitionState
from millstream.wire.mcbp import Opcode, cut_packets, request
from support.budget import budget
from support.kv.feed_rig import ACTIVE, NOW, REPLICA, Ends, Rig
from support.kv.log_double import LogDouble

SCHEDULES = budget(60)


def put(rig: Rig, p: int, *keys: bytes) -> None:
    partition = rig.source.bucket.partitions[p]
    for key in keys:
        frame = partition.put(key, b"v", 0, 0, 0, 0, NOW + next(rig.numbers))
        assert isinstance(frame, bytes)
        rig.truth[p].append((partition.high_seqno, key, frame))


def rig_ahead_of_the_disk() -> Rig:
    """The copy has key1 and key2. The source has only key1 on disk."""
    rig = new_rig()
    put(rig, 0, b"key1")
    rig.settle()
    rig.source.flush()
    put(rig, 0, b"key2")
    rig.settle()
    return rig


def new_rig(count: int = 1, window_bytes: int = 1 << 20) -> Rig:
    return Rig(random.Random(5), count, window_bytes)


def test_a_copy_takes_what_the_source_has_and_acknowledges_it() -> None:
    rig = new_rig()
    put(rig, 0, b"key1", b"key2", b"key1")
    rig.settle()
    rig.check_equal()
    assert rig.acknowledged[-1] == Ends(0, 3, 3)
    assert Ends(0, 3, 0) in rig.acknowledged, "in memory it is complete before it is durable"
    figures = rig.feed.figures()
    assert (figures.following, figures.streams, figures.changes_total) == (1, 1, 2)
    assert (figures.behind, figures.lag, figures.unflushed_bytes) == (0, 0, 0)


def test_a_copy_hurries_its_disk_for_what_somebody_waits_for() -> None:
    rig = new_rig()
    hurried: list[int] = []
    partition = rig.copy.bucket.partitions[0]
    rig.copy.bucket.hurry = lambda: hurried.append(partition.high_seqno)
    put(rig, 0, b"key1", b"key2")
    rig.settle()
    assert hurried == []
    put(rig, 0, b"key3", b"key4")
    rig.source.bucket.partitions[0].awaited_seqno = 4
    rig.settle()
    assert hurried == [4], "once the snapshot is complete"
    put(rig, 0, b"key5")
    rig.settle()
    assert hurried == [4]


def test_nothing_is_acknowledged_inside_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "STEP_CHANGES_MAX", 1)
    rig = new_rig()
    put(rig, 0, b"key1", b"key2", b"key3")
    partition, inside = rig.copy.bucket.partitions[0], 0
    while partition.high_seqno < 3:
        rig.exchange()
        rig.flush_copy()
        if 0 < partition.queue.high_seqno < 3:
            inside += 1
            assert partition.high_seqno == 0
            assert all(ends.complete == 0 for ends in rig.acknowledged)
    assert inside, "the snapshot came in pieces"
    rig.settle()
    assert rig.acknowledged[-1] == Ends(0, 3, 3)


def test_a_source_that_lost_its_tail_has_the_copy_undone() -> None:
    rig = new_rig()
    put(rig, 0, b"key1", b"key2")
    rig.settle()
    rig.source.flush()
    put(rig, 0, b"key3", b"key1")
    rig.settle()
    assert rig.copy.bucket.partitions[0].high_seqno == 4
    rig.crash_source()
    assert rig.source.bucket.partitions[0].high_seqno == 2
    put(rig, 0, b"key4")
    rig.settle()
    rig.check_equal()
    assert rig.undone == [(0, 2)]
    assert rig.feed.figures().rollbacks_total == 1


def test_a_source_that_is_not_active_any_more_has_nothing_undone() -> None:
    """Killed, it comes back as a replica that lacks what its followers may have acknowledged."""
    rig = rig_ahead_of_the_disk()
    rig.source.crash()
    rig.connect()
    source = rig.source.bucket.partitions[0]
    assert (source.state, source.high_seqno) == (REPLICA, 1)
    for _ in range(100):
        rig.exchange()
    assert (rig.undos, rig.undone) == ([], [])
    assert not rig.feed.is_streaming(0)
    assert rig.copy.bucket.partitions[0].high_seqno == 2
    assert rig.waits, "it asks again"


def test_a_copy_that_promised_another_branch_neither_acknowledges_nor_takes() -> None:
    rig = new_rig()
    put(rig, 0, b"key1")
    rig.settle()
    rig.acknowledged.clear()
    branch = rig.source.bucket.partitions[0].failover_log[0].branch + 1
    rig.copy.promise(0, branch)
    put(rig, 0, b"key2")
    for _ in range(200):
        rig.exchange()
    rig.flush_copy()
    assert rig.acknowledged == []
    assert rig.copy.bucket.partitions[0].high_seqno == 1
    assert not rig.feed.is_streaming(0)
    assert rig.feed.figures().streams == 0
    for _ in range(3):  # it asks again, and is as stubborn
        while rig.waits:
            rig.wait()
        for _ in range(50):
            rig.exchange()
    assert rig.acknowledged == []


def test_what_becomes_durable_after_a_promise_is_not_acknowledged() -> None:
    rig = new_rig()
    put(rig, 0, b"key1")
    while rig.copy.bucket.partitions[0].high_seqno < 1:
        rig.exchange()
    rig.acknowledged.clear()
    branch = rig.source.bucket.partitions[0].failover_log[0].branch + 1
    rig.copy.promise(0, branch)
    rig.flush_copy()
    assert not rig.feed.is_streaming(0)
    for _ in range(50):
        rig.exchange()
    assert all(ends.persisted == 0 for ends in rig.acknowledged), "what was said before"


def test_a_copy_that_became_another_since_it_asked_asks_again() -> None:
    rig = new_rig()
    for key in (b"key1", b"key2"):
        put(rig, 0, key)
        rig.settle()
    rig.connect()  # it asks from 2 on
    assert rig.copy.roll_back(0, 1) == 1
    put(rig, 0, b"key3")
    rig.settle()
    rig.check_equal()


def test_a_copy_that_became_another_since_it_was_undone_asks_from_there() -> None:
    rig = new_rig()
    for key in (b"key1", b"key2"):
        put(rig, 0, key)
        rig.settle()
    rig.source.flush()
    put(rig, 0, b"key3")
    rig.settle()
    rig.crash_source()
    while not rig.undos:
        rig.exchange()
    effect = rig.undos.pop()
    assert rig.copy.roll_back(0, effect.seqno) == 2
    assert rig.copy.roll_back(0, 1) == 1
    rig.feed.on_undone(0, 2)
    rig.carry_out()
    rig.settle()
    rig.check_equal()


def test_a_copy_that_promised_another_branch_is_not_undone_for_an_older_one() -> None:
    rig = rig_ahead_of_the_disk()
    rig.crash_source()
    branch = rig.source.bucket.partitions[0].failover_log[0].branch + 1
    rig.copy.promise(0, branch)
    for _ in range(100):
        rig.exchange()
    assert rig.undos == []
    assert rig.copy.bucket.partitions[0].high_seqno == 2
    assert rig.waits


def test_what_was_to_be_undone_may_be_another_meanwhile() -> None:
    rig = rig_ahead_of_the_disk()
    rig.crash_source()
    while not rig.undos:
        rig.exchange()
    rig.copy.set_state(0, ACTIVE)
    rig.undo()
    assert rig.copy.bucket.partitions[0].high_seqno == 2
    assert rig.undone == []


@pytest.mark.parametrize("state", [PartitionState.PENDING, PartitionState.DEAD, ACTIVE])
def test_a_move_ends_the_stream_and_a_copy_that_may_asks_again(state: PartitionState) -> None:
    rig = new_rig()
    put(rig, 0, b"key1")
    rig.settle()
    rig.copy.set_state(0, state)
    rig.feed.look(0)
    rig.carry_out()
    assert not rig.feed.is_streaming(0)
    while not rig.waits:
        rig.exchange()
    put(rig, 0, b"key2")
    rig.wait()
    for _ in range(50):
        rig.exchange()
    is_taken = rig.copy.bucket.partitions[0].high_seqno == 2
    assert is_taken == (state is PartitionState.PENDING)


def test_a_rollback_by_the_operator_is_made_good() -> None:
    rig = new_rig()
    put(rig, 0, b"key1", b"key2")
    rig.settle()
    put(rig, 0, b"key3")
    rig.settle()
    assert rig.copy.roll_back(0, 2) == 2
    rig.feed.look(0)
    rig.carry_out()
    rig.settle()
    rig.check_equal()


def test_a_copy_that_is_left_alone_has_no_stream() -> None:
    rig = new_rig(2)
    put(rig, 0, b"key1")
    put(rig, 1, b"key1")
    rig.settle()
    rig.feed.leave(0)
    rig.carry_out()
    rig.settle()
    put(rig, 0, b"key2")
    put(rig, 1, b"key2")
    rig.settle()
    assert [one.high_seqno for one in rig.copy.bucket.partitions] == [1, 2]
    assert rig.feed.figures().following == 1
    rig.feed.leave(0)
    rig.feed.follow(0)
    rig.feed.follow(0)
    rig.carry_out()
    rig.settle()
    rig.check_equal()


def test_who_is_left_while_it_asks_gets_no_stream() -> None:
    rig = new_rig()
    put(rig, 0, b"key1")
    rig.feed.leave(0)
    rig.settle()
    assert rig.copy.bucket.partitions[0].high_seqno == 0
    assert rig.feed.figures().following == 0
    assert rig.acknowledged == []


def test_a_refused_stream_is_asked_for_again_with_growing_pauses() -> None:
    rig = new_rig()
    rig.source.set_state(0, PartitionState.DEAD)
    pauses = []
    for _ in range(9):
        while not rig.waits:
            rig.exchange()
        pauses.append(rig.waits[0].pause_s)
        rig.wait()
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-1] == feed_module.PAUSE_S_MAX
    while not rig.waits:
        rig.exchange()
    rig.feed.follow(0)  # somebody has news
    while len(rig.waits) < 2:
        rig.exchange()
    assert rig.waits.pop().pause_s == feed_module.PAUSE_S_MIN
    rig.source.set_state(0, ACTIVE)
    put(rig, 0, b"key1")
    rig.settle()
    rig.check_equal()


def test_bytes_wait_while_too_much_is_unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "UNFLUSHED_BYTES_MAX", 150)
    rig = new_rig(window_bytes=200)
    put(rig, 0, *[b"key%d" % number for number in range(6)])
    for _ in range(200):
        rig.exchange()
    assert rig.feed.is_full
    taken = rig.copy.bucket.partitions[0].queue.high_seqno
    assert 0 < taken < 6
    rig.flush_copy()
    assert not rig.feed.is_full
    rig.settle()
    rig.check_equal()


def test_what_a_rollback_took_is_no_longer_unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "UNFLUSHED_BYTES_MAX", 150)
    rig = new_rig()
    put(rig, 0, *[b"key%d" % number for number in range(6)])
    while not rig.feed.is_full:
        rig.exchange()
    rig.copy.roll_back(0, 0)
    rig.flush_copy()
    assert not rig.feed.is_full
    rig.settle()
    rig.check_equal()


def test_bytes_wait_while_the_bucket_refuses_writes() -> None:
    rig = new_rig()
    rig.settle()
    rig.copy.bucket.writes.refuse("memory")
    put(rig, 0, b"key1")
    for _ in range(50):
        rig.exchange()
    assert rig.feed.is_full
    assert rig.copy.bucket.partitions[0].high_seqno == 0
    rig.copy.bucket.writes.accept("memory")
    rig.settle()
    rig.check_equal()


def test_a_change_waits_for_a_document_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = new_rig()
    put(rig, 0, b"key1", b"key2", b"key3")
    log = LogDouble()
    partition = rig.copy.bucket.partitions[0]
    monkeypatch.setattr(log, "newest_seqno", lambda _, key: 99 if key == b"key2" else 0)
    monkeypatch.setattr(log, "keys", lambda _: [b"key2"])
    log.is_cold = True
    monkeypatch.setattr(partition, "_log", log)
    monkeypatch.setattr(partition.residents, "_log", log)
    monkeypatch.setattr(partition.residents, "is_complete", False)
    while not rig.reads:
        rig.exchange()
    assert partition.queue.high_seqno == 1
    assert rig.feed.is_busy
    assert not rig.feed.step()
    (read,) = rig.reads
    assert isinstance(read, Read)
    assert read.absent.fetch(lambda _: rig.feed.on_read())
    log.bring()
    assert partition.queue.high_seqno == 2
    rig.settle()
    assert partition.high_seqno == 3


def test_a_step_takes_a_bounded_number_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "STEP_CHANGES_MAX", 2)
    rig = new_rig()
    put(rig, 0, *[b"key%d" % number for number in range(5)])
    partition: Partition = rig.copy.bucket.partitions[0]
    seen = set()
    for _ in range(100):
        rig.exchange()
        seen.add(partition.queue.high_seqno)
    assert len(seen) > 2
    rig.settle()
    rig.check_equal()


def test_the_source_says_how_far_it_is() -> None:
    rig = new_rig()
    put(rig, 0, b"key1")
    rig.settle()
    rig.copy.bucket.writes.refuse("memory")
    rig.feed.ask_highs()
    rig.carry_out()
    assert rig.to_source.count(b"\x80\x48") == 1
    put(rig, 0, b"key2", b"key3")
    sent, rig.to_source = rig.to_source, b""
    rig.feed.receive(rig.session.receive(sent, NOW), 0)
    rig.feed.step()
    figures = rig.feed.figures()
    assert (figures.behind, figures.lag) == (1, 2)
    rig.copy.bucket.writes.accept("memory")
    rig.settle()
    assert rig.feed.figures().lag == 0


def test_random_schedules() -> None:
    seed = random.randrange(2**32)
    undone = 0
    for number in range(SCHEDULES):
        undone += run_schedule(random.Random(f"{seed}/{number}"), f"{seed}/{number}")
    assert undone, "no copy was ever undone"


def run_schedule(rng: random.Random, name: str) -> int:
    rig = Rig(rng, 2, rng.choice((150, 1000, 100_000)))
    try:
        for _ in range(rng.choice((50, 150))):
            step(rig, rng)
        for p in range(rig.count):
            source, copy = rig.source.bucket.partitions[p], rig.copy.bucket.partitions[p]
            if source.last_branch < copy.last_branch:
                rig.source.promise(p, copy.last_branch)
                rig.source.set_state(p, REPLICA)
                rig.source.set_state(p, ACTIVE)
            if copy.state is not REPLICA:
                rig.copy.set_state(p, REPLICA)
            rig.feed.follow(p)
        rig.carry_out()
        rig.settle()
        rig.check_equal()
    except BaseException as error:
        error.add_note(f"schedule {name}")
        raise
    return len(rig.undone)


def step(rig: Rig, rng: random.Random) -> None:
    p, dice = rng.randrange(rig.count), rng.random()
    if dice < 0.3:
        rig.write(p)
    elif dice < 0.65:
        rig.exchange()
        rig.check_copy(p)
    elif dice < 0.72:
        rig.flush_copy()
    elif dice < 0.78:
        rig.source.flush()
    elif dice < 0.82 and rig.undos:
        rig.undo()
    elif dice < 0.88 and rig.waits:
        rig.wait()
    elif dice < 0.9:
        rig.crash_source()
    elif dice < 0.92:
        rig.crash_copy()
    elif dice < 0.95:
        rig.connect()
    elif dice < 0.96:
        rng.choice((rig.feed.leave, rig.feed.follow))(p)
        rig.carry_out()
    elif dice < 0.97:
        rig.copy.promise(p, rig.copy.bucket.partitions[p].last_branch + rng.randint(0, 1))
        rig.feed.look(p)
        rig.carry_out()
    elif dice < 0.98:
        rig.copy.roll_back(p, rng.randint(0, rig.copy.bucket.partitions[p].high_seqno))
        rig.feed.look(p)
        rig.carry_out()


def test_no_answer_counts_of_a_copy_that_had_promised_a_larger_branch() -> None:
    seed, checks = random.randrange(2**32), 0
    for number in range(SCHEDULES // 2):
        rng = random.Random(f"{seed}/{number}")
        rig = Rig(rng, 2, 100_000)
        rig.hurry_noops()
        try:
            for _ in range(400):
                contact_step(rig, rng)
                checks += rig.check_contact()
        except BaseException as error:
            error.add_note(f"schedule {seed}/{number}")
            raise
    assert checks, "no copy that had promised was ever in contact"


def contact_step(rig: Rig, rng: random.Random) -> None:
    p, dice = rng.randrange(rig.count), rng.random()
    copy, source = rig.copy.bucket.partitions[p], rig.source.bucket.partitions[p]
    if dice < 0.7:
        rig.exchange()
    elif dice < 0.8:
        rig.write(p)
    elif dice < 0.86 and rig.waits:
        rig.wait()
    elif dice < 0.9 and rig.undos:
        rig.undo()
    elif dice < 0.93:
        rig.flush_copy()
    elif dice < 0.96:
        rig.copy.promise(p, copy.last_branch + 1)
        rig.feed.look(p)
    elif dice < 0.99 and source.last_branch < copy.last_branch:
        rig.source.promise(p, copy.last_branch)
        rig.source.set_state(p, REPLICA)
        rig.source.set_state(p, ACTIVE)
    elif dice > 0.995:
        rig.connect()


def said(rig: Rig) -> list[tuple[int, int]]:
    """Return opcode and partition of what the copy's node sends now."""
    sent = b"".join(one.data for one in rig.feed.take_effects() if isinstance(one, Send))
    return [(one.opcode, one.vbucket) for one in cut_packets(sent, 1 << 20)[0]]


NOOP = request(Opcode.DCP_NOOP, opaque=1)
NOOP_ANSWER, CLOSE = (Opcode.DCP_NOOP, 0), (Opcode.DCP_CLOSE_STREAM, 0)


def test_a_promise_closes_the_stream_before_any_later_no_op_is_answered() -> None:
    rig = new_rig(2)
    rig.settle()
    rig.feed.receive(NOOP, 0)
    rig.copy.promise(0, rig.copy.bucket.partitions[0].last_branch + 1)
    rig.feed.look(0)
    rig.feed.receive(NOOP, 0)
    assert said(rig) == [NOOP_ANSWER, CLOSE, NOOP_ANSWER], "the stream of partition 1 stays"
    assert [rig.feed.is_streaming(p) for p in range(2)] == [False, True]


def test_a_promise_closes_the_stream_of_a_take_over_in_the_midst_of_a_move() -> None:
    rig = new_rig()
    rig.settle()
    rig.feed.take_over(0)
    while not rig.changes:
        rig.exchange()
    rig.copy.promise(0, rig.copy.bucket.partitions[0].last_branch + 1)
    rig.feed.look(0)
    rig.feed.receive(NOOP, 0)
    assert said(rig) == [CLOSE, NOOP_ANSWER]
    rig.change_state()
    assert rig.source.bucket.partitions[0].state is ACTIVE


def test_a_move_of_a_take_over_that_was_ordered_ends_no_stream() -> None:
    rig = new_rig()
    rig.settle()
    rig.feed.take_over(0)
    while not rig.changes:
        rig.exchange()
    rig.copy.set_state(0, PartitionState.PENDING, is_hand_over=True)
    rig.feed.look(0)
    assert said(rig) == []


def test_a_source_that_is_not_accepted_gets_no_acknowledgement_not_even_of_nothing() -> None:
    rig = new_rig()
    rig.copy.promise(0, rig.source.bucket.partitions[0].last_branch + 1)
    while not rig.waits:
        rig.exchange()
    assert rig.acknowledged == []


def test_a_copy_that_is_empty_says_once_that_it_accepts_its_source() -> None:
    rig = new_rig()
    rig.settle()
    assert rig.acknowledged == [Ends(0, 0, 0)]
    put(rig, 0, b"key1")
    rig.settle()
    assert rig.acknowledged.count(Ends(0, 0, 0)) == 1


def test_a_copy_of_a_managed_bucket_asks_for_no_ops_ten_times_a_second() -> None:
    rig = new_rig(2)
    rig.settle()
    assert rig.host.producer is not None
    settings = rig.host.producer.settings
    assert (settings.has_noop, settings.noop_interval_ms) == (True, 20_000)
    rig.copy.bucket.manage("here", lambda _: None)
    for _ in range(2):
        rig.feed.follow(0)
    rig.settle()
    assert settings.noop_interval_ms == 100


def test_a_node_knows_when_its_copies_last_answered() -> None:
    rig = new_rig(2)
    rig.settle()
    bucket = rig.copy.bucket
    bucket.serving.told_ms[:] = [None, None]
    assert bucket.quiet_ms(0) is None
    rig.feed.receive(NOOP, 700)
    assert (bucket.serving.quiet_ms(0, 1000), bucket.serving.quiet_ms(1, 1000)) == (300, 300)
    rig.feed.leave(1)
    rig.settle()
    rig.feed.receive(NOOP, 900)
    assert (bucket.serving.quiet_ms(0, 1000), bucket.serving.quiet_ms(1, 1000)) == (100, 300)


def test_no_ops_of_a_node_that_refuses_the_stream_are_no_contact_with_a_source() -> None:
    rig = new_rig(2)
    rig.source.set_state(1, PartitionState.DEAD)
    while rig.to_copy or not (rig.waits and rig.feed.is_streaming(0)):
        rig.exchange()
    bucket = rig.copy.bucket
    bucket.serving.told_ms[:] = [None, None]
    rig.feed.receive(NOOP, 700)
    assert bucket.serving.told_ms == [700, None]


def test_a_copy_counts_as_having_answered_when_it_accepts_its_source() -> None:
    rig = new_rig()
    bucket = rig.copy.bucket
    before_ms = bucket.now_ms()
    rig.settle()
    told_ms = bucket.serving.told_ms[0]
    assert told_ms is not None
    assert told_ms >= before_ms
