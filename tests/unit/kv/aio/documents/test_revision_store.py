from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.documents import stored
from millstream.documents.stored import StoredDocument, pack
from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.kv.aio.documents import revision_store as revised
from millstream.kv.aio.documents.revision_store import Decide
from millstream.kv.core.revisions.revision_store import Made
from millstream.runtime import pace
from support.kv.running_bucket import LIMIT, conflicting, opened, put


async def test_documents_survive_a_restart(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    edits = [(b"k%d" % number, put(b'{"n":%d}' % number)) for number in range(300)]
    done = await engine.documents.update(edits, LIMIT, is_durable=True)
    assert all(isinstance(one, Made) and one.seqno for one in done)
    assert all(p.persisted_seqno == p.high_seqno for p in engine.bucket.partitions)
    await engine.stop()
    engine = await opened(tmp_path)
    for key, _ in edits[:20]:
        found = await engine.documents.read(key, LIMIT, is_durable=True)
        assert found is not None
        assert found.document.winner.rev.startswith("1-")
    again = await engine.documents.update(edits[:5], LIMIT, is_durable=True)
    assert [type(one) for one in again] == [ConditionError] * 5
    await engine.stop()


async def test_one_refusal_among_others(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    done = await engine.documents.update(
        [(b"a", put()), (b"a", put()), (b"b", put())], LIMIT, is_durable=True
    )
    assert [isinstance(one, MillstreamError) for one in done] == [False, True, False]
    await engine.stop()


async def test_changes_of_one_document_are_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revised, "STEPS_SECONDS", 60.0)
    engine = await opened(tmp_path)
    partition = engine.bucket.partition_for(b"a")
    [first] = await engine.documents.update([(b"a", put())], LIMIT, is_durable=True)
    assert isinstance(first, Made)
    edits = [(b"a", conflicting(number)) for number in range(50)]
    edits[10:10] = [(b"a", put()), (b"a", lambda _: None)]  # a refusal, and nothing to be done
    done = await engine.documents.update(edits, LIMIT, is_durable=True)
    assert [at for at, one in enumerate(done) if isinstance(one, MillstreamError)] == [10]
    seqnos = [one.seqno for one in done if isinstance(one, Made)]
    assert seqnos.pop(10) == 0
    assert set(seqnos) == {partition.high_seqno}
    assert partition.high_seqno < first.seqno + 50
    found = await engine.documents.read(b"a", LIMIT, is_durable=True)
    assert found is not None
    assert len(found.document.tree.leaf_revs()) == 51
    await engine.stop()


async def test_others_have_turns_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revised, "STEPS_SECONDS", 0.0)
    monkeypatch.setattr(pace, "STEP_S", 0.0)
    engine = await opened(tmp_path)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(count())
    edits = [(b"a", conflicting(number)) for number in range(20)]
    edits += [(b"k%d" % number, put()) for number in range(20)]
    done = await engine.documents.update(edits, LIMIT, is_durable=False)
    other.cancel()
    assert all(isinstance(one, Made) for one in done)
    assert turns >= 39
    await engine.stop()


async def test_what_does_not_fit_together_is_stored_as_far_as_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "SIDECAR_BYTES_MAX", 1000)
    engine = await opened(tmp_path)
    edits = [(b"a", conflicting(number, 200)) for number in range(10)]
    done = await engine.documents.update(edits, LIMIT, is_durable=True)
    refused = [isinstance(one, MillstreamError) for one in done]
    assert refused == sorted(refused)
    taken = refused.count(False)
    assert 0 < taken < 10
    assert {one.code for one in done if isinstance(one, MillstreamError)} == {"too_large"}
    found = await engine.documents.read(b"a", LIMIT, is_durable=True)
    assert found is not None
    assert len(found.document.tree.leaf_revs()) == taken
    await engine.stop()


async def test_changes_that_do_not_fit_together_are_decided_a_few_times_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "SIDECAR_BYTES_MAX", 1000)
    engine, decided = await opened(tmp_path), 0

    def counted(number: int) -> Decide:
        decide = conflicting(number, 200)

        def count(document: StoredDocument | None) -> StoredDocument | None:
            nonlocal decided
            decided += 1
            return decide(document)

        return count

    edits = [(b"a", counted(number)) for number in range(128)]
    done = await engine.documents.update(edits, LIMIT, is_durable=False)
    assert sum(isinstance(one, MillstreamError) for one in done) > 100
    assert decided < 6 * len(edits)
    await engine.stop()


