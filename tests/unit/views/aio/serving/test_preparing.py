"""What queries of a part of the partitions need is made ahead, and made again after commits."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.views.aio.serving import preparing
from support.views.hosted_views import hosted_views, until

DESIGN = {
    "views": {
        "v": {"map": "function (doc) { emit(doc.kind, doc.n); }", "reduce": "_sum"},
        "own": {
            "map": "function (doc) { emit(doc.kind, doc.n); }",
            "reduce": "function (keys, values) { return values.length; }",
        },
        "plain": {"map": "function (doc) { emit(doc.n); }"},
    }
}


@pytest.fixture
async def hosted(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PREPARE_S", 0.01)
    async with hosted_views(tmp_path, DESIGN) as made:
        for n in range(60):
            made.put(f"k{n}", kind="ab"[n % 2], n=n)
        await made.query()
        yield made


def only(hosted):
    (found,) = hosted.bucket._open.values()
    return found


def kept(hosted):
    return len(only(hosted).index._commits.columns._young)


async def test_a_part_is_prepared_before_the_first_query(hosted):
    await asyncio.sleep(0.05)
    assert kept(hosted) == 0, "every partition is answered: nothing is needed"
    await hosted.apply(active=[0, 1, 2], passive=[3])
    await until(lambda: kept(hosted) == 1)
    assert only(hosted)._asking is None, "no function of its own was called"
    hosted.put("k0", kind="a", n=7)
    await hosted.bucket._indexer.updated(only(hosted).signature, [0, 1, 2, 3], 20)
    await until(lambda: kept(hosted) == 2)


def mixed_index():
    header = SimpleNamespace(trees=(None, SimpleNamespace(partitions=0b11)), active=0b01)
    return SimpleNamespace(index=SimpleNamespace(newest=header), used=nullcontext)


async def test_an_unreadable_index_is_logged_and_others_continue(monkeypatch):
    monkeypatch.setattr(preparing, "PREPARE_S", 0.01)
    full, bad, good = mixed_index(), mixed_index(), mixed_index()
    errors = {
        id(full): UnavailableError("full", code="too_many_snapshots"),
        id(bad): CorruptionError("bad", code="index_damaged"),
    }
    asked, told, is_done = [], [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def prepare(hosted):
        asked.append(hosted)
        if hosted is good:
            loop.call_soon_threadsafe(is_done.set)
            return
        raise errors[id(hosted)]

    monkeypatch.setattr(preparing, "prepare", prepare)
    indexes = {"full": full, "bad": bad, "good": good}
    task = asyncio.ensure_future(
        preparing.keep_prepared(
            lambda: indexes, lambda hosted, error: told.append((hosted, error))
        )
    )
    async with asyncio.timeout(60):
        await is_done.wait()
    task.cancel()
    assert asked == [full, bad, good]
    assert told == [(bad, errors[id(bad)])]


async def test_preparation_pauses_in_proportion_to_its_duration(monkeypatch):
    pauses = []

    async def sleep(pause_s):
        pauses.append(pause_s)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    clock = SimpleNamespace(monotonic=iter([0.0, 0.01, 10.0, 12.0]).__next__)
    monkeypatch.setattr(preparing, "time", clock)
    monkeypatch.setattr(preparing, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(asyncio.CancelledError):
        await preparing.keep_prepared(dict, lambda name, error: None)
    assert pauses == [preparing.PREPARE_S] * 2 + [2.0 * preparing.PREPARE_REST_MIN]
