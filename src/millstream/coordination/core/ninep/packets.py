"""Messages of 9P2000.L and 9P2000 as bytes.

    cutter.feed(data); packet = cutter.cut()
    data = encode(Packet(Kind.Rflush, tag))

Invariants:
1. What is decoded and encoded again is the same bytes; what has bytes too few or too many, an
   unknown type, names that are no UTF-8 or a length beyond `msize` is refused.
2. Nothing is kept beyond one message.

Elsewhere: what messages mean (`operations`).

Source: the manual of Plan 9, section 5; "9P2000.L protocol" of the diod project.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct, error
from typing import Any, Final, NamedTuple

from millstream.errors import RemoteProtocolError

__all__ = [
    "HEAD_BYTES",
    "MSIZE_MAX",
    "MSIZE_MIN",
    "NAMES_MAX",
    "NO_FID",
    "NO_TAG",
    "Cutter",
    "Kind",
    "Packet",
    "Qid",
    "decode",
    "encode",
]

MSIZE_MAX: Final = 1024 * 1024
"""Bytes of the longest message."""
MSIZE_MIN: Final = 512
"""Fewer than this no client may ask for: an entry of a directory has to fit."""
HEAD_BYTES: Final = 7
"""Length, type and tag of a message."""
NAMES_MAX: Final = 16
"""Names in one Twalk."""
NO_TAG: Final = 0xFFFF
NO_FID: Final = 0xFFFFFFFF
_QID: Final = Struct("<BIQ")
_NUMBERS: Final = {"1": Struct("<B"), "2": Struct("<H"), "4": Struct("<I"), "8": Struct("<Q")}
_HEAD: Final = Struct("<IBH")


class Qid(NamedTuple):
    """What a file is by: its type, a version, a number that no other file has."""

    type: int
    version: int
    path: int


class Kind(IntEnum):
    """Types of messages."""

    Rlerror = 7
    Tstatfs = 8
    Rstatfs = 9
    Tlopen = 12
    Rlopen = 13
    Tlcreate = 14
    Tsymlink = 16
    Tmknod = 18
    Trename = 20
    Rrename = 21
    Treadlink = 22
    Tgetattr = 24
    Rgetattr = 25
    Tsetattr = 26
    Rsetattr = 27
    Txattrwalk = 30
    Txattrcreate = 32
    Treaddir = 40
    Rreaddir = 41
    Tfsync = 50
    Rfsync = 51
    Tlock = 52
    Rlock = 53
    Tgetlock = 54
    Rgetlock = 55
    Tlink = 70
    Tmkdir = 72
    Rmkdir = 73
    Trenameat = 74
    Rrenameat = 75
    Tunlinkat = 76
    Runlinkat = 77
    Tversion = 100
    Rversion = 101
    Tauth = 102
    Rauth = 103
    Tattach = 104
    Rattach = 105
    Rerror = 107
    Tflush = 108
    Rflush = 109
    Twalk = 110
    Rwalk = 111
    Topen = 112
    Ropen = 113
    Tcreate = 114
    Rcreate = 115
    Tread = 116
    Rread = 117
    Twrite = 118
    Rwrite = 119
    Tclunk = 120
    Rclunk = 121
    Tremove = 122
    Rremove = 123
    Tstat = 124
    Rstat = 125
    Twstat = 126
    Rwstat = 127


# Digits: numbers of so many bytes. s: a name. d: data. w: names. q, Q: a qid, several. b: the
# bytes of a stat. What comes after ? may be missing.
_LAYOUTS: Final = {
    Kind.Rlerror: "4",
    Kind.Tstatfs: "4", Kind.Rstatfs: "448888884",
    Kind.Tlopen: "44", Kind.Rlopen: "q4",
    Kind.Tlcreate: "4s444", Kind.Tsymlink: "4ss4", Kind.Tmknod: "4s4444",
    Kind.Trename: "44s", Kind.Rrename: "", Kind.Treadlink: "4",
    Kind.Tgetattr: "48", Kind.Rgetattr: "8q444" + 15 * "8",
    Kind.Tsetattr: "4444488888", Kind.Rsetattr: "",
    Kind.Txattrwalk: "44s", Kind.Txattrcreate: "4s84",
    Kind.Treaddir: "484", Kind.Rreaddir: "d",
    Kind.Tfsync: "4?4", Kind.Rfsync: "",
    Kind.Tlock: "414884s", Kind.Rlock: "1",
    Kind.Tgetlock: "41884s", Kind.Rgetlock: "1884s",
    Kind.Tlink: "44s", Kind.Tmkdir: "4s44", Kind.Rmkdir: "q",
    Kind.Trenameat: "4s4s", Kind.Rrenameat: "", Kind.Tunlinkat: "4s4", Kind.Runlinkat: "",
    Kind.Tversion: "4s", Kind.Rversion: "4s",
    Kind.Tauth: "4ss?4", Kind.Rauth: "q", Kind.Tattach: "44ss?4", Kind.Rattach: "q",
    Kind.Rerror: "s",
    Kind.Tflush: "2", Kind.Rflush: "",
    Kind.Twalk: "44w", Kind.Rwalk: "Q",
    Kind.Topen: "41", Kind.Ropen: "q4", Kind.Tcreate: "4s41", Kind.Rcreate: "q4",
    Kind.Tread: "484", Kind.Rread: "d", Kind.Twrite: "48d", Kind.Rwrite: "4",
    Kind.Tclunk: "4", Kind.Rclunk: "", Kind.Tremove: "4", Kind.Rremove: "",
    Kind.Tstat: "4", Kind.Rstat: "b", Kind.Twstat: "4b", Kind.Rwstat: "",
}  # fmt: skip


class Packet(NamedTuple):
    """A message; `values` in the order of the manual."""

    kind: Kind
    tag: int
    values: tuple[Any, ...] = ()


class Cutter:
    """Cuts what comes into messages."""

    def __init__(self) -> None:
        self.msize = MSIZE_MAX
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._data += data

    def cut(self) -> bytes | None:
        """Return the next message, None if it is not all there.

        Raises:
            RemoteProtocolError: its length makes no sense.
        """
        if len(self._data) < 4:
            return None
        length = int.from_bytes(self._data[:4], "little")
        if not HEAD_BYTES <= length <= self.msize:
            raise RemoteProtocolError(f"a 9P message says it has {length} bytes; close")
        if len(self._data) < length:
            return None
        found = bytes(self._data[:length])
        del self._data[:length]
        return found


def encode(packet: Packet) -> bytes:
    """Return a message as bytes."""
    parts = [b""]
    layout = _LAYOUTS[packet.kind].replace("?", "")
    for sign, value in zip(layout, packet.values, strict=False):
        parts.append(_encoded(sign, value))
    length = HEAD_BYTES + sum(map(len, parts))
    parts[0] = _HEAD.pack(length, packet.kind, packet.tag)
    return b"".join(parts)


def _encoded(sign: str, value: Any) -> bytes:
    match sign:
        case "s" | "b":
            return _encoded("2", len(value)) + bytes(value)
        case "d":
            return _encoded("4", len(value)) + bytes(value)
        case "w":
            return b"".join([_encoded("2", len(value)), *(_encoded("s", name) for name in value)])
        case "q":
            return _QID.pack(*value)
        case "Q":
            return b"".join([_encoded("2", len(value)), *(_QID.pack(*qid) for qid in value)])
    return _NUMBERS[sign].pack(value)


def decode(data: bytes) -> Packet:
    """Return the message that these bytes are, all of them.

    Raises:
        RemoteProtocolError: they are none.
    """
    try:
        length, number, tag = _HEAD.unpack_from(data)
        reader = _Reader(data)
        layout, _, optional = _LAYOUTS[Kind(number)].partition("?")
        values = [reader.take(sign) for sign in layout]
        if not reader.is_at_end:
            values += [reader.take(sign) for sign in optional]
        if not reader.is_at_end or length != len(data):
            raise ValueError("it has bytes after its end")
    except (ValueError, error) as why:
        raise RemoteProtocolError(f"invalid 9P message: {why}") from None
    return Packet(Kind(number), tag, tuple(values))


class _Reader:
    """What of a message is not read yet."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, HEAD_BYTES

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, sign: str) -> Any:
        """Return the next value."""
        match sign:
            case "s":
                return self._name()
            case "b":
                return self._bytes(self._number("2"))
            case "d":
                return self._bytes(self._number("4"))
            case "w":
                return tuple(self._name() for _ in range(self._few()))
            case "q":
                return Qid(*_QID.unpack(self._bytes(_QID.size)))
            case "Q":
                return tuple(self.take("q") for _ in range(self._few()))
        return self._number(sign)

    def _few(self) -> int:
        number = self._number("2")
        if number > NAMES_MAX:
            raise ValueError("more names than a walk may have")
        return number

    def _number(self, sign: str) -> int:
        layout = _NUMBERS[sign]
        (found,) = layout.unpack(self._bytes(layout.size))
        return int(found)

    def _name(self) -> bytes:
        found = self._bytes(self._number("2"))
        found.decode()
        if b"\0" in found:
            raise ValueError("a NUL in a name")
        return found

    def _bytes(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise ValueError("it is cut off")
        self._at += length
        return found
