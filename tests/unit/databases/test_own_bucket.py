"""A bucket as others are told of it, and rows of views with documents of both nodes."""

import msgspec
import pytest

from millstream.cluster import peers as neighbours
from millstream.model.partitions import PartitionState, partition_of
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
