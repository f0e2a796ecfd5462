"""`coordination.core.pool.file_format`: the node's file."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import pytest

from millstream.coordination.core.pool.file_format import (
    Fork,
    Hosted,
    NodeFile,
    Phase,
    decode_node_file,
    encode_node_file,
)
from millstream.coordination.core.pool.messages import Address, Founding, NodeInfo, Tables
from millstream.errors import CorruptionError, UsageError

ME = NodeInfo(b"m" * 16, 3, 1, Address("h", 1), Address("h", 0))
NAMED = ME._replace(peer=Address("host", 1))
RECORD = Founding(1, (b"m" * 16,), True, 0)
KEPT = NodeFile(
    ME.node_id,
    Tables((b"p" * 16,), (ME,), (RECORD,), (b"t" * 16,), is_answer=False),
    (Hosted(RECORD.group_id, Phase.FORMED, is_founder=True),),
    (Fork(RECORD.group_id, 3 << 16, (b"m" * 16,)),),
)


def test_what_was_kept_is_read() -> None:
    assert decode_node_file(encode_node_file(KEPT)) == KEPT


def test_a_file_of_an_older_program_knows_of_no_forks() -> None:
    body = b"\1" + msgspec.msgpack.encode(tuple(KEPT)[:3])
    data = b"millstream pool\n" + blake2b(body, digest_size=16).digest() + body
    assert decode_node_file(data) == KEPT._replace(forks=())


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    data = encode_node_file(KEPT)
    for at in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_node_file(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptionError):
            decode_node_file(data[:at])


def test_a_newer_version_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.coordination.core.pool.file_format._VERSION", 2)
    data = encode_node_file(KEPT)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="newer"):
        decode_node_file(data)


def test_text_that_is_none_is_damage() -> None:
    data = encode_node_file(KEPT._replace(tables=KEPT.tables._replace(nodes=(NAMED,))))
    body = data[32:].replace(b"host", b"ho\xfft")
    with pytest.raises(CorruptionError):
        decode_node_file(data[:16] + blake2b(body, digest_size=16).digest() + body)
