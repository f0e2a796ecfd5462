"""A node that only indexes, in this process; its index process is a real one."""

import asyncio
import json
import os
import signal

import pytest

from millstream.cluster import peers as neighbours
from millstream.errors import ConditionError, MillstreamError, RoutingError, UnavailableError
from millstream.node import index_node
from millstream.node.index_node import IndexNode
from millstream.node.processes import child_process
from millstream.node.settings import Address, Credential
from support.kv.two_engines import BUCKET, FREE, asked_of, port_of, settings_at, two_engines, until

VIEWS = {"views": {"v": {"map": "function (doc) { emit(doc.n); }"}}}
NOT_YET = {
    "bucket_not_found", "not_joined", "design_differs", "missing", "index_unavailable"
}  # fmt: skip


@pytest.fixture
async def two(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "NODE_ASK_S", 0.02)
    async with two_engines(tmp_path) as made:
        yield made


@pytest.fixture
async def node(two, tmp_path):
    made = await start(tmp_path, two)
    yield made
    await made.stop()


async def start(tmp_path, two, **more):
    join = Address("127.0.0.1", port_of(two.engines["a"], "http"))
    settings = settings_at(tmp_path / "i", kv=None, roles=("index",), join=join, **more)
    return await IndexNode.start(settings)


async def rows(node, bucket, design, **options):
    answer = await node.indexes.query(bucket, design, "v", {"timeout": 20_000, **options})
    try:
        text = b"".join([piece async for piece in answer])
    finally:
        await answer.close()
    return json.loads(text)["rows"]


async def knows(node, design, bucket=BUCKET):
    """Whether it can be asked; until its nodes were heard it says by any code to ask again."""
    try:
        return bool(await node.indexes.info(bucket, design))
    except MillstreamError as error:
        if error.code not in NOT_YET:
            raise
        return False


async def test_it_answers_for_all_partitions_of_both_nodes(two, node):
    names = [two.design_of(each) for each in "ab"]
    for name in names:
        await two.design(name, VIEWS)
    for n in range(40):
        two.put(f"k{n}", {"n": n})
    for name in names:
        await until(lambda name=name: knows(node, name))
        assert [row["key"] for row in await rows(node, BUCKET, name)] == list(range(40))
    shown = await rows(node, BUCKET, names[0], include_docs=True, limit=3)
    assert [row["doc"]["n"] for row in shown] == [0, 1, 2]
    assert {one.name for one in await node.designs.all(BUCKET)} == set(names)
    read = await node.designs.read(BUCKET, names[1])
    assert read.rev == (await two.engines["b"].designs.read(BUCKET, names[1])).rev
    assert await node.designs.read(BUCKET, "none") is None
    kept = two.engines["a"].served["default"].uuid  # that of the other node is another one
    assert {one.name: one.uuid for one in node.bucket_statuses()} == {
        BUCKET: node._found(BUCKET).uuid, "default": kept
    }  # fmt: skip
    assert node.metrics().buckets[BUCKET].keys() >= {"index_rows"}
    for change in (
        node.designs.check(BUCKET, "d", b"{}"),
        node.designs.write(BUCKET, "d", b"{}", None, is_durable=True),
    ):
        with pytest.raises(UnavailableError) as refused:
            await change
        assert refused.value.code == "no_data_role"
    addresses = {f"127.0.0.1:{port_of(one, 'http')}" for one in two.engines.values()}
    assert any(address in str(node.refusal(BUCKET)) for address in addresses)
    assert str(port_of(two.engines["a"], "http")) in str(node.refusal("no such bucket"))


@pytest.mark.slow
async def test_partitions_that_move_are_followed_where_they_are(two, node):
    name = two.design_of("a")
    await two.design(name, VIEWS)
    two.put("k1", {"n": 1})
    await until(lambda: knows(node, name))
    assert len(await rows(node, BUCKET, name)) == 1
    bucket = node._found(BUCKET)
    await two.engines["a"].set_bucket_map(
        BUCKET, bucket.uuid, 4, two.engines["a"].served[BUCKET].map, "a"
    )
    await two.give_map("aabb")
    await until(lambda: [place.partitions for place in bucket.learned.places] == [[0, 1], [2, 3]])
    assert (await bucket.order())["follows"][0]["partitions"] == [0, 1]


