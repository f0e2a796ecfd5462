"""Messages between nodes of a pool, apart from those of their groups, and their format.

Frames are those of the groups (`vsr.core.messages`) with a group id of all zeros, epoch and view
0, and a payload in MessagePack: the fields of the message as an array, tuples as arrays.

Invariants:
1. A frame is valid as a whole or refused. Every list has a bound.
2. What a node says about itself carries its incarnation and turn: later information replaces
   earlier information, whichever node passes it on.
3. The id of a group is the hash of its founding record, so no other record can found it.

Elsewhere: the reaction of a node (`pool`), who may connect (the shell).

Source: V2R2, "Initial Bootstrap". docs/reference/coordination-messages.md.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from millstream.vsr.core.configuration import MEMBERS_MAX
from millstream.vsr.core.entries import ID_BYTES, NOBODY
from millstream.vsr.core.messages import HEAD, refused, sealed, unsealed

__all__ = [
    "BOARD_NAMES_MAX",
    "GROUPS_MAX",
    "NODES_MAX",
    "POOL_FRAME_BYTES_MAX",
    "POOL_IDS_MAX",
    "SETTINGS_MAX",
    "TOMBSTONES_MAX",
    "Address",
    "Board",
    "Carried",
    "Carry",
    "Deleted",
    "Found",
    "Founded",
    "Founding",
    "Hello",
    "Join",
    "JoinRefused",
    "NodeInfo",
    "Ping",
    "PoolEnvelope",
    "PoolPayload",
    "Refused",
    "Sighting",
    "Tables",
    "decode_pool",
    "encode_pool",
    "is_pool_frame",
]

NODES_MAX: Final = 256
"""Nodes that one node knows."""
GROUPS_MAX: Final = 256
"""Groups of one pool."""
TOMBSTONES_MAX: Final = 4096
"""Deleted groups and removed nodes that a pool remembers; each is refused for ever."""
POOL_IDS_MAX: Final = 64
"""Names of one pool: joining makes one pool of two, which has the names of both."""
BOARD_NAMES_MAX: Final = 2048
"""Namespaces that a board has."""
SETTINGS_MAX: Final = 64
"""Keys that are set for all groups."""
POOL_FRAME_BYTES_MAX: Final = 2 * 1024 * 1024
"""Most bytes of one frame of the pool."""
_TEXT_CHARS_MAX: Final = 1024
_NUMBER_MAX: Final = (1 << 63) - 1
_WORDS_MAX: Final = 8
_NAME_BYTES_MAX: Final = 255
_VALUE_BYTES_MAX: Final = 1024

Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Ids = Annotated[tuple[Id, ...], Meta(max_length=MEMBERS_MAX)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
U63 = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
Text = Annotated[str, Meta(max_length=_TEXT_CHARS_MAX)]
Value = Annotated[bytes, Meta(max_length=_VALUE_BYTES_MAX)]


class Address(NamedTuple):
    """The address of a listener. Port 0: there is none."""

    host: Text
    port: Annotated[int, Meta(ge=0, le=65535)]

    @property
    def text(self) -> str:
        """Return it as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class NodeInfo(NamedTuple):
    """What a node says of itself; `turn` grows within a process, `is_gone`: it left the pool."""

    node_id: Id
    incarnation: U63
    turn: U32
    peer: Address
    coord: Address
    is_gone: bool = False

    @property
    def age(self) -> tuple[int, int, bool]:
        """Return what orders the words of one node.

        At the same turn it may have told nodes of another pool that it is none of theirs: that is
        over once the pools are one, and all the others have heard that it is here.
        """
        return self.incarnation, self.turn, not self.is_gone


class Founding(NamedTuple):
    """The formation record of a group: `members` in order are its epoch 0.

    `number` is what people call it; `salt` tells it from a deleted one of the same number.
    """

    number: Annotated[int, Meta(ge=1, le=_NUMBER_MAX)]
    members: Ids
    has_journal: bool
    salt: U63

    @property
    def group_id(self) -> bytes:
        """Return the group's id: the hash of this."""
        return blake2b(msgspec.msgpack.encode(self), digest_size=ID_BYTES).digest()


class Sighting(NamedTuple):
    """Where a group is, and how many elements it has: its primary said so `age_ms` ago."""

    group_id: Id
    epoch: U32
    view: U32
    members: Ids
    age_ms: U63
    elements: U63 = 0


Nodes = Annotated[tuple[NodeInfo, ...], Meta(max_length=NODES_MAX)]
Foundings = Annotated[tuple[Founding, ...], Meta(max_length=GROUPS_MAX)]
Sightings = Annotated[tuple[Sighting, ...], Meta(max_length=GROUPS_MAX)]
PoolIds = Annotated[tuple[Id, ...], Meta(max_length=POOL_IDS_MAX)]
Tombstones = Annotated[tuple[Id, ...], Meta(max_length=TOMBSTONES_MAX)]


