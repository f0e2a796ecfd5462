"""What members of a group say to each other, and its bytes.

    u32 length | u8 type | u8 version | group 16 | sender 16 | u64 incarnation | u32 epoch
    | u32 view | payload | checksum 8

Invariants:
1. A frame is whole or refused: its length is bounded before it is read, its checksum covers all
   behind the length, its payload has nothing too much, each list a bound, and a vote shows as
   many marks as it says entries.
2. Entries are checked one by one as they are decoded (`entries`); their chain, by who uses them.
3. `epoch` and `view` are the sender's own durable ones. A view that is only proposed is payload.

Elsewhere: what a member does about them (`normal_case`, `view_change`, `reconfiguration`),
connections (the shell).

Source: Liskov and Cowling 2012, section 4; V2R2, "Communication".
docs/reference/coordination-messages.md.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple

from millstream.errors import CorruptionError, RemoteProtocolError
from millstream.vsr.core import entries as log_entries
from millstream.vsr.core.configuration import MEMBERS_MAX, Configuration
from millstream.vsr.core.entries import (
    HASH_BYTES,
    ID_BYTES,
    Entry,
    Link,
    encode_entry,
)
from millstream.vsr.core.log import Mark
from millstream.vsr.core.snapshots import PART_BYTES, SHA_BYTES, SnapshotId

__all__ = [
    "FRAME_BYTES_MAX",
    "FRAME_ENTRIES_MAX",
    "FRAME_MARKS_MAX",
    "HEAD",
    "LENGTH",
    "MESSAGES",
    "VIEW_MAX",
    "Commit",
    "DoViewChange",
    "Entries",
    "Envelope",
    "EpochStarted",
    "GetEntries",
    "GetEpoch",
    "GetSnapshot",
    "GetState",
    "GetView",
    "Learn",
    "LearnOk",
    "NewState",
    "Payload",
    "Prepare",
    "PrepareOk",
    "QuorumCheck",
    "QuorumCheckOk",
    "Recovery",
    "RecoveryResponse",
    "SnapshotDone",
    "SnapshotPart",
    "StartEpoch",
    "StartView",
    "StartViewChange",
    "TooOld",
    "decode",
    "encode",
    "refused",
    "sealed",
    "unsealed",
]

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of one message: the largest entry or vote, and room to spare."""
FRAME_ENTRIES_MAX: Final = 4096
"""Most log entries in one message."""
FRAME_MARKS_MAX: Final = 512 * 1024
"""Most places of a log in one vote. It is reached only if snapshots are never made."""


VIEW_MAX: Final = 1 << 31
"""Highest view that a message may name: a member that goes there has room for later views."""


class Prepare(NamedTuple):
    """The primary's next entries. The first one's header says what they are linked to."""

    entries: tuple[Entry, ...]
    commit_lsn: int
    commit_hash: bytes


class PrepareOk(NamedTuple):
    """All up to `lsn` is durable here and equal to the primary's log. `wall_ms` caps time stamps.

    `format_max`: the highest state format that the sender understands.
    """

    wall_ms: int
    lsn: int
    hash: bytes
    format_max: int


class Commit(NamedTuple):
    """The primary is alive: how much is committed, and how many more members may fail now."""

    commit_lsn: int
    commit_hash: bytes
    fault_tolerance: int = 0


class QuorumCheck(NamedTuple):
    """Are you in my view? Only an answer with the same nonce confirms it."""

    nonce: int


class QuorumCheckOk(NamedTuple):
    """Yes."""

    nonce: int


class StartViewChange(NamedTuple):
    """The sender would go to the view `proposed` if enough others would.

    `resigned`: it is the primary and gives up its view by itself, so there is nothing to wait for.
    """

    proposed: int
    resigned: bool = False


class DoViewChange(NamedTuple):
    """A vote: the part of the sender's log that others have to know.

    `marks` describe the entries above the commit. `wall_ms` caps time stamps.
    """

    last_normal_epoch: int
    last_normal_view: int
    op_lsn: int
    op_hash: bytes
    commit_lsn: int
    commit_hash: bytes
    marks: tuple[Mark, ...]
    wall_ms: int = 0

    @property
    def last_normal(self) -> tuple[int, int]:
        """Epoch and view of the primary whose log it is."""
        return self.last_normal_epoch, self.last_normal_view

    @property
    def is_whole(self) -> bool:
        """Whether each entry above the commit has a mark, and the last mark is that of the end."""
        last = self.marks[-1].hash if self.marks else self.commit_hash
        return len(self.marks) == self.op_lsn - self.commit_lsn and last == self.op_hash


class StartView(NamedTuple):
    """The log of a view. `entries` are its end. What lies before is fetched by hash."""

    op_lsn: int
    op_hash: bytes
    commit_lsn: int
    commit_hash: bytes
    entries: tuple[Entry, ...]


