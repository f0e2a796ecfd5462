"""Two engines that share a bucket: each knows the design documents of both."""

import pytest

from millstream.cluster import peers as neighbours
from millstream.errors import RoutingError, UnavailableError
from millstream.model.partitions import PartitionState
from support.kv.two_engines import BUCKET, PARTITIONS, UUID, asked_of, two_engines, until

VIEWS = {"views": {"v": {"map": "function (doc) { emit(doc._id); }"}}}


@pytest.fixture
async def two(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "NODE_ASK_S", 0.02)
    async with two_engines(tmp_path) as made:
        yield made


def known(two, node):
    own = next(one for one in two.engines[node].others.own.values() if one.name == BUCKET)
    return own.elsewhere


async def test_each_node_knows_the_design_documents_of_the_other(two):
    names = {node: two.design_of(node) for node in "ab"}
    revs = {node: await two.design(names[node], VIEWS) for node in "ab"}
    await until(lambda: names["b"] in known(two, "a") and names["a"] in known(two, "b"))
    for engine in two.engines.values():
        await asked_of(engine.indexes)
        for name in names.values():
            assert await engine.indexes.info(BUCKET, name)
    changed = await two.design(names["a"], {"views": {}}, revs["a"])
    await until(lambda: known(two, "b")[names["a"]].rev == changed)
    listed = {one.name: one.rev for one in await two.engines["b"].designs.all(BUCKET)}
    assert listed == {names["a"]: changed, names["b"]: revs["b"]}
    await two.design(names["a"], None, changed)
    await until(lambda: names["a"] not in known(two, "b"))


@pytest.mark.slow
async def test_what_nobody_has_active_stays_as_it_was(two):
    name = two.design_of("a")
    await two.design(name, VIEWS)
    await until(lambda: name in known(two, "b"))
    await two.give_map([None if two.rows[p] == "a" else "b" for p in range(PARTITIONS)])
    assert not two.engines["b"].others.neighbours._watched
    assert name in known(two, "b")
    with pytest.raises(UnavailableError):
        await two.engines["b"].designs.all(BUCKET)
    indexes = two.engines["b"].indexes
    await asked_of(indexes)
    for asked in (lambda: indexes.cleanup(BUCKET), lambda: indexes.info(BUCKET, "unheard of")):
        with pytest.raises(RoutingError) as raised:  # it may be that of nobody
            await asked()
        assert raised.value.code == "design_differs"


async def test_what_was_here_since_is_not_known_as_it_was_before(two, monkeypatch):
    name, other = two.design_of("a"), two.engines["b"]
    await two.design(name, VIEWS)
    await until(lambda: name in known(two, "b"))
    await two.give_map("b" * PARTITIONS)
    assert name not in known(two, "b")
    monkeypatch.setattr(other.others.neighbours, "told_of", lambda _: [])  # nothing is heard
    await two.give_map("abab")
    for partition in (0, 2):
        await other.set_partition_state(BUCKET, partition, PartitionState.DEAD)
    assert other.others.own[UUID].lacks_designs()
    assert name not in known(two, "b")
    assert name not in await other.others.own[UUID].designs()


async def test_only_who_has_what_is_lacking_is_asked(two):
    assert len(two.engines["a"].others.neighbours._watched) == 1
    await two.give_map("a" * PARTITIONS)
    assert not two.engines["a"].others.neighbours._watched
    assert len(two.engines["b"].others.neighbours._watched) == 1
    await two.engines["b"].delete_bucket(BUCKET)
    assert not two.engines["b"].others.neighbours._watched


async def test_a_failed_bucket_stays_listed(two):
    engine = two.engines["a"]
    before = {one.name: one for one in engine.shared.listed().buckets}
    assert before[BUCKET].revision
    told = await engine.shared.bucket(BUCKET)
    assert (told.revision, told.this, told.active) == (before[BUCKET].revision, "a", [0, 2])
    engine.others.own.pop(told.uuid)
    assert {one.name: one.revision for one in engine.shared.listed().buckets}[BUCKET] == ""


async def test_a_copy_that_moves_away_takes_no_design_document_with_it(two, monkeypatch):
    name, here = two.design_of("b"), two.engines["b"]
    rev = await two.design(name, VIEWS)
    own = here.others.own[UUID]
    assert name in await own.designs()
    with monkeypatch.context() as patch:
        patch.setattr(here.others.neighbours, "told_of", lambda _: [])  # nothing is heard
        await two.give_map("a" * PARTITIONS)
        for state in (PartitionState.DEAD, PartitionState.ABSENT):
            for partition in (1, 3):
                await here.set_partition_state(BUCKET, partition, state)
        assert own.lacks_designs()
        assert (await own.designs())[name].rev == rev

    async def is_gone():
        return name not in await own.designs()

    own.changed()
    await until(is_gone)  # the copy at the other node is empty
