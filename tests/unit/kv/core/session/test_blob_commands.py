from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.kv.core.partition.blobs import BlobPiece
from millstream.kv.core.session.blob_commands import (
    PIECE_BYTES_MAX,
    blob_request,
    piece_of,
    put_extras,
)
from millstream.kv.core.session.session import KvSession
from millstream.wire.mcbp import Feature, Opcode, Status, request
from support.kv.session_double import HostDouble, UserDouble, ask, new_session

NAME = bytes(range(32))


class BlobHost(HostDouble):
    def __init__(self, piece: BlobPiece | None) -> None:
        super().__init__()
        self.piece = piece
        self.asked: list[tuple[bytes, int, int]] = []
        self.put: list[tuple[bytes, int, int, bytes]] = []
        self.found: int | Status = 12

    def put_blob(
        self,
        session: KvSession,
        name: bytes,
        offset: int,
        total: int,
        data: bytes,
        done: Callable[[int | Status], None],
    ) -> None:
        self.put.append((name, offset, total, data))
        done(self.found)

    def read_blob(
        self,
        session: KvSession,
        name: bytes,
        offset: int,
        size: int,
        done: Callable[[BlobPiece | None], None],
    ) -> None:
        self.asked.append((name, offset, size))
        done(self.piece)


def ours(piece: BlobPiece | None) -> tuple[KvSession, BlobHost]:
    host = BlobHost(piece)
    session = new_session(host)
    session.features = frozenset((Feature.MILLSTREAM,))
    return session, host


def test_a_piece_is_handed_out() -> None:
    session, host = ours(BlobPiece(1000, b"piece"))
    (packet,) = ask(session, blob_request(NAME, 7))
    assert packet.status == Status.SUCCESS
    assert piece_of(packet) == (1000, b"piece")
    assert host.asked == [(NAME, 7, PIECE_BYTES_MAX)]
    assert not session.is_waiting


def test_what_is_not_there_is_not_found() -> None:
    session, _ = ours(None)
    assert ask(session, blob_request(NAME, 0))[0].status == Status.KEY_ENOENT


def test_no_more_than_a_piece_is_read() -> None:
    session, host = ours(BlobPiece(5, b""))
    extras = bytes(8) + b"\xff" * 4
    ask(session, request(Opcode.GET_BLOB, key=NAME, extras=extras))
    assert host.asked[0][2] == PIECE_BYTES_MAX


@pytest.mark.parametrize(
    "data",
    [
        request(Opcode.GET_BLOB, key=NAME[:31], extras=bytes(12)),
        request(Opcode.GET_BLOB, key=NAME, extras=bytes(11)),
        request(Opcode.GET_BLOB, key=NAME, extras=bytes(12), value=b"v"),
    ],
)
def test_other_requests_are_invalid(data: bytes) -> None:
    session, host = ours(None)
    assert ask(session, data)[0].status == Status.EINVAL
    assert host.asked == []


def test_it_takes_our_extensions_a_bucket_and_the_right_to_stream() -> None:
    assert ask(new_session(), blob_request(NAME, 0))[0].status == Status.UNKNOWN_COMMAND
    session, host = ours(None)
    session.bucket = None
    assert ask(session, blob_request(NAME, 0))[0].status == Status.NO_BUCKET
    session, host = ours(None)
    host.users.is_empty = False  # type: ignore[misc]
    session.user = UserDouble("read")  # type: ignore[assignment]
    assert ask(session, blob_request(NAME, 0))[0].status == Status.EACCESS
    assert host.asked == []


def test_a_reply_that_is_not_right_is_no_piece() -> None:
    session, _ = ours(BlobPiece(5, b""))
    (packet,) = ask(session, blob_request(NAME, 0))
    assert piece_of(packet._replace(extras=b"")) is None
    assert piece_of(packet._replace(value=bytes(PIECE_BYTES_MAX + 1))) is None


def put_request(name: bytes = NAME, extras: bytes = put_extras(5, 12)) -> bytes:
    return request(Opcode.PUT_BLOB, key=name, extras=extras, value=b"seven b")


def test_a_piece_is_taken() -> None:
    session, host = ours(None)
    (packet,) = ask(session, put_request())
    assert (packet.status, packet.extras) == (Status.SUCCESS, (12).to_bytes(8, "big"))
    assert host.put == [(NAME, 5, 12, b"seven b")]
    host.found = Status.EINVAL
    assert ask(session, put_request())[0].status == Status.EINVAL
    for wrong in (put_request(NAME[1:]), put_request(extras=bytes(15))):
        assert ask(session, wrong)[0].status == Status.EINVAL
    large = request(
        Opcode.PUT_BLOB, key=NAME, extras=put_extras(0, 2**30), value=bytes(PIECE_BYTES_MAX + 1)
    )
    assert ask(session, large)[0].status == Status.EINVAL
    assert len(host.put) == 2


def test_putting_takes_our_extensions_a_bucket_and_both_rights() -> None:
    assert ask(new_session(), put_request())[0].status == Status.UNKNOWN_COMMAND
    session, host = ours(None)
    host.users.is_empty = False  # type: ignore[misc]
    for right in ("write", "stream"):
        session.user = UserDouble(right)  # type: ignore[assignment]
        assert ask(session, put_request())[0].status == Status.EACCESS
    session.user = UserDouble("write", "stream")  # type: ignore[assignment]
    assert ask(session, put_request())[0].status == Status.SUCCESS
    session.bucket = None
    assert ask(session, put_request())[0].status == Status.NO_BUCKET
