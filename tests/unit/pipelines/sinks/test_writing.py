"""Writing a task's documents: conflicts, refusals, persistence, and a kill at each effect."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from millstream.client.documents import FLAGS_BINARY
from millstream.client.writes import Write
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.pipelines.sinks import writing
from millstream.pipelines.sinks.writing import Persistence, Written, write_all
from support.pipelines.sink_bucket import Killed, SinkBucketDouble


@pytest.fixture
def bucket() -> SinkBucketDouble:
    return SinkBucketDouble()


def puts(*keys: str, value: bytes = b"1", is_insert: bool = False) -> list[Write]:
    return [Write(key.encode(), value, is_insert=is_insert) for key in keys]


def test_all_rows_are_persisted_on_return(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SLICE_ROWS", 2)
    changes = [*puts("a", "b", "c", "a"), Write(b"b", None), Write(b"gone", None)]
    done = write_all(bucket, iter(changes))
    assert done == Written(written=4, deleted=2)
    assert str(done) == "4 written, 2 deleted, 0 skipped"
    bucket.crash()
    assert bucket.documents() == {b"a": b"1", b"c": b"1"}
    assert write_all(bucket, []) == Written()


def test_a_timeout_of_persistence_is_an_error(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PERSIST_S", 0.0)
    bucket.is_flushing = False
    with pytest.raises(UnavailableError, match="did not persist the writes in time") as failed:
        write_all(bucket, puts("a"))
    assert failed.value.code == "timeout"


CHANGES = [
    *puts("a", "b", "c"), *puts("a", value=b"2"), Write(b"old", None), Write(b"gone", None),
    *puts("d"), Write(b"d", None),
]  # fmt: skip
INSERTS = puts("a", "b", "c", "d", "a", is_insert=True)


@pytest.mark.parametrize("changes", [CHANGES, INSERTS])
@pytest.mark.parametrize("loses", [False, True])
def test_writing_waits_for_an_unavailable_node(
    changes: list[Write], loses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was doing then, also if it comes back without what it acknowledged."""
    monkeypatch.setattr(writing, "SLICE_ROWS", 3)
    clean = SinkBucketDouble()
    write_all(clean, puts("old"))
    write_all(clean, changes)
    effect = 0
    while True:
        bucket = SinkBucketDouble()
        write_all(bucket, puts("old"))
        bucket.break_at(effect, loses=loses, times=1 + effect % 2)
        done = write_all(bucket, changes)
        if bucket.before_effect:
            break
        assert (done.written + done.deleted, done.skipped) == (len(changes), 0)
        bucket.crash()
        assert bucket.documents() == clean.documents()
        effect += 1
    assert effect >= len(changes)


def test_a_second_loss_during_rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SLICE_ROWS", 1)
    for second in range(12):
        bucket = SinkBucketDouble()
        bucket.break_at(5, loses=True)
        again: list[Callable[[], None]] = [lambda: None] * second
        broken = bucket.before_effect[-1]
        bucket.before_effect += [*again, broken]
        write_all(bucket, puts("a", "b", "c", "d"))
        bucket.crash()
        assert bucket.documents().keys() == {b"a", b"b", b"c", b"d"}


def test_an_error_of_a_lost_node_names_what_was_written(
    bucket: SinkBucketDouble,
) -> None:
    bucket.reconnect_s = 0.001
    bucket.break_at(3, times=99)
    with pytest.raises(UnavailableError, match=r"away \(tried again for .*\) .* 2 written"):
        write_all(bucket, puts("a", "b", "c"))


