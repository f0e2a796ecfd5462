"""The memcached binary protocol as Couchbase speaks it: header, numbers, framing extras.

Invariants:
1. All integers are big-endian; a header is 24 bytes; body = framing extras, extras, key, value.
2. A body shorter than its extras and key is malformed: the connection is closed.
3. Numbers of our own lie in ranges the protocol leaves free and are used only after HELLO 0xff00.

Elsewhere: the loop that answers requests (`kv.aio.server`), stream frames (`wire.frames`).
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final, NamedTuple

from millstream.errors import RemoteProtocolError

__all__ = [
    "ALT_REQUEST",
    "ALT_RESPONSE",
    "HEADER",
    "HEADER_BYTES",
    "REQUEST",
    "RESPONSE",
    "SERVER_REQUEST",
    "Datatype",
    "Feature",
    "FrameInfo",
    "Header",
    "Opcode",
    "OpenFlag",
    "Packet",
    "ServerOpcode",
    "SnapshotFlag",
    "Status",
    "StreamEndReason",
    "StreamFlag",
    "cut_packets",
    "packet",
    "parse_frame_infos",
    "request",
    "response",
]

HEADER: Final = Struct(">BBHBBHIIQ")
HEADER_BYTES: Final = 24
REQUEST: Final = 0x80
RESPONSE: Final = 0x81
SERVER_REQUEST: Final = 0x82
"""Of what a node sends unasked, to clients with `Feature.DUPLEX`; nobody answers it."""
ALT_REQUEST: Final = 0x08
ALT_RESPONSE: Final = 0x18


class Opcode(IntEnum):
    """Commands this project speaks or must recognise."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH = 0x08
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSHQ = 0x18
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    SET_VBUCKET_STATE = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    GET_ALL_VB_SEQNOS = 0x48
    DCP_OPEN = 0x50
    DCP_ADD_STREAM = 0x51
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQ = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_SET_VBUCKET_STATE = 0x5B
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACK = 0x5D
    DCP_CONTROL = 0x5E
    DCP_SYSTEM_EVENT = 0x5F
    DCP_PREPARE = 0x60
    DCP_SEQNO_ACKNOWLEDGED = 0x61
    DCP_COMMIT = 0x62
    DCP_ABORT = 0x63
    DCP_SEQNO_ADVANCED = 0x64
    DCP_OSO_SNAPSHOT = 0x65
    BARRIER = 0x68
    BARRIER_REACHED = 0x69
    CYCLE_END = 0x6A
    POSITIONS = 0x6B
    LEASE = 0x6C
    GET_VERSIONED = 0x6D
    COLUMN_BATCH = 0x6E
    DOC_META = 0x6F
    BRANCH_LOG = 0x7A
    GET_BLOB = 0x7B
    PUT_BLOB = 0x7C
    EXCHANGE_RECORDS = 0x7D
    GET_REPLICA = 0x83
    SELECT_BUCKET = 0x89
    OBSERVE_SEQNO = 0x91
    OBSERVE = 0x92
    GET_LOCKED = 0x94
    UNLOCK = 0x95
    GET_FAILOVER_LOG = 0x96
    GET_META = 0xA0
    SET_WITH_META = 0xA2
    SETQ_WITH_META = 0xA3
    ADD_WITH_META = 0xA4
    ADDQ_WITH_META = 0xA5
    DEL_WITH_META = 0xA8
    DELQ_WITH_META = 0xA9
    GET_CLUSTER_CONFIG = 0xB5
    SUBDOC_GET = 0xC5
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0xD3
    GET_RANDOM_KEY = 0xB6
    SEQNO_PERSISTENCE = 0xB7
    GET_COLLECTIONS_MANIFEST = 0xBA
    GET_COLLECTION_ID = 0xBB
    GET_ERROR_MAP = 0xFE


class Status(IntEnum):
    """Status of a response."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    NOT_LOCKED = 0x0E
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86
    UNKNOWN_COLLECTION = 0x88
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    LEASE_LOST = 0xFF01
    """Our own: the lease named is not held (any more), or the `at` asked for cannot be read."""


class ServerOpcode(IntEnum):
    """What a node sends unasked."""

    MAP_CHANGED = 0x01


class Feature(IntEnum):
    """HELLO feature codes."""

    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    PRESERVE_TTL = 0x14
    MAP_KNOWN = 0x1D
    MAP_NOTICE = 0x1F
    MILLSTREAM = 0xFF00


class Datatype(IntFlag):
    """Bits of the datatype byte."""

    RAW = 0
    JSON = 1
    SNAPPY = 2
    XATTR = 4


class FrameInfo(IntEnum):
    """Ids of request framing extras."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATE = 4
    PRESERVE_TTL = 5


class OpenFlag(IntFlag):
    """Flags of DCP_OPEN."""

    PRODUCER = 0x01
    INCLUDE_XATTRS = 0x04
    NO_VALUE = 0x08
    INCLUDE_DELETE_TIMES = 0x20
    NO_VALUE_KEEP_DATATYPE = 0x40
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """Flags of DCP_STREAM_REQ."""

    TAKEOVER = 0x01
    DISK_ONLY = 0x02
    TO_LATEST = 0x04
    ACTIVE_ONLY = 0x10
    STRICT_UUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGE = 0x80
    CACHE_TRANSFER = 0x100


