"""Parts, however their bytes come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import RemoteProtocolError, UsageError
from millstream.replication.aio import parts
from millstream.replication.aio.parts import Parts, boundary_of
from support.budget import budget


class Bytes:
    def __init__(self, data, size):
        self.data, self.size = data, size

    async def read(self, n=-1):
        taken, self.data = self.data[: self.size], self.data[self.size :]
        return taken


async def bodies(data, size=5, content_type="multipart/mixed; boundary=b"):
    reader, found = Parts.of(Bytes(data, size), content_type), []
    while (part := await reader.next()) is not None:
        found.append((part.head, b"".join([piece async for piece in part.pieces()])))
    return found


def written(contents):
    return b"".join(b"\r\n--b\r\nA: 1\r\n\r\n" + each for each in contents) + b"\r\n--b--"


@settings(max_examples=budget(100))
@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"--b", b"")), max_size=4),
       st.integers(1, 50))  # fmt: skip
async def test_what_is_written_is_read(contents, size):
    assert await bodies(written(contents), size) == [({"a": "1"}, each) for each in contents]


async def test_what_stands_around_is_passed_over():
    data = b"before\r\n--b \r\n\r\nx\r\n--b--\r\nbehind"
    assert await bodies(data) == [({}, b"x")]


async def test_a_part_that_was_not_read_is_passed_over():
    reader = Parts.of(Bytes(written([b"x" * 100, b"y"]), 9), "multipart/mixed; boundary=b")
    await reader.next()
    part = await reader.next()
    assert b"".join([piece async for piece in part.pieces()]) == b"y"


@pytest.mark.parametrize("end", [b"\r\n", b"\r\n\r\n"])
async def test_parts_inside_parts(end):
    inner = b"--i\r\n\r\none\r\n--i\r\n\r\ntwo\r\n--i--" + end
    data = b'--b\r\nContent-Type: multipart/related; boundary="i"\r\n\r\n' + inner
    data += b"--b\r\n\r\nlast\r\n--b--" if end == b"\r\n" else b"\r\n--b\r\n\r\nlast\r\n--b--"
    outer = Parts.of(Bytes(data, 4), "multipart/mixed; boundary=b")
    inside, found = (await outer.next()).parts(), []
    while (part := await inside.next()) is not None:
        found.append(b"".join([piece async for piece in part.pieces()]))
    last = await outer.next()
    assert found == [b"one", b"two"]
    assert b"".join([piece async for piece in last.pieces()]) == b"last"
    assert await outer.next() is None


@pytest.mark.parametrize("data", [b"", b"--b\r\n\r\nx", b"--b\r\nhead: 1\r\n", b"nothing\r\n"])
async def test_an_end_in_the_middle(data):
    with pytest.raises(RemoteProtocolError, match="in the middle"):
        await bodies(data)


async def test_heads_are_bounded(monkeypatch):
    monkeypatch.setattr(parts, "HEAD_BYTES_MAX", 100)
    with pytest.raises(UsageError, match="too long"):
        await bodies(b"--b\r\n" + b"x" * 200)
    monkeypatch.setattr(parts, "HEAD_LINES_MAX", 3)
    with pytest.raises(RemoteProtocolError, match="too many lines"):
        await bodies(b"--b\r\n" + b"x: 1\r\n" * 9)


def test_boundaries():
    assert boundary_of('multipart/mixed; boundary="a b"') == b"a b"
    for wrong in ("application/json", "multipart/mixed", ""):
        with pytest.raises(RemoteProtocolError):
            boundary_of(wrong)