class Hello(NamedTuple):
    """The first frame of a connection: who is there, and whom it takes you for.

    `receiver` is all zeros if it knows the address only. Who is somebody else closes the
    connection: another node may be at an address by now.
    """

    info: NodeInfo
    receiver: Id


class Join(NamedTuple):
    """The sender wants its pool, which has these groups, and the receiver's to be one."""

    info: NodeInfo
    foundings: Foundings


class JoinRefused(NamedTuple):
    """It cannot, for this reason."""

    reason: Text


class Ping(NamedTuple):
    """A sign of life, where the groups are, and a digest of the sender's `Tables`.

    `board_lsn`: of the `Board` that the sender has; 0: none.
    """

    pool_ids: PoolIds
    info: NodeInfo
    digest: Id
    sightings: Sightings
    is_answer: bool
    board_lsn: U63 = 0


class Tables(NamedTuple):
    """All that the sender knows of nodes and groups; in order of their ids."""

    pool_ids: PoolIds
    nodes: Nodes
    foundings: Foundings
    tombstones: Tombstones
    is_answer: bool


class Found(NamedTuple):
    """Format this group if you are one of its members, and tell me."""

    founding: Founding


class Founded(NamedTuple):
    """The sender has formatted this group; or `refusal` says why it will not."""

    group_id: Id
    refusal: Text


class Deleted(NamedTuple):
    """The sender will refuse this group for ever; durably. So shall you, and answer.

    The id of a node instead of a group's: it was removed, and so it is told itself, too.
    """

    group_id: Id
    is_answer: bool


class Board(NamedTuple):
    """What the system group, as of an LSN, has for everybody.

    `names`: namespaces in order, and the number of the group that has each. `settings`: keys that
    are set for all groups, in order, and their values.
    """

    group_id: Id
    lsn: U63
    names: Annotated[
        tuple[tuple[Annotated[bytes, Meta(max_length=_NAME_BYTES_MAX)], U63], ...],
        Meta(max_length=BOARD_NAMES_MAX),
    ]
    settings: Annotated[
        tuple[tuple[Value, Value], ...],
        Meta(max_length=SETTINGS_MAX),
    ]


class Carry(NamedTuple):
    """Have the group of this number, which the receiver leads, execute this; then answer."""

    number: U63
    group: U63
    words: Annotated[tuple[bytes, ...], Meta(max_length=_WORDS_MAX)]


class Carried(NamedTuple):
    """What the group said; None: it may have been executed or not, and can be said again."""

    number: U63
    value: bytes | None


class Refused(NamedTuple):
    """The receiver's process of this number is not listened to: its directory is an older copy."""

    incarnation: U63
    reason: Text


PoolPayload = (
    Hello | Join | JoinRefused | Ping | Tables | Found | Founded | Deleted | Board | Carry
    | Carried | Refused
)  # fmt: skip

_TYPES: Final[dict[int, type[Any]]] = {
    64: Hello, 65: Join, 66: JoinRefused, 67: Ping, 68: Tables, 69: Found, 70: Founded,
    71: Deleted, 72: Board, 73: Carry, 74: Carried, 75: Refused,
}  # fmt: skip
_NUMBERS: Final = {message: number for number, message in _TYPES.items()}
_DECODERS: Final = {n: msgspec.msgpack.Decoder(message) for n, message in _TYPES.items()}


class PoolEnvelope(NamedTuple):
    """A message and who says it."""

    sender: bytes
    incarnation: int
    payload: PoolPayload


_VERSION: Final = 1
_GROUP: Final = slice(2, 18)


def is_pool_frame(frame: bytes) -> bool:
    """Return whether a frame, its length cut off, is one of the pool and not of a group."""
    return frame[_GROUP] == NOBODY


def encode_pool(envelope: PoolEnvelope) -> bytes:
    """Return the frame, length included."""
    payload = envelope.payload
    head = HEAD.pack(
        _NUMBERS[type(payload)], _VERSION, NOBODY, envelope.sender, envelope.incarnation, 0, 0
    )
    return sealed(head + msgspec.msgpack.encode(payload), POOL_FRAME_BYTES_MAX)


def decode_pool(frame: bytes) -> PoolEnvelope:
    """Return the message in a frame of the pool whose length is cut off.

    Raises:
        RemoteProtocolError: `bad_frame`: not what `encode_pool` writes; drop the connection.
    """
    body = unsealed(frame, POOL_FRAME_BYTES_MAX)
    number, version, group_id, sender, incarnation, _, _ = HEAD.unpack_from(body)
    if version != _VERSION or number not in _TYPES or group_id != NOBODY:
        raise refused(f"type {number}, version {version} is not known here")
    try:
        payload = _DECODERS[number].decode(body[HEAD.size :])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refused(str(error)) from error
    return PoolEnvelope(sender, incarnation, payload)
