"""Parts on their way."""

import pytest

from millstream.errors import RemoteProtocolError, UsageError
from millstream.replication.aio import attachments
from millstream.replication.aio.attachments import Related, related_documents
from millstream.replication.core.asking import TOO_LARGE

DEEP = b'{"_rev":"1-a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

OUTER = (
    b"--o\r\nContent-Type: multipart/related; boundary=i\r\n\r\n"
    b"--i\r\nContent-Type: application/json\r\n\r\n%b\r\n"
    b"--i\r\nContent-Disposition: attachment; filename=\"f\"\r\nContent-Type: text/plain\r\n"
    b"Content-Encoding: gzip\r\n\r\nnot really\r\n--i--\r\n"
    b"--o\r\nContent-Type: application/json; error=\"true\"\r\n\r\n{\"missing\":\"1-b\"}\r\n"
    b"--o\r\nContent-Type: application/json\r\n\r\n{\"_rev\":\"1-c\"}\r\n--o--"
)  # fmt: skip


class Bytes:
    """A stream that gives few bytes at a time."""

    def __init__(self, data, size=7):
        self.data, self.size = data, size

    async def read(self, n=-1):
        size = len(self.data) if n < 0 else min(n, self.size)
        taken, self.data = self.data[:size], self.data[size:]
        return taken


async def read(body, content_type):
    """What an answer is read as: documents with the bodies that send them on, or missing ones."""
    found = []
    async for each in related_documents(Bytes(body), content_type):
        if isinstance(each, Related):
            sent = b"".join([piece async for piece in each.pieces()])
            found.append((each.rev, each.content_type, sent))
        else:
            found.append(each)
    return found


@pytest.mark.parametrize("boundary", ["o", '"o"'])
async def test_revisions_with_and_without_attachments(boundary):
    found = await read(OUTER % b'{"_rev":"1-a"}', f"multipart/mixed; boundary={boundary}")
    (rev, content_type, sent), missing, (plain, plain_type, _) = found
    assert rev == "1-a"
    assert content_type.startswith("multipart/related; boundary=")
    assert b"Content-Encoding: gzip" in sent
    assert b"\r\n\r\nnot really\r\n--" in sent
    assert missing == ("missing", "1-b")
    assert (plain, plain_type) == ("1-c", "application/json")


async def test_json_will_do():
    found = await read(b'[{"ok":{"_rev":"1-a"}},{"missing":"1-b"}]', "application/json")
    assert found[0][0] == "1-a"
    assert found[1] == ("missing", "1-b")


async def test_a_document_is_bounded(monkeypatch):
    monkeypatch.setattr(attachments, "DOCUMENT_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="over 10 bytes"):
        await read(OUTER % b'{"_rev":"1-a"}', "multipart/mixed; boundary=o")


async def test_nonsense_is_an_error_of_the_peer():
    with pytest.raises(RemoteProtocolError):
        await read(b"no boundary at all", "multipart/mixed; boundary=o")


@pytest.mark.parametrize("body", [b"[]", b'{"_rev":7}', DEEP])
def test_a_revision_that_cannot_be_read_is_not_told(body):
    assert Related(body).rev == ""


async def test_a_document_passes_however_deep_it_is():
    assert (await read(OUTER % DEEP, "multipart/mixed; boundary=o"))[0][2].count(DEEP) == 1
    with pytest.raises(UsageError, match="too deep") as caught:
        await read(b'[{"ok":' + DEEP + b"}]", "application/json")
    assert caught.value.code == TOO_LARGE
