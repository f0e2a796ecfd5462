import gzip
import hashlib
import zlib
from base64 import b64encode

import pytest

from millstream.errors import UsageError
from millstream.gateway.aio.documents import attaching
from millstream.gateway.aio.documents.attaching import (
    PIECE_BYTES,
    content_of,
    inflated,
    keep,
    keep_inline,
)
from millstream.gateway.core.attachments import ATTACHMENTS_MAX, Said
from support.http.false_documents import FalseDocuments


async def pieces(data, size=7):
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def whole(source):
    return b"".join([piece async for piece in source])


@pytest.fixture
def documents():
    return FalseDocuments({"b"})


async def test_bytes_are_described(documents):
    kept = await keep(documents, "b", pieces(b"0123456789"), "image/png")
    assert (kept.length, kept.stored_length, kept.encoding, kept.revpos) == (10, 10, "", 0)
    assert kept.sha256 == hashlib.sha256(b"0123456789").digest()
    assert await whole(content_of(documents, "b", kept, is_plain=True)) == b"0123456789"


@pytest.mark.parametrize("is_packed", [True, False])
async def test_compressed_bytes_are_given_back_as_they_were(documents, is_packed):
    text = b"text" * PIECE_BYTES
    data, encoding = (gzip.compress(text), "gzip") if is_packed else (text, "")
    kept = await keep(documents, "b", pieces(data, 1000), "text/plain", encoding)
    assert (kept.length, kept.encoding) == (len(text), "gzip")
    assert kept.stored_length == len(documents.blobs[kept.sha256]) < len(text)
    assert await whole(content_of(documents, "b", kept, is_plain=True)) == text
    stored = await whole(content_of(documents, "b", kept, is_plain=False))
    assert gzip.decompress(stored) == text
    sizes = [len(piece) async for piece in inflated(pieces(stored, len(stored)))]
    assert max(sizes) <= PIECE_BYTES


@pytest.mark.parametrize("data", [b"no gzip", b"", gzip.compress(b"text", mtime=0)[:-9]])
async def test_what_is_no_gzip_is_not_kept(documents, data):
    with pytest.raises(UsageError, match="gzip"):
        await keep(documents, "b", pieces(data), "text/plain", "gzip")
    assert documents.blobs == {}


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_what_comes_behind_a_gzip_is_not_kept(documents, size):
    data = gzip.compress(b"text", mtime=0) + b"x" * 10_000
    with pytest.raises(UsageError, match="behind the end"):
        await keep(documents, "b", pieces(data, size), "image/png", "gzip")
    assert documents.blobs == {}


async def test_a_gzip_of_nothing_is_as_long_as_any(documents, monkeypatch):
    monkeypatch.setattr(attaching, "ATTACHMENT_BYTES_MAX", 100)
    squeeze = zlib.compressobj(wbits=31)
    head = squeeze.compress(b"") + squeeze.flush(zlib.Z_FULL_FLUSH)
    data = head + b"\0\0\0\xff\xff" * 100  # blocks without content
    with pytest.raises(UsageError) as refused:
        await keep(documents, "b", pieces(data), "image/png", "gzip")
    assert (refused.value.code, documents.blobs) == ("attachment_too_large", {})


async def test_bytes_are_those_that_were_spoken_of(documents):
    right = hashlib.md5(b"0123456789", usedforsecurity=False).digest()
    for said in (Said(right, 10), Said(right), Said(b"", 10)):
        await keep(documents, "b", pieces(b"0123456789"), "text/plain", said=said)
    documents.blobs.clear()
    other, short = Said(right[:15], 10), Said(b"", 9)
    for said, code in ((other, "content_md5_mismatch"), (short, "bad_request")):
        with pytest.raises(UsageError) as refused:
            await keep(documents, "b", pieces(b"0123456789"), "text/plain", said=said)
        assert (refused.value.code, documents.blobs) == (code, {})


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_too_much_is_not_kept(documents, monkeypatch, encoding):
    monkeypatch.setattr(attaching, "ATTACHMENT_BYTES_MAX", 100)
    data = gzip.compress(b"a" * 101) if encoding else b"a" * 101
    with pytest.raises(UsageError) as refused:
        await keep(documents, "b", pieces(data), "text/plain", encoding)
    assert (refused.value.code, documents.blobs) == ("attachment_too_large", {})


async def test_only_what_stands_in_the_text_is_kept(documents):
    table = {"a": {"data": b64encode(b"x").decode()}, "b": {"stub": True}, "c": {"follows": True}}
    kept = await keep_inline(documents, "b", table)
    assert [(name, one.content_type) for name, one in kept.items()] == [
        ("a", "application/octet-stream")
    ]


@pytest.mark.parametrize(
    "table",
    [
        {"a": 7},
        {"_a": {"data": ""}},
        {"a": {"data": "*"}},
        {"a": {"data": "", "content_type": 7}},
        {str(n): {"stub": True} for n in range(ATTACHMENTS_MAX + 1)},
    ],
)
async def test_bad_tables(documents, table):
    with pytest.raises(UsageError) as refused:
        await keep_inline(documents, "b", table)
    assert refused.value.code == "bad_request"