class GetView(NamedTuple):
    """Send me your StartView. I know what is committed up to here."""

    commit_lsn: int


class GetState(NamedTuple):
    """Send me the entries of this view behind the end of my log."""

    lsn: int
    hash: bytes


class NewState(NamedTuple):
    """Entries of this view that were asked for. `op_lsn`: the end of the sender's log."""

    op_lsn: int
    commit_lsn: int
    commit_hash: bytes
    entries: tuple[Entry, ...]


class GetEntries(NamedTuple):
    """Send me entries that end in this one. A member that lacks it does not answer."""

    lsn: int
    hash: bytes
    number: int


class Entries(NamedTuple):
    """Entries that were asked for, in one chain. Their hashes show whether they are right."""

    entries: tuple[Entry, ...]


class StartEpoch(NamedTuple):
    """This epoch has begun, or is to begin."""

    configuration: Configuration


class EpochStarted(NamedTuple):
    """The sender has entered this epoch, durably."""

    started: int


class GetEpoch(NamedTuple):
    """Send me your StartEpoch: you spoke of an epoch that I do not know."""


class Recovery(NamedTuple):
    """The sender has lost its log; it has promised nothing above `min_view`."""

    nonce: int
    min_view: int


class RecoveryResponse(NamedTuple):
    """The sender is in this view. If it leads there, this is the end of its log.

    `snapshot`: the stable one in its log, for a member for which that log begins too late.
    """

    nonce: int
    view: int
    leads: bool
    op_lsn: int
    op_hash: bytes
    commit_lsn: int
    commit_hash: bytes
    snapshot: SnapshotId | None = None


class Learn(NamedTuple):
    """You may become a member: take these entries, which are committed like all up to the LSN.

    They follow what was acknowledged. The first message has none: with it a node that never heard
    of the group begins to learn it.
    """

    commit_lsn: int
    commit_hash: bytes
    entries: tuple[Entry, ...]


class LearnOk(NamedTuple):
    """The sender, a learner, has what is committed up to here, durably; `format_max` as above."""

    lsn: int
    hash: bytes
    format_max: int


class SnapshotDone(NamedTuple):
    """The sender has this snapshot of its own state on its disk."""

    number: int
    hash: bytes


class GetSnapshot(NamedTuple):
    """Send me the part of this stable snapshot that begins at `offset`."""

    number: int
    hash: bytes
    offset: int


class SnapshotPart(NamedTuple):
    """Part of a stable snapshot of `total` bytes."""

    number: int
    hash: bytes
    offset: int
    total: int
    data: bytes


class TooOld(NamedTuple):
    """The requested entries are no longer in the log. This snapshot replaces them."""

    snapshot: SnapshotId


Payload = (
    Prepare | PrepareOk | Commit | QuorumCheck | QuorumCheckOk | StartViewChange | DoViewChange
    | StartView | GetView | GetState | NewState | GetEntries | Entries | StartEpoch
    | EpochStarted | GetEpoch | Recovery | RecoveryResponse | Learn | LearnOk
    | SnapshotDone | GetSnapshot | SnapshotPart | TooOld
)  # fmt: skip


class Envelope(NamedTuple):
    """A message and its sender."""

    group_id: bytes
    sender: bytes
    incarnation: int
    epoch: int
    view: int
    payload: Payload


# ---- fields