async def test_history_that_goes_back_makes_it_ambiguous(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partition_for(b"a")

    async def lose(number: int, seqno: int) -> None:
        engine.bucket.partitions[number].epoch += 1

    engine.documents._until_durable = lose
    [done] = await engine.documents.update([(b"a", put())], LIMIT, is_durable=True)
    assert isinstance(done, UnavailableError)
    assert done.code == "ambiguous"
    assert partition.high_seqno == 1
    [accepted] = await engine.documents.update([(b"b", put())], LIMIT, is_durable=False)
    assert isinstance(accepted, Made)
    await engine.stop()


async def test_a_failed_disk_is_told(tmp_path: Path) -> None:
    engine = await opened(tmp_path)

    async def fail(number: int, seqno: int) -> None:
        raise UnavailableError("gone", code="disk_failed")

    engine.documents._until_durable = fail
    [done] = await engine.documents.update([(b"a", put())], LIMIT, is_durable=True)
    assert isinstance(done, UnavailableError)
    assert done.code == "disk_failed"
    await engine.stop()


async def test_a_majority_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await opened(tmp_path)
    partition = engine.bucket.partition_for(b"a")
    reached = [0]
    monkeypatch.setattr(type(partition), "has_copies", property(lambda _: True))
    monkeypatch.setattr(type(partition), "majority_seqno", property(lambda _: reached[0]))
    waiting = asyncio.ensure_future(
        engine.documents.update([(b"a", put())], LIMIT, is_durable=True)
    )
    await engine.until_persisted(partition.partition_id, 1)
    await asyncio.sleep(0)
    assert not waiting.done()
    reached[0] = 1
    engine.bucket.made_durable()
    [done] = await waiting
    assert isinstance(done, Made)
    await engine.stop()


async def test_what_was_decided_elsewhere_is_written_and_durable(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    document = put(b'{"a":1}')(None)
    assert document is not None
    packed = pack(document)
    [made] = await engine.documents.replace([(b"k", None, packed)], is_durable=True)
    assert isinstance(made, Made)
    partition = engine.bucket.partition_for(b"k")
    assert partition.persisted_seqno == made.seqno == 1
    kept = await engine.documents.kept(b"k", is_durable=True)
    assert kept is not None
    assert kept.version.seqno == 1
    [again, other] = await engine.documents.replace(
        [(b"k", None, packed), (b"l", None, packed)], is_durable=True
    )
    assert isinstance(again, Made)
    assert isinstance(other, Made)
    assert (again.seqno, other.seqno > 0) == (0, True)
    assert await engine.documents.kept(b"none", is_durable=True) is None
    await engine.stop()


async def test_what_a_peer_sends_again_is_acknowledged_once_what_is_there_lasts(
    tmp_path: Path,
) -> None:
    engine = await opened(tmp_path)
    edit = (b"a", conflicting(1))
    await engine.documents.update([edit], LIMIT, is_durable=False)
    number, asked = engine.bucket.partition_for(b"a").partition_id, list[tuple[int, int]]()

    async def fail(*place: int) -> None:
        asked.append(place)  # type: ignore[arg-type]
        raise UnavailableError("gone", code="ambiguous")

    real, engine.documents._until_durable = engine.documents._until_durable, fail
    [refused] = await engine.documents.update([edit], LIMIT, is_durable=True)
    assert isinstance(refused, UnavailableError)
    assert asked == [(number, 1)]
    [accepted] = await engine.documents.update([edit], LIMIT, is_durable=False)
    assert isinstance(accepted, Made)
    engine.documents._until_durable = real
    [again] = await engine.documents.update([edit], LIMIT, is_durable=True)
    assert isinstance(again, Made)
    assert again.seqno == 0, "nothing was changed"
    await engine.stop()


async def test_changes_wait_while_a_partition_is_about_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await opened(tmp_path)
    packed = pack(put()(None))  # type: ignore[arg-type]
    for partition in engine.bucket.partitions:
        partition.is_suspended = True
    changing = asyncio.gather(
        engine.documents.update([(b"a", put())], LIMIT, is_durable=True),
        engine.documents.replace([(b"b", None, packed)], is_durable=True),
    )
    await asyncio.wait([changing], timeout=0.05)
    assert not changing.done()
    for partition in engine.bucket.partitions:
        partition.is_suspended = False
    assert [isinstance(made, Made) for [made] in await changing] == [True, True]
    for partition in engine.bucket.partitions:
        partition.is_suspended = True
    monkeypatch.setattr(revised, "SUSPENDED_SECONDS_MAX", 0.0)
    [refused] = await engine.documents.update([(b"c", put())], LIMIT, is_durable=True)
    [other] = await engine.documents.replace([(b"d", None, packed)], is_durable=True)
    for one in (refused, other):
        assert isinstance(one, UnavailableError)
        assert one.code == "temporarily_unavailable"
    await engine.stop()
