"""Bytes of disks and other nodes, damaged or invented, and what reads them.

Invariants, looked at in every run:
1. Whatever the bytes are, they are read, or refused with an error of Millstream's: a node says so
   and goes on, and is never ended by them.
2. What was read is written as bytes that read the same.

Checksums are made right again behind the damage: else nothing behind them would be looked at.

Elsewhere: what is damaged (`seeds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.commands.transactions import unpack_command
from millstream.coordination.core.pool.file_format import decode_node_file, encode_node_file
from millstream.coordination.core.pool.messages import decode_pool, encode_pool
from millstream.errors import MillstreamError
from millstream.vsr.core.entries import (
    HASH_BYTES,
    decode_body,
    decode_entries,
    encode_body,
    encode_entry,
    hash_of,
)
from millstream.vsr.core.messages import decode, encode
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.snapshots import Pieces
from simulators.coordination_fuzz.choices import Choices
from simulators.coordination_fuzz.seeds import ENTRIES, FRAMES, NODE_FILE, POOL_FRAMES
from simulators.coordination_fuzz.twins import frozen_example

__all__ = ["codecs"]

_EXTREMES = (b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x00" * 8, b"\xff" * 8,
             b"\x91" * 3000, b"\xc1", b"\xd9\x02\xff\xfe", b"\xcf" + b"\xff" * 8)  # fmt: skip
_FRAME_CHECKSUM, _FILE_HEAD, _FILE_HASH = 8, 16, 16


def codecs(data: bytes) -> None:
    """Have something read that the bytes say."""
    choices = Choices(data)
    _ROADS[choices.pick(sorted(_ROADS))](choices)


def _damaged(choices: Choices, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(choices.number(4)):
        at = choices.number(max(len(found) - 1, 0))
        how = choices.number(4)
        if how == 0 and found:
            found[at] ^= 1 << choices.number(7)
        elif how == 1:
            text = choices.pick(_EXTREMES)
            found[at : at + len(text)] = text
        elif how == 2:
            found[at:at] = choices.text(choices.number(9)) or choices.pick(_EXTREMES)
        elif how == 3:
            del found[at : at + 1 + choices.number(9)]
        else:
            found[at : at + 1] = found[at : at + 1 + choices.number(40)] * 2
    return bytes(found)


def _read(read: Callable[[bytes], Any], write: Callable[[Any], bytes], data: bytes) -> None:
    try:
        found = read(data)
    except MillstreamError:
        return
    assert read(write(found)) == found, found


def _sealed_frame(choices: Choices, seeds: tuple[bytes, ...]) -> bytes:
    body = _damaged(choices, choices.pick(seeds)[:-_FRAME_CHECKSUM])
    return body + blake2b(body, digest_size=_FRAME_CHECKSUM).digest()


def _messages(choices: Choices) -> None:
    _read(decode, lambda found: encode(found)[4:], _sealed_frame(choices, FRAMES))


def _pool_messages(choices: Choices) -> None:
    _read(decode_pool, lambda found: encode_pool(found)[4:], _sealed_frame(choices, POOL_FRAMES))


def _entries(choices: Choices) -> None:
    """Headers and bodies that are damaged behind checksums that say they are not."""
    parts = []
    for entry in ENTRIES:
        body = _damaged(choices, entry.body)
        head = _damaged(choices, encode_entry(entry)[: -len(entry.body) - HASH_BYTES])
        parts.append(head + hash_of(head) + body)
    data = b"".join(parts)

    def read(found: bytes) -> list[Any]:
        return list(decode_entries(found, 0, len(ENTRIES))[0])

    _read(read, lambda found: b"".join(map(encode_entry, found)), data)


def _bodies(choices: Choices) -> None:
    data = _damaged(choices, choices.pick(ENTRIES).body)
    _read(decode_body, encode_body, data)
    unpack_command(data)


def _node_files(choices: Choices) -> None:
    body = _damaged(choices, NODE_FILE[_FILE_HEAD + _FILE_HASH :])
    head = NODE_FILE[:_FILE_HEAD] + blake2b(body, digest_size=_FILE_HASH).digest()
    _read(decode_node_file, encode_node_file, head + body)


def _snapshots(choices: Choices) -> None:
    """A state that is damaged is refused as it is restored."""
    data = _damaged(choices, _example())
    replica = Replica(GroupState(), lambda: 0.5)
    try:
        for _ in replica.parts.execution.restore(Pieces([data])):
            pass
    except MillstreamError:
        pass


@cache
def _example() -> bytes:
    return frozen_example()


_ROADS: Mapping[str, Callable[[Choices], None]] = {
    "bodies": _bodies,
    "entries": _entries,
    "messages": _messages,
    "node files": _node_files,
    "pool messages": _pool_messages,
    "snapshots": _snapshots,
}
