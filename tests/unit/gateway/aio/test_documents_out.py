from email import message_from_bytes

import pytest

from false_documents import FalseDocuments
from millstream.documents.reading import PLAIN
from millstream.documents.sent import parse_sent
from millstream.documents.stored import load
from millstream.documents.updating import interactive
from millstream.errors import UsageError
from millstream.gateway.aio import documents_out
from millstream.gateway.aio.attaching import keep_inline
from millstream.gateway.aio.documents_out import inline_text, mixed, pieces_of, related
from millstream.wire.frames import mutation


async def attached(documents):
    sent = parse_sent(
        b'{"_attachments":{"t":{"content_type":"text/plain","data":"aGVsbG8="},'
        b'"b":{"data":"AAEC"}}}'
    )
    kept = await keep_inline(documents, "b", sent.attachments)
    return interactive(None, sent, kept, revs_limit=9).document


async def gathered(source):
    return b"".join([piece async for piece in source])


async def test_parts_are_what_others_can_read():
    documents = FalseDocuments({"b"})
    document = await attached(documents)
    leaf = document.winner
    wanted = document.contents[leaf.rev].attachments
    text = await gathered(related(documents, "b", "x", "d", document, leaf, PLAIN, wanted))
    parsed = message_from_bytes(b'Content-Type: multipart/related; boundary="x"\r\n\r\n' + text)
    first, *others = parsed.get_payload()
    assert b'"follows":true' in first.get_payload(decode=True)
    assert [part.get_filename() for part in others] == ["t", "b"]
    assert others[0]["Content-Encoding"] == "gzip"
    several = await gathered(
        mixed(documents, "b", "o", "d", document, [leaf, "9-z"], PLAIN, [leaf.rev])
    )
    assert several.count(b"--o\r\n") == 2
    assert b'{"missing":"9-z"}' in several
    assert b"filename" not in several


async def test_json_with_attachments_is_bounded(monkeypatch):
    documents = FalseDocuments({"b"})
    document = await attached(documents)
    leaf = document.winner
    text = await inline_text(documents, "b", "d", document, leaf, PLAIN, None)
    assert b'"data":"aGVsbG8="' in text
    assert b'"data":"AAEC"' in text
    monkeypatch.setattr(documents_out, "INLINE_BYTES_MAX", 7)
    with pytest.raises(UsageError, match="one after the other"):
        await inline_text(documents, "b", "d", document, leaf, PLAIN, None)


async def test_a_value_of_kv_is_an_attachment():
    frame = mutation(0, b"k", b"no json", 1, 1, 1, 0, 0, 0)
    document = load("u", b"k", frame, b"\x01\x01")
    rev = document.winner.rev
    found = pieces_of(FalseDocuments({"b"}), "b", document, rev, "value", is_plain=True)
    assert await gathered(found) == b"no json"