class _Field(NamedTuple):
    """How one field is written and read; `read` returns the value and its end."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes, int], tuple[Any, int]]


def _number(layout: str) -> _Field:
    form = Struct(layout)

    def read(data: bytes, at: int) -> tuple[int, int]:
        (value,) = form.unpack_from(_upto(data, at + form.size), at)
        return value, at + form.size

    return _Field(form.pack, read)


def _upto(data: bytes, end: int) -> bytes:
    if end > len(data):
        raise refused("it ends within a field")
    return data


def _fixed(size: int) -> _Field:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        return _upto(data, at + size)[at : at + size], at + size

    return _Field(lambda value: bytes(value).ljust(size, b"\0"), read)


def _read_part(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _COUNT.unpack_from(_upto(data, at + _COUNT.size), at)
    if size > PART_BYTES:
        raise refused(f"{size} bytes, at most {PART_BYTES} are allowed")
    at += _COUNT.size
    return _upto(data, at + size)[at : at + size], at + size


def _write_part(value: bytes) -> bytes:
    assert len(value) <= PART_BYTES
    return _COUNT.pack(len(value)) + value


def _read_snapshot_id(data: bytes, at: int) -> tuple[SnapshotId, int]:
    values = []
    for field in _SNAPSHOT_ID:
        value, at = field.read(data, at)
        values.append(value)
    number, lsn, digest, ts_ms, sha = values
    return SnapshotId(number, Link(lsn, digest, ts_ms), sha), at


def _write_snapshot_id(value: SnapshotId) -> bytes:
    values = (value.number, *value.link, value.hash)
    return b"".join(field.write(part) for field, part in zip(_SNAPSHOT_ID, values, strict=True))


def _read_snapshot_if_any(data: bytes, at: int) -> tuple[SnapshotId | None, int]:
    there, at = _read_bool(data, at)
    return _read_snapshot_id(data, at) if there else (None, at)


def _write_snapshot_if_any(value: SnapshotId | None) -> bytes:
    return _write_bool(False) if value is None else _write_bool(True) + _write_snapshot_id(value)


def _read_hash(data: bytes, at: int) -> tuple[bytes, int]:
    return _upto(data, at + HASH_BYTES)[at : at + HASH_BYTES], at + HASH_BYTES


def _write_hash(value: bytes) -> bytes:
    assert len(value) == HASH_BYTES
    return value


def _listed(one: _Field, count_max: int) -> _Field:
    def write(values: tuple[Any, ...]) -> bytes:
        assert len(values) <= count_max
        return b"".join([_COUNT.pack(len(values)), *map(one.write, values)])

    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        (count,) = _COUNT.unpack_from(_upto(data, at + _COUNT.size), at)
        if count > count_max:
            raise refused(f"{count}, at most {count_max} are allowed")
        at += _COUNT.size
        values = []
        for _ in range(count):
            value, at = one.read(data, at)
            values.append(value)
        return tuple(values), at

    return _Field(write, read)


def _read_entries(data: bytes, at: int) -> tuple[tuple[Entry, ...], int]:
    (count,) = _COUNT.unpack_from(_upto(data, at + _COUNT.size), at)
    if count > FRAME_ENTRIES_MAX:
        raise refused(f"{count}, at most {FRAME_ENTRIES_MAX} are allowed")
    return log_entries.decode_entries(data, at + _COUNT.size, count)


def _write_entries(entries: tuple[Entry, ...]) -> bytes:
    assert len(entries) <= FRAME_ENTRIES_MAX
    return b"".join([_COUNT.pack(len(entries)), *map(encode_entry, entries)])


def _read_bool(data: bytes, at: int) -> tuple[bool, int]:
    if _upto(data, at + 1)[at] > 1:
        raise refused("a flag is neither 0 nor 1")
    return data[at] == 1, at + 1


def _write_bool(value: bool) -> bytes:
    return bytes((value,))


def _read_mark(data: bytes, at: int) -> tuple[Mark, int]:
    digest, at = _read_hash(data, at)
    whole, at = _read_bool(data, at)
    return Mark(digest, whole), at


def _write_mark(mark: Mark) -> bytes:
    return _write_hash(mark.hash) + _write_bool(mark.whole)


def _read_configuration(data: bytes, at: int) -> tuple[Configuration, int]:
    values = []
    for field in _CONFIGURATION:
        value, at = field.read(data, at)
        values.append(value)
    configuration = Configuration(*values)
    for members in (configuration.members, configuration.old):
        if list(members) != sorted(set(members)):
            raise refused("members are not in order")
    if configuration.first_view >= len(configuration.members):
        raise refused("a group without members, or with an invalid first view")
    return configuration, at


def _write_configuration(value: Configuration) -> bytes:
    return b"".join(field.write(part) for field, part in zip(_CONFIGURATION, value, strict=True))


_COUNT: Final = Struct(">I")
_U32: Final = _number(">I")
_U64: Final = _number(">Q")
_BOOL: Final = _Field(_write_bool, _read_bool)
_HASH: Final = _Field(_write_hash, _read_hash)
_ENTRIES: Final = _Field(_write_entries, _read_entries)
_MARKS: Final = _listed(_Field(_write_mark, _read_mark), FRAME_MARKS_MAX)
assert ID_BYTES == HASH_BYTES
_IDS: Final = _listed(_HASH, MEMBERS_MAX)
_CONFIGURATION: Final = (_U32, _IDS, _U32, _IDS, _U64, _HASH, _BOOL)
_LATER: Final = _Field(_write_configuration, _read_configuration)
_SHA: Final = _fixed(SHA_BYTES)
_SNAPSHOT_ID: Final = (_U64, _U64, _HASH, _U64, _SHA)
_SNAPSHOT: Final = _Field(_write_snapshot_id, _read_snapshot_id)
_SNAPSHOT_IF_ANY: Final = _Field(_write_snapshot_if_any, _read_snapshot_if_any)
_PART: Final = _Field(_write_part, _read_part)

MESSAGES: Final[dict[int, tuple[type[Any], tuple[_Field, ...]]]] = {
    1: (Prepare, (_ENTRIES, _U64, _HASH)),
    2: (PrepareOk, (_U64, _U64, _HASH, _U32)),
    3: (Commit, (_U64, _HASH, _U32)),
    4: (QuorumCheck, (_U64,)),
    5: (QuorumCheckOk, (_U64,)),
    6: (StartViewChange, (_U32, _BOOL)),
    7: (DoViewChange, (_U32, _U32, _U64, _HASH, _U64, _HASH, _MARKS, _U64)),
    8: (StartView, (_U64, _HASH, _U64, _HASH, _ENTRIES)),
    9: (GetView, (_U64,)),
    10: (GetState, (_U64, _HASH)),
    11: (NewState, (_U64, _U64, _HASH, _ENTRIES)),
    12: (GetEntries, (_U64, _HASH, _U32)),
    13: (Entries, (_ENTRIES,)),
    14: (StartEpoch, (_LATER,)),
    15: (EpochStarted, (_U32,)),
    16: (GetEpoch, ()),
    17: (Recovery, (_U64, _U32)),
    18: (RecoveryResponse, (_U64, _U32, _BOOL, _U64, _HASH, _U64, _HASH, _SNAPSHOT_IF_ANY)),
    19: (Learn, (_U64, _HASH, _ENTRIES)),
    20: (LearnOk, (_U64, _HASH, _U32)),
    21: (SnapshotDone, (_U64, _SHA)),
    22: (GetSnapshot, (_U64, _SHA, _U64)),
    23: (SnapshotPart, (_U64, _SHA, _U64, _U64, _PART)),
    24: (TooOld, (_SNAPSHOT,)),
}
"""Number on the wire -> message and its fields in order."""
_NUMBERS: Final = {message: number for number, (message, _) in MESSAGES.items()}

# ---- frames

LENGTH: Final = Struct(">I")
"""Beginning of a frame: how many bytes follow."""
_VERSION: Final = 1
HEAD: Final = Struct(">BB16s16sQII")
"""Type, version, group id, sender, incarnation, epoch, view."""
_CHECKSUM_BYTES: Final = 8
_VIEWS: Final = ("proposed", "min_view", "view")


def encode(envelope: Envelope) -> bytes:
    """Return the frame, length included."""
    group_id, sender, incarnation, epoch, view, payload = envelope
    number = _NUMBERS[type(payload)]
    parts = [HEAD.pack(number, _VERSION, group_id, sender, incarnation, epoch, view)]
    fields = MESSAGES[number][1]
    parts += (field.write(value) for field, value in zip(fields, payload, strict=True))
    return sealed(b"".join(parts), FRAME_BYTES_MAX)


def decode(frame: bytes) -> Envelope:
    """Return the message in a frame whose length is cut off.

    Raises:
        RemoteProtocolError: `bad_frame`: not what `encode` writes; drop the connection.
    """
    body = unsealed(frame, FRAME_BYTES_MAX)
    number, version, group_id, sender, incarnation, epoch, view = HEAD.unpack_from(body)
    if version != _VERSION or number not in MESSAGES:
        raise refused(f"type {number}, version {version} is not known here")
    message, fields = MESSAGES[number]
    at, values = HEAD.size, []
    try:
        for field in fields:
            value, at = field.read(body, at)
            values.append(value)
    except CorruptionError as error:
        raise refused(str(error)) from error
    if at != len(body):
        raise refused("its payload has a wrong length than its fields")
    payload = message(*values)
    if isinstance(payload, DoViewChange) and not payload.is_whole:
        raise refused("a vote has more or fewer marks than entries")
    if max(view, *(getattr(payload, name, 0) for name in _VIEWS)) > VIEW_MAX:
        raise refused("no group has had so many views")
    return Envelope(group_id, sender, incarnation, epoch, view, payload)


def sealed(data: bytes, bytes_max: int) -> bytes:
    """Return head and payload as a frame: behind its length, and with a checksum."""
    data += _checksum(data)
    assert len(data) <= bytes_max
    return LENGTH.pack(len(data)) + data


def unsealed(frame: bytes, bytes_max: int) -> bytes:
    """Return head and payload of a frame whose length is cut off.

    Raises:
        RemoteProtocolError: `bad_frame`: it is not whole.
    """
    end = len(frame) - _CHECKSUM_BYTES
    if not HEAD.size <= end <= bytes_max or frame[end:] != _checksum(frame[:end]):
        raise refused("its checksum is wrong")
    return frame[:end]


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


def refused(reason: str) -> RemoteProtocolError:
    """Return the error for bytes that are no message."""
    return RemoteProtocolError(
        f"a node sent an invalid message: {reason}; the connection is closed and opened again",
        code="bad_frame",
    )
