import gzip
from hashlib import md5, sha256

import pytest

from false_documents import FalseDocuments
from millstream.errors import UsageError
from millstream.gateway.aio import attaching
from millstream.gateway.aio.attaching import content_of, inflated, keep, keep_inline


async def pieces(*data):
    for piece in data:
        yield piece


async def gathered(source):
    return b"".join([piece async for piece in source])


async def test_bytes_are_kept_as_they_are():
    documents = FalseDocuments({"b"})
    kept = await keep(documents, "b", pieces(b"ab", b"c"), "image/png")
    assert (kept.length, kept.stored_length, kept.encoding) == (3, 3, "")
    assert kept.sha256 == sha256(b"abc").digest()
    assert kept.md5 == md5(b"abc", usedforsecurity=False).digest()
    assert await gathered(content_of(documents, "b", kept, is_plain=True)) == b"abc"


async def test_texts_are_compressed():
    documents = FalseDocuments({"b"})
    kept = await keep(documents, "b", pieces(b"x" * 1000), "text/plain")
    assert (kept.length, kept.encoding) == (1000, "gzip")
    stored = await gathered(content_of(documents, "b", kept, is_plain=False))
    assert len(stored) == kept.stored_length < 100
    assert gzip.decompress(stored) == b"x" * 1000
    assert stored[4:8] == bytes(4)  # no time in it: the same bytes everywhere
    assert await gathered(content_of(documents, "b", kept, is_plain=True)) == b"x" * 1000


async def test_what_is_compressed_already_is_measured(monkeypatch):
    documents = FalseDocuments({"b"})
    coded = gzip.compress(b"y" * 5000)
    kept = await keep(documents, "b", pieces(coded[:10], coded[10:]), "text/plain", "gzip")
    assert (kept.length, kept.stored_length) == (5000, len(coded))
    monkeypatch.setattr(attaching, "ATTACHMENT_BYTES_MAX", 4000)
    with pytest.raises(UsageError, match="at most 4000"):
        await keep(documents, "b", pieces(coded), "text/plain", "gzip")
    with pytest.raises(UsageError, match="at most 4000"):
        await keep(documents, "b", pieces(b"z" * 4001), "image/png")


async def test_a_stream_is_inflated_in_pieces():
    coded = gzip.compress(b"abc" * 300_000)
    found = [piece async for piece in inflated(pieces(coded))]
    assert b"".join(found) == b"abc" * 300_000
    assert max(map(len, found)) <= attaching.PIECE_BYTES


async def test_inline_data():
    documents = FalseDocuments({"b"})
    table = {"a": {"data": "YWJj"}, "s": {"stub": True}, "t": {"data": "", "content_type": "a/b"}}
    kept = await keep_inline(documents, "b", table)
    assert sorted(kept) == ["a", "t"]
    assert (kept["a"].length, kept["t"].content_type) == (3, "a/b")
    for bad in ({"a": 7}, {"a": {"data": "?"}}, {"_a": {"data": ""}},
                {"a": {"data": "", "content_type": 7}}):  # fmt: skip
        with pytest.raises(UsageError):
            await keep_inline(documents, "b", bad)
    many = {str(number): {"stub": True} for number in range(1001)}
    with pytest.raises(UsageError, match="at most"):
        await keep_inline(documents, "b", many)