def test_rows_kept_for_rewriting_are_bounded(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SLICE_ROWS", 1)
    monkeypatch.setattr(writing, "HELD_BYTES_MAX", 400)  # a row takes memory beside its bytes
    held: list[int] = []
    write = writing._Task._write

    def counted(task: writing._Task, rows: list[Write]) -> Written:
        held.append(len(task._held))
        return write(task, rows)

    monkeypatch.setattr(writing._Task, "_write", counted)
    changes = [*puts("a", "b", "c"), Write(b"d", None), Write(b"e", None)]
    assert write_all(bucket, changes) == Written(written=3, deleted=2)
    assert held == [0, 1, 0, 1, 0, 1]  # the last slice is empty


def test_inserts_of_what_exists_fail_or_are_skipped(bucket: SinkBucketDouble) -> None:
    write_all(bucket, puts("a", "b"))
    with pytest.raises(ConditionError, match="'a': the document exists") as failed:
        write_all(bucket, puts("c", "a", value=b"2", is_insert=True))
    assert failed.value.code == "conflict"
    assert "bucket 'b': this task has 1 written, 0 deleted, 0 skipped; that stays" in str(
        failed.value
    )
    done = write_all(bucket, puts("a", "d", value=b"2", is_insert=True), skips_conflicts=True)
    assert done == Written(written=1, skipped=1)
    assert bucket.documents() == {b"a": b"1", b"b": b"1", b"c": b"2", b"d": b"2"}


def test_a_repeated_task_finds_its_own_documents(bucket: SinkBucketDouble) -> None:
    mine = [Write(b"a", b"1", FLAGS_BINARY, is_insert=True)]
    assert write_all(bucket, mine) == write_all(bucket, mine) == Written(written=1)
    cas = bucket.entries[b"a"].cas
    update = [Write(b"a", b"2", cas=cas)]
    assert write_all(bucket, update) == write_all(bucket, update) == Written(written=1)
    with pytest.raises(ConditionError):
        write_all(bucket, [Write(b"a", b"3", cas=cas)])
    cas = bucket.entries[b"a"].cas
    assert write_all(bucket, [Write(b"a", None, cas=cas)]) == Written(deleted=1)
    assert write_all(bucket, [Write(b"a", None, cas=cas)]) == Written(deleted=1)
    with pytest.raises(ConditionError, match="'a': changed"):
        write_all(bucket, [Write(b"a", b"4", cas=cas)])


def test_writes_of_an_earlier_attempt_are_waited_for(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(bucket.write_each(puts("a", is_insert=True)))  # the task died here
    bucket.is_flushing = False
    with monkeypatch.context() as patched:
        patched.setattr(writing, "PERSIST_S", 0.0)
        with pytest.raises(UnavailableError, match="did not persist the writes in time"):
            write_all(bucket, puts("a", is_insert=True))
    bucket.is_flushing = True
    assert write_all(bucket, puts("a", is_insert=True)) == Written(written=1)
    bucket.crash()
    assert bucket.documents() == {b"a": b"1"}


def test_other_content_of_the_same_bytes_is_a_conflict(bucket: SinkBucketDouble) -> None:
    write_all(bucket, [Write(b"a", b"1", FLAGS_BINARY)])
    with pytest.raises(ConditionError):
        write_all(bucket, puts("a", is_insert=True))


def test_refusals_name_what_was_written(bucket: SinkBucketDouble) -> None:
    bucket.reconnect_s = 0.0
    bucket.refusals = {
        b"k%d" % n: UnavailableError(f"full {n}", code="no_memory") for n in range(7)
    }
    with pytest.raises(UnavailableError, match="'k0': full 0, 'k1': full 1") as failed:
        write_all(bucket, puts("a", *(f"k{n}" for n in range(7))))
    assert failed.value.code == "no_memory"
    assert "'k4': full 4, and 2 more [bucket 'b': this task has 1 wr" in str(failed.value)
    bucket.refusals[b"k3"] = UsageError("too large", code="too_large")
    with pytest.raises(UsageError, match=r"^not written: 'k3': too large, 'k0': full 0"):
        write_all(bucket, puts("a", *(f"k{n}" for n in range(7))))


def test_a_bad_row_says_what_was_written_before(
    bucket: SinkBucketDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SLICE_ROWS", 1)

    def rows() -> Iterator[Write]:
        yield from puts("a", "b")
        raise UsageError("row 'c': bad", code="bad_row")

    with pytest.raises(UsageError, match=r"^row 'c': bad \[.* 2 written") as failed:
        write_all(bucket, rows())
    assert failed.value.code == "bad_row"


@pytest.mark.parametrize("dies_after", [False, True])
def test_a_kill_at_any_effect_and_a_second_attempt(dies_after: bool) -> None:
    changes = [*puts("a", "b", is_insert=True), Write(b"old", None)]

    def begun() -> SinkBucketDouble:
        bucket = SinkBucketDouble()
        write_all(bucket, puts("old"))
        bucket.effects = 0
        return bucket

    clean = begun()
    write_all(clean, changes)
    assert clean.effects > 4
    for at in range(1, clean.effects + 1):
        bucket = begun()
        bucket.kill_at, bucket.dies_after = at, dies_after
        with contextlib.suppress(Killed):  # the last one may be done before the task dies
            write_all(bucket, changes)
        assert bucket.kill_at <= 0
        bucket.revive()
        bucket.crash(0)
        write_all(bucket, changes)
        bucket.crash()
        assert bucket.documents() == clean.documents()


def test_a_slice_is_bounded_by_its_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SLICE_BYTES", 10)
    sizes = [len(rows) for rows in writing._slices(puts("a", "b", "c", value=b"12345"))]
    assert sizes == [2, 1]


def test_no_writes_need_no_wait(bucket: SinkBucketDouble) -> None:
    bucket.is_flushing = False
    Persistence(bucket).wait()


def versioned(**versions: int) -> list[Write]:
    return [Write(key.encode(), b'{"v":%d}' % version) for key, version in versions.items()]


def write_newer(bucket: SinkBucketDouble, changes: list[Write]) -> Written:
    return write_all(bucket, changes, version_field="v")


def test_a_lower_version_leaves_a_document_alone(bucket: SinkBucketDouble) -> None:
    write_all(bucket, [Write(b"c", b"no JSON"), Write(b"d", b'{"v":"text"}')])
    both = [*versioned(a=5, b=5), *versioned(a=4)]
    assert write_newer(bucket, both) == Written(written=2)
    done = write_newer(bucket, versioned(a=6, b=4, c=-(2**63), d=1))
    assert done == Written(written=3, skipped=1)
    bucket.crash()
    assert bucket.documents() == {
        b"a": b'{"v":6}', b"b": b'{"v":5}', b"c": b'{"v":-9223372036854775808}', b"d": b'{"v":1}',
    }  # fmt: skip


def test_a_version_is_found_however_others_have_written_the_document(
    bucket: SinkBucketDouble,
) -> None:
    deep = b'{"v":%s%s}' % (b"[" * 5_000, b"]" * 5_000)
    write_all(bucket, [Write(b"a", b'{"v":5.0}'), Write(b"b", b'{"v":5.5}'), Write(b"c", deep)])
    assert write_newer(bucket, versioned(a=4, b=4, c=4)) == Written(written=2, skipped=1)
    assert bucket.documents() == {b"a": b'{"v":5.0}', b"b": b'{"v":4}', b"c": b'{"v":4}'}
    assert write_newer(bucket, versioned(a=5)) == Written(written=1)


def every_late_attempt(version_field: str) -> None:
    """An attempt of batch 1 stands still at any effect, batch 2 comes, then it goes on."""
    effect = 0
    while True:
        bucket = SinkBucketDouble()
        write_newer(bucket, versioned(a=1))

        def overtake(bucket: SinkBucketDouble = bucket) -> None:
            write_newer(bucket, versioned(a=2, b=2))
            write_newer(bucket, versioned(a=3, b=3))

        bucket.before_effect = [*[lambda: None] * effect, overtake]
        write_all(bucket, versioned(a=2, b=2), version_field=version_field)
        if bucket.before_effect:
            break
        assert bucket.documents() == {b"a": b'{"v":3}', b"b": b'{"v":3}'}
        effect += 1
    assert effect > 4


def test_a_late_attempt_writes_no_older_version() -> None:
    every_late_attempt("v")
    with pytest.raises(AssertionError):
        every_late_attempt("")


def test_constant_concurrent_changes_are_reported(bucket: SinkBucketDouble) -> None:
    bucket.before_effect = [lambda: bucket._done(versioned(a=1)[0]) and None] * 999
    with pytest.raises(UnavailableError, match="others keep changing document 'a'"):
        write_newer(bucket, versioned(a=5))


def test_two_concurrent_attempts_equal_one() -> None:
    """Whatever the second one finds done of the first; both write the same rows."""
    for changes in (CHANGES, INSERTS):
        clean = SinkBucketDouble()
        write_all(clean, puts("old"))
        write_all(clean, changes)
        for effect in range(14):
            bucket = SinkBucketDouble()
            write_all(bucket, puts("old"))
            other = partial(write_all, bucket, changes)
            bucket.before_effect = [*[lambda: None] * effect, other]
            write_all(bucket, changes)
            bucket.before_effect = []
            bucket.crash()
            assert bucket.documents() == clean.documents()
