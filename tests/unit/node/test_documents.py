"""Documents of a whole node, on real files."""

import pytest

from millstream.documents.sent import parse_sent
from millstream.documents.updating import interactive, replicated
from millstream.errors import ConditionError, MillstreamError
from millstream.node.engine import Engine

BUCKET = "default"


@pytest.fixture
async def start(make_settings):
    running = []

    async def started():
        while running:
            await running.pop().stop()
        running.append(await Engine.start(make_settings()))
        return running[0].documents

    yield started
    for engine in running:
        await engine.stop()


def edit(text):
    return lambda found: interactive(found, parse_sent(text), revs_limit=1000).document


def peers(text):
    return lambda found: replicated(found, parse_sent(text), revs_limit=1000).document


async def pieces(*parts):
    for part in parts:
        yield part


async def scanned(documents, start=b"", end=b"\xff", *, descending=False):
    found = documents.scan(BUCKET, start, end, descending=descending)
    return [doc_id async for doc_id, _ in found]


async def test_documents_last(start):
    documents = await start()
    edits = [
        ("a", edit(b'{"n":1}')), ("b", peers(b'{"_rev":"1-x"}')), ("b", peers(b'{"_rev":"1-y"}')),
        ("a", edit(b"{}")), ("c", peers(b'{"_rev":"1-z","_deleted":true}')),
        ("_design/d", edit(b"{}")),
    ]  # fmt: skip
    made = await documents.update(BUCKET, edits, is_durable=True)
    assert isinstance(made[3], MillstreamError)
    assert (made[3].code, made[0].document.winner.rev[:2]) == ("conflict", "1-")
    documents = await start()
    found = await documents.read(BUCKET, "b", is_durable=True)
    assert sorted(found.tree.leaf_revs()) == ["1-x", "1-y"]
    assert await documents.read(BUCKET, "none") is None
    info = await documents.info(BUCKET)
    assert (info.name, info.document_count, info.deleted_count) == (BUCKET, 3, 1)
    assert int(info.instance_start_time) > 10**15
    assert int(info.update_seq.partition("-")[0]) == 5
    assert await scanned(documents) == ["_design/d", "a", "b"]
    assert await scanned(documents, b"a", b"a") == ["a"]
    assert await scanned(documents, descending=True) == ["b", "a", "_design/d"]


async def test_what_was_accepted_is_committed(start):
    documents = await start()
    await documents.update(BUCKET, [("a", edit(b"{}"))], is_durable=False)
    await documents.commit(BUCKET)
    documents = await start()
    assert (await documents.read(BUCKET, "a")).winner.rev.startswith("1-")


async def test_settings_and_local_documents_last(start):
    documents = await start()
    before = await documents.settings(BUCKET)
    assert (before.revs_limit, b"_admin" in before.security) == (1000, True)
    await documents.set_revs_limit(BUCKET, 7)
    await documents.set_security(BUCKET, b'{"x":1}')
    assert await documents.write_local(BUCKET, "l", b'{"n":1}', None) == 1
    assert await documents.write_local(BUCKET, "l", b'{"n":2}', 1) == 2
    with pytest.raises(ConditionError):
        await documents.write_local(BUCKET, "l", b"{}", 1)
    documents = await start()
    assert await documents.settings(BUCKET) == (7, b'{"x":1}')
    assert await documents.read_local(BUCKET, "l") == ("l", 2, b'{"n":2}')
    assert [one.id for one in await documents.locals(BUCKET)] == ["l"]
    assert await documents.write_local(BUCKET, "l", None, 2) == 0
    assert await documents.read_local(BUCKET, "l") is None


async def test_blobs_are_kept(start):
    documents = await start()
    blob = await documents.put_blob(BUCKET, pieces(b"012", b"345"))
    assert blob.length == 6
    found = [part async for part in documents.open_blob(BUCKET, blob.sha256, 2, 5)]
    assert b"".join(found) == b"234"


async def test_what_is_no_bucket(start):
    documents = await start()
    with pytest.raises(ConditionError) as refused:
        await documents.read("none", "a")
    assert refused.value.code == "bucket_not_found"
