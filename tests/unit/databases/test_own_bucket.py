"""A bucket as others are told of it, and rows of views with documents of both nodes."""

import msgspec
import pytest

from millstream.cluster import peers as neighbours
from millstream.errors import UnavailableError
from millstream.model.partitions import PartitionState, partition_of
from millstream.storage.core.records import key_of
from millstream.wire.frames import seqno_of
from support.kv.two_engines import BUCKET, PARTITIONS, two_engines, until

VIEWS = {"views": {"v": {"map": "function (doc) { emit(doc._id); }"}}}


@pytest.fixture
async def two(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "NODE_ASK_S", 0.02)
    async with two_engines(tmp_path) as made:
        yield made


def own_of(two, node):
    return next(one for one in two.engines[node].others.own.values() if one.name == BUCKET)


class Rows:
    def __init__(self, ids):
        self.head = {}
        self.ids = ids

    async def __aiter__(self):
        for doc_id in self.ids:
            yield msgspec.json.encode({"id": doc_id, "key": 1, "value": None}) + b"\r\n"

    async def close(self):
        pass


async def test_what_is_told_has_another_revision_when_it_changed(two):
    own = own_of(two, "a")
    name, count = two.design_of("a"), []
    own.subscribe(lambda: count.append(1))
    before = await own.shared()
    assert (before.this, before.active, before.designs) == ("a", [0, 2], [])
    assert before.bucket_map() == own.bucket.map
    rev = await two.design(name, VIEWS)
    await until(lambda: count)
    told = await own.shared()
    assert told.revision != before.revision
    assert [(one.name, one.rev) for one in told.designs] == [(name, rev)]
    assert msgspec.json.decode(told.designs[0].document) == VIEWS
    assert (await own.shared()).revision == told.revision
    await two.design(two.design_of("b"), VIEWS)
    await until(lambda: own.elsewhere)
    assert (await own.shared()).designs == told.designs  # those of others are theirs to tell
    assert sorted((await own.order())["designs"]) == sorted([name, two.design_of("b")])


async def test_a_copy_that_is_not_filled_yet_hides_no_design_document_of_the_active_one(two):
    own, name = own_of(two, "a"), two.design_of("b")
    await two.design(name, VIEWS)
    await until(lambda: name in own.elsewhere)
    assert [*(await own.order())["designs"]] == [name]
    number = partition_of(f"_design/{name}".encode(), PARTITIONS)
    await two.engines["a"].set_partition_state(BUCKET, number, PartitionState.REPLICA)
    assert own.bucket.partitions[number].high_seqno == 0
    assert [*(await own.order())["designs"]] == [name]
    assert [one.name for one in await own.stored_designs()] == [name]
    own._heard = frozenset()
    assert own.lacks_designs(), "it is not known, and not missing"


async def test_a_copy_that_is_partly_filled_shows_what_the_active_one_has(two):
    """It may lack documents, have old versions of them, or have deleted ones."""
    own, served = own_of(two, "a"), two.engines["b"].served[BUCKET]
    await two.engines["a"]._buckets.replicator(BUCKET).stop()  # copies get what is given here
    names = (f"d{n}" for n in range(100) if two.owner(f"_design/d{n}") is two.engines["b"])
    old, gone, new = next(names), next(names), next(names)
    number = {one: partition_of(f"_design/{one}".encode(), PARTITIONS) for one in (old, gone, new)}
    revs = {one: await two.design(one, {"views": {}}) for one in (old, gone)}
    for partition in set(number.values()):
        await two.engines["a"].set_partition_state(BUCKET, partition, PartitionState.REPLICA)
        there, replica = served.partitions[partition], own.bucket.partitions[partition].replica
        replica.on_opened(there.failover_log, 0, there.high_seqno + 5)
        entries = [there.entry(key) for key in there.design_keys]
        held = [e for e in entries if e and served.partition_for(key_of(e.frame)) is there]
        if held:
            replica.apply_marker(1, there.high_seqno)
        for entry in sorted(held, key=lambda e: seqno_of(e.frame)):
            replica.apply_change(entry.frame, entry.side)
    own.bucket.changed()
    copies = two.engines["a"]._buckets.running[BUCKET].designs
    await until(lambda: _all_persisted(copies, {old, gone}))
    await two.design(old, VIEWS, revs[old])
    await two.design(gone, None, revs[gone])
    await two.design(new, VIEWS)
    decode = msgspec.json.decode
    await until(
        lambda: (
            {n: decode(one.document) for n, one in own.elsewhere.items()}
            == {old: VIEWS, new: VIEWS}
        )
    )
    assert sorted((await own.order())["designs"]) == sorted([old, new])
    listed = {one.name: decode(one.body) for one in await own.stored_designs()}
    assert listed == {old: VIEWS, new: VIEWS}
    own._heard = frozenset()
    with pytest.raises(UnavailableError) as caught:
        await own.stored_designs()
    assert caught.value.code == "not_my_partition"
    assert sorted((await own.order())["designs"]) == sorted([old, new]), "they stay meanwhile"


async def _all_persisted(store, names):
    return {one.name for one in await store.all() if one.is_persisted} >= names


async def test_a_copy_that_has_what_its_source_had_is_believed(two):
    own, name = own_of(two, "a"), two.design_of("b")
    number = partition_of(f"_design/{name}".encode(), PARTITIONS)
    await two.engines["a"]._buckets.replicator(BUCKET).stop()  # copies get what is given here
    await two.engines["a"].set_partition_state(BUCKET, number, PartitionState.REPLICA)
    partition = own.bucket.partitions[number]
    assert number in own.lacking(), "nobody has said what there is"
    there = two.engines["b"].served[BUCKET].partitions[number]
    partition.replica.on_opened(there.failover_log, 0, 7)
    own.bucket.changed()
    partition.replica.apply_marker(1, 7)
    assert own.lacks_designs() or number in own._heard
    partition.replica.apply_advance(7)
    own.bucket.changed()
    await until(lambda: number not in own.lacking())


async def test_rows_get_the_documents_of_both_nodes(two):
    ids = [f"k{n}" for n in range(30)]
    for n, key in enumerate(ids):
        two.put(key, {"n": n})
    for node in "ab":
        answer = own_of(two, node).with_documents(Rows([*ids, "none"]))
        text = b"".join([piece async for piece in answer])
        found = [msgspec.json.decode(line)["doc"] for line in text.split(b"\r\n")[:-1]]
        assert [one and one["n"] for one in found] == [*range(30), None]
        assert all(one["_rev"].startswith("1-") for one in found[:-1])


async def test_documents_of_another_node_come_in_bounded_answers(two, monkeypatch):
    module = "millstream.databases.documents.included_documents"
    monkeypatch.setattr(f"{module}.PORTION_BYTES", 100)
    here = [f"k{n}" for n in range(60) if partition_of(b"k%d" % n, PARTITIONS) % 2 == 0]
    for key in here:
        two.put(key, {"text": "x" * 30})
    counts = []
    answered = two.engines["a"].stored.answer

    async def counted(bucket, asked):
        found = await answered(bucket, asked)
        counts.append(len(found.documents))
        return found

    monkeypatch.setattr(two.engines["a"].stored, "answer", counted)
    answer = own_of(two, "b").with_documents(Rows(here))
    text = b"".join([piece async for piece in answer])
    assert text.count(b'"text"') == len(here)
    assert max(counts) < 10