@pytest.mark.slow
async def test_buckets_come_and_go(two, node):
    engine = two.engines["a"]
    await engine.create_bucket("more", 4)
    await engine.designs.write("more", "d", json.dumps(VIEWS).encode(), None, is_durable=True)
    await until(lambda: knows(node, "d", "more"))
    uuid = node._found("more").uuid
    await rows(node, "more", "d")
    assert (node._path / uuid / "indexes").is_dir()
    await engine.delete_bucket("more")
    await until(lambda: uuid not in node._buckets and not (node._path / uuid).exists())
    with pytest.raises(ConditionError):
        node._found("more")
    await engine.create_bucket("more", 8)
    await until(lambda: any(one.name == "more" for one in node.bucket_statuses()))
    assert node._found("more").uuid != uuid


@pytest.mark.slow
async def test_its_index_process_is_told_everything_when_it_was_killed(two, node, monkeypatch):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.01,))
    name = two.design_of("a")
    await two.design(name, VIEWS)
    two.put("k1", {"n": 1})
    await until(lambda: knows(node, name))
    first = node.indexes.process.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: node.indexes.process.pid not in (first, None))
    await asked_of(node.indexes)
    two.put("k2", {"n": 2})
    assert [row["key"] for row in await rows(node, BUCKET, name)] == [1, 2]


@pytest.mark.slow
async def test_what_it_learned_outlives_it(two, tmp_path):
    name = two.design_of("b")
    await two.design(name, VIEWS)
    two.put("k1", {"n": 1})
    node = await start(tmp_path, two, users=(Credential("ada", "a password"),))
    await until(lambda: knows(node, name))
    assert len(await rows(node, BUCKET, name)) == 1
    await node.stop()
    damaged = tmp_path / "i" / "followed" / ("d" * 32)
    damaged.mkdir()
    (damaged / "learned.json").write_bytes(b"{")
    for engine in two.engines.values():
        await engine.stop()
    node = await start(tmp_path, two)
    try:
        await until(lambda: knows(node, name))
        assert len(await rows(node, BUCKET, name, update="false")) == 1
        with pytest.raises(UnavailableError) as raised:
            node._found("other")
        assert raised.value.code == "not_joined"
    finally:
        await node.stop()


@pytest.mark.slow
async def test_what_was_not_heard_yet_is_not_said_to_be_missing(two, tmp_path):
    names = [two.design_of(each) for each in "ab"]
    for name in names:
        await two.design(name, VIEWS)
    await two.engines["b"].stop()
    node = await start(tmp_path, two)
    try:
        await until(lambda: knows(node, names[0]))
        await asked_of(node.indexes)
        assert (await node.designs.read(BUCKET, names[0])).name == names[0]
        for asked in (
            lambda: node.designs.read(BUCKET, names[1]),
            lambda: node.designs.all(BUCKET),
            lambda: node.indexes.info(BUCKET, names[1]),
            lambda: node.indexes.cleanup(BUCKET),
        ):
            with pytest.raises(RoutingError) as raised:
                await asked()
            assert raised.value.code == "design_differs"
    finally:
        await node.stop()


@pytest.mark.slow
async def test_who_refused_at_first_is_asked_again(two, tmp_path, monkeypatch):
    names, answers, ask = list(map(two.design_of, "ab")), [], neighbours.ClusterPeers._decoded

    async def refuse(self, node, *more):
        if node.http == port_of(two.engines["b"], "http") and not answers:
            raise UnavailableError("refused", code="node_failed")
        return await ask(self, node, *more)

    monkeypatch.setattr(neighbours.ClusterPeers, "_decoded", refuse)
    for name in names:
        await two.design(name, VIEWS)
    made = await start(tmp_path, two)
    try:
        await until(lambda: knows(made, names[0]))
        assert not await knows(made, names[1])
        answers.append("from now on")
        await until(lambda: knows(made, names[1]))
    finally:
        await made.stop()


async def test_a_disk_that_is_full_is_no_end(two, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "no space")

    monkeypatch.setattr(index_node, "keep_learned", fail)
    monkeypatch.setattr(index_node, "NODE_ASK_S", 0.01)
    node = await start(tmp_path, two)
    try:
        await until(lambda: "cannot be stored" in caplog.text)
        monkeypatch.undo()
        await until(lambda: any(one.name == BUCKET for one in node.bucket_statuses()))
    finally:
        await node.stop()


async def test_its_pages(two, node):
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(node, "http"))
    writer.write(b"GET /shared/doc HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b"no_data_role" in text
    assert node.addresses()["kv"] is None
    assert node.hosts == {"127.0.0.1"}
    assert FREE.port == 0
