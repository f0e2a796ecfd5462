"""What no engine of ours sends; both sides together are in test_index_link."""

import asyncio

import pytest

from millstream.views.aio.serving import index_server
from millstream.views.aio.serving.index_server import Answer, IndexServer
from millstream.views.core.index_messages import END, FrameCutter, frame, message


class Echo:
    async def call(self, name, arguments):
        if name == "disk":
            raise OSError(28, "no space")
        if name == "wait":
            await asyncio.Event().wait()
        return Answer(arguments, (b"a", b"", b"b"))


@pytest.fixture
async def server(tmp_path):
    made = IndexServer(Echo())
    await made.start(tmp_path / "i.sock")
    yield made
    await made.stop()


async def talk(tmp_path, *pieces):
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "i.sock"))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    return reader, writer


async def test_empty_pieces_are_left_out(server, tmp_path):
    call = message({"call": "x", "n": 1})
    reader, writer = await talk(tmp_path, call[:3], call[3:])
    expected = message({"n": 1}) + frame(b"a") + frame(b"b") + END
    assert await reader.readexactly(len(expected)) == expected
    writer.close()


async def test_a_disk_error_names_the_path(server, tmp_path):
    reader, writer = await talk(tmp_path, message({"call": "disk"}))
    cutter, frames = FrameCutter(1000), []
    while len(frames) < 2:
        frames += cutter.receive(await reader.read(1000))
    assert frames[0] is None
    assert b"no space" in frames[1]
    writer.close()


@pytest.mark.parametrize(
    "data",
    [
        frame(b"no json"),
        frame(b"[1]"),
        b"\xff\xff\xff\xfe",
        message({"call": "wait"}) * 2,
        message({"call": "wait"}) + b"\0",
        b"\xff\xff\xff\xff",
    ],
)
async def test_invalid_bytes_close_the_connection(server, tmp_path, data):
    reader, writer = await talk(tmp_path, data)
    assert await reader.read(100) == b""
    writer.close()
    reader, writer = await talk(tmp_path, message({"call": "x"}))
    assert await reader.readexactly(4)
    writer.close()


async def test_one_connection_too_many_is_closed(server, tmp_path, monkeypatch):
    monkeypatch.setattr(index_server, "CALLS_MAX", 1)
    _, first = await talk(tmp_path, message({"call": "wait"}))
    reader, second = await talk(tmp_path)
    assert await reader.read(100) == b""
    first.close()
    second.close()