class SnapshotFlag(IntFlag):
    """Flags of DCP_SNAPSHOT_MARKER."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_REPEAT_KEYS = 0x20
    AWAITED = 0x10000
    """Our own: somebody waits until the copy that is fed has it on disk."""


class StreamEndReason(IntEnum):
    """Why a stream ended."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    TOO_SLOW = 4
    BACKFILL_FAILED = 5
    ROLLED_BACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class Header(NamedTuple):
    """The nine fields; `vbucket` is the status in a response."""

    magic: int
    opcode: int
    key_bytes: int
    extras_bytes: int
    datatype: int
    vbucket: int
    body_bytes: int
    opaque: int
    cas: int


class Packet(NamedTuple):
    """One whole frame, cut into its parts."""

    magic: int
    opcode: int
    datatype: int
    vbucket: int
    opaque: int
    cas: int
    framing: bytes
    extras: bytes
    key: bytes
    value: bytes

    @property
    def status(self) -> int:
        """The status of a response (same bytes as the vbucket of a request)."""
        return self.vbucket


def packet(
    magic: int,
    opcode: int,
    *,
    vbucket: int = 0,
    opaque: int = 0,
    cas: int = 0,
    datatype: int = 0,
    framing: bytes = b"",
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes = b"",
) -> bytes:
    """Return one frame; with `framing` the magic must be one of the two alternative ones."""
    key_field = len(framing) << 8 | len(key) if magic in (ALT_REQUEST, ALT_RESPONSE) else len(key)
    body_bytes = len(framing) + len(extras) + len(key) + len(value)
    head = HEADER.pack(
        magic, opcode, key_field, len(extras), datatype, vbucket, body_bytes, opaque, cas
    )
    return b"".join((head, framing, extras, key, value))


def request(
    opcode: int,
    *,
    vbucket: int = 0,
    opaque: int = 0,
    cas: int = 0,
    datatype: int = 0,
    framing: bytes = b"",
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes = b"",
) -> bytes:
    """Return one request frame, with the alternative magic if it has framing extras."""
    return packet(
        ALT_REQUEST if framing else REQUEST, opcode, vbucket=vbucket, opaque=opaque, cas=cas,
        datatype=datatype, framing=framing, extras=extras, key=key, value=value,
    )  # fmt: skip


def response(
    opcode: int,
    status: int,
    opaque: int,
    *,
    cas: int = 0,
    datatype: int = 0,
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes = b"",
) -> bytes:
    """Return one response frame."""
    return packet(
        RESPONSE, opcode, vbucket=status, opaque=opaque, cas=cas,
        datatype=datatype, extras=extras, key=key, value=value,
    )  # fmt: skip


def cut_packets(data: bytes, body_bytes_max: int) -> tuple[list[Packet], bytes]:
    """Cut whole frames off the front of `data`; return them and the remainder.

    For clients and rare paths; the server's request loop and the stream reader cut frames in
    place.

    Raises:
        RemoteProtocolError: unknown magic, or lengths that contradict each other or the limit.
    """
    found: list[Packet] = []
    offset, end = 0, len(data)
    while end - offset >= HEADER_BYTES:
        head = HEADER.unpack_from(data, offset)
        magic, opcode, key_bytes, extras_bytes, datatype, vbucket, body_bytes, opaque, cas = head
        framing_bytes = 0
        if magic in (ALT_REQUEST, ALT_RESPONSE):
            framing_bytes, key_bytes = key_bytes >> 8, key_bytes & 0xFF
        elif magic not in (REQUEST, RESPONSE):
            raise RemoteProtocolError(f"unknown magic 0x{magic:02x}", code="bad_magic")
        if body_bytes > body_bytes_max:
            raise RemoteProtocolError(f"body of {body_bytes} bytes is too long", code="too_large")
        if body_bytes < framing_bytes + extras_bytes + key_bytes:
            raise RemoteProtocolError("body is shorter than its extras and key", code="bad_frame")
        stop = offset + HEADER_BYTES + body_bytes
        if stop > end:
            break
        at = offset + HEADER_BYTES
        framing = data[at : at + framing_bytes]
        at += framing_bytes
        extras = data[at : at + extras_bytes]
        at += extras_bytes
        key = data[at : at + key_bytes]
        value = data[at + key_bytes : stop]
        found.append(
            Packet(magic, opcode, datatype, vbucket, opaque, cas, framing, extras, key, value)
        )
        offset = stop
    return found, data[offset:] if offset else data


def parse_frame_infos(framing: bytes) -> dict[int, bytes]:
    """Return framing extras as id -> data.

    Raises:
        RemoteProtocolError: an object reaches past the end.
    """
    found: dict[int, bytes] = {}
    at, end = 0, len(framing)
    while at < end:
        ident, size = framing[at] >> 4, framing[at] & 15
        at += 1
        if ident == 15 and at < end:
            ident, at = 15 + framing[at], at + 1
        if size == 15 and at < end:
            size, at = 15 + framing[at], at + 1
        if at + size > end:
            raise RemoteProtocolError("framing extras are cut short", code="bad_frame")
        found[ident] = framing[at : at + size]
        at += size
    return found
