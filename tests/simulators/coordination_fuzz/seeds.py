"""One of everything that members, nodes and disks write: what damage begins with."""

from __future__ import annotations

from millstream.coordination.core.namespace.state.access_lists import ADMINS
from millstream.coordination.core.pool.file_format import Hosted, NodeFile, Phase, encode_node_file
from millstream.coordination.core.pool.messages import (
    Address,
    Board,
    Carried,
    Carry,
    Deleted,
    Found,
    Founded,
    Founding,
    Hello,
    Join,
    JoinRefused,
    NodeInfo,
    Ping,
    PoolEnvelope,
    PoolPayload,
    Sighting,
    Tables,
    encode_pool,
)
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.entries import GENESIS, Body, Entry, Kind, Link, chain
from millstream.vsr.core.log import Mark
from millstream.vsr.core.messages import (
    LENGTH,
    Commit,
    DoViewChange,
    Entries,
    Envelope,
    EpochStarted,
    GetEntries,
    GetEpoch,
    GetSnapshot,
    GetState,
    GetView,
    Learn,
    LearnOk,
    NewState,
    Payload,
    Prepare,
    PrepareOk,
    QuorumCheck,
    QuorumCheckOk,
    Recovery,
    RecoveryResponse,
    SnapshotDone,
    SnapshotPart,
    StartEpoch,
    StartView,
    StartViewChange,
    TooOld,
    encode,
)
from millstream.vsr.core.snapshots import SnapshotId

__all__ = ["ENTRIES", "ENVELOPES", "FRAMES", "NODE_FILE", "POOL_FRAMES"]

ID, SHA = b"h" * 16, b"s" * 32
_SNAPSHOT = SnapshotId(3, Link(7, ID, 9), SHA)
_MEMBERS = tuple(bytes([number]) * 16 for number in (1, 2, 3))


def _chained(*bodies: Body) -> tuple[Entry, ...]:
    link, made = GENESIS, []
    for body in bodies:
        made.append(
            chain(link, group_id=ID, epoch=0, view=1, kind=Kind.REQUEST, ts_ms=5, body=body)
        )
        link = made[-1].header.link
    return tuple(made)


ENTRIES = _chained(
    Body(b"user", (ADMINS, b"group"), (b"0", b"PUT", b"/n/a", b"x")),
    Body(argv=(b"SET", b"k", b"")),
)
_PAYLOADS: tuple[Payload, ...] = (
    Prepare(ENTRIES, 3, ID), PrepareOk(5, 2, ID, 1), Commit(3, ID), QuorumCheck(5),
    QuorumCheckOk(5), StartViewChange(4, True), StartView(2, ID, 1, ID, ENTRIES), GetView(2),
    DoViewChange(0, 1, 2, ID, 0, ID, (Mark(ID, True), Mark(ID, False)), 5), GetState(1, ID),
    NewState(1, 2, ID, ENTRIES), GetEntries(1, ID, 2), Entries(ENTRIES), EpochStarted(1),
    StartEpoch(Configuration(1, _MEMBERS, 0, (), 5, ID)), GetEpoch(), Recovery(5, 1),
    RecoveryResponse(5, 1, True, 2, ID, 1, ID, _SNAPSHOT), Learn(1, ID, ENTRIES),
    LearnOk(1, ID, 2), SnapshotDone(3, SHA), GetSnapshot(3, SHA, 0),
    SnapshotPart(3, SHA, 0, 4, b"part"), TooOld(_SNAPSHOT),
)  # fmt: skip
ENVELOPES = tuple(Envelope(ID, ID, 1, 0, 1, payload) for payload in _PAYLOADS)
FRAMES = tuple(encode(envelope)[LENGTH.size :] for envelope in ENVELOPES)

_ADDRESS = Address("127.0.0.1", 7379)
_NODE = NodeInfo(ID, 1, 2, _ADDRESS, _ADDRESS, False)
_FOUNDING = Founding(1, _MEMBERS, True, 5)
_TABLES = Tables((ID,), (_NODE,), (_FOUNDING,), (ID,), False)
_POOL: tuple[PoolPayload, ...] = (
    Hello(_NODE, ID), Join(_NODE, (_FOUNDING,)), JoinRefused("no"), _TABLES, Found(_FOUNDING),
    Ping((ID,), _NODE, ID, (Sighting(ID, 0, 1, _MEMBERS, 2, 3),), True, 4), Founded(ID, "why"),
    Deleted(ID, True), Board(ID, 1, ((b"/n", 2),), ((b"user", b"hash"),)), Carried(1, b"+OK"),
    Carry(1, 2, (b"GET", b"/n")),
)  # fmt: skip
POOL_FRAMES = tuple(encode_pool(PoolEnvelope(ID, 1, one))[LENGTH.size :] for one in _POOL)
NODE_FILE = encode_node_file(NodeFile(ID, _TABLES, (Hosted(ID, Phase.FORMED, True),)))
