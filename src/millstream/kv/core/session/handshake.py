"""Session commands: features, log-in, bucket selection, map, and opening a stream.

Invariants:
1. A feature is granted only if it was requested and is supported.
2. Before a log-in (if there are users) only the commands of `BEFORE_LOGIN` are answered.
3. A new log-in or bucket replaces the old one at once, rights included.

Source: memcached binary protocol, SASL SCRAM (RFC 5802); docs/reference/wire/session.md.
"""

from __future__ import annotations

from struct import Struct, error, unpack
from typing import Final

from msgspec import DecodeError, json

from millstream.access.users import User
from millstream.errors import AccessError
from millstream.kv.core.copies.cluster_config import version_of
from millstream.kv.core.session.session import Command, KvSession
from millstream.model.limits import STREAM_NAME_BYTES_MAX
from millstream.wire.mcbp import (
    Datatype,
    Feature,
    Opcode,
    OpenFlag,
    Packet,
    Status,
    response,
)

__all__ = ["BEFORE_LOGIN", "ERROR_MAP", "FEATURES_MAX", "SESSION_COMMANDS", "VERSION"]

VERSION: Final = "0.1.0-0000"
"""In the form that stream clients parse: major.minor.patch-build."""
MEMCACHED_VERSION: Final = f"1.6.0 (Millstream {VERSION})"
"""On the plain port: clients read memcached's protocol version from it, and reject 0."""

FEATURES_MAX: Final = 256
"""Features that a HELLO may ask for."""
_GRANTED: Final = frozenset(
    {Feature.TCP_NODELAY, Feature.MUTATION_SEQNO, Feature.XERROR, Feature.SELECT_BUCKET,
     Feature.JSON, Feature.ALT_REQUEST, Feature.SYNC_REPLICATION, Feature.PRESERVE_TTL,
     Feature.DUPLEX, Feature.MAP_KNOWN, Feature.MAP_NOTICE, Feature.MILLSTREAM}
)  # fmt: skip

BEFORE_LOGIN: Final = frozenset(
    {Opcode.HELLO, Opcode.SASL_LIST_MECHS, Opcode.SASL_AUTH, Opcode.SASL_STEP, Opcode.NOOP,
     Opcode.VERSION, Opcode.QUIT, Opcode.QUITQ, Opcode.GET_ERROR_MAP}
)  # fmt: skip

_ERRORS: Final = {
    Status.SUCCESS: ("SUCCESS", "done", ["success"]),
    Status.KEY_ENOENT: ("KEY_ENOENT", "no such key", ["item-only"]),
    Status.KEY_EEXISTS: ("KEY_EEXISTS", "key exists, or has another CAS", ["item-only"]),
    Status.E2BIG: ("E2BIG", "key or value too large", ["item-only", "invalid-input"]),
    Status.EINVAL: ("EINVAL", "malformed arguments", ["internal", "invalid-input"]),
    Status.NOT_STORED: ("NOT_STORED", "nothing to extend", ["item-only"]),
    Status.DELTA_BADVAL: ("DELTA_BADVAL", "value is no number", ["item-only", "invalid-input"]),
    Status.NOT_MY_VBUCKET: ("NOT_MY_VBUCKET", "wrong node", ["fetch-config", "invalid-input"]),
    Status.NO_BUCKET: ("NO_BUCKET", "no bucket selected", ["conn-state-invalidated"]),
    Status.LOCKED: ("LOCKED", "locked", ["item-locked", "item-only", "retry-now"]),
    Status.NOT_LOCKED: ("NOT_LOCKED", "document is not locked", ["item-only"]),
    Status.AUTH_ERROR: ("AUTH_ERROR", "bad credentials", ["conn-state-invalidated", "auth"]),
    Status.EACCESS: ("EACCESS", "no permission", ["support"]),
    Status.UNKNOWN_COMMAND: ("UNKNOWN_COMMAND", "unknown command", ["support"]),
    Status.ENOMEM: ("ENOMEM", "no memory", ["temp", "retry-later"]),
    Status.NOT_SUPPORTED: ("NOT_SUPPORTED", "not supported", ["support"]),
    Status.EINTERNAL: ("EINTERNAL", "internal error", ["internal"]),
    Status.EBUSY: ("EBUSY", "busy", ["temp", "retry-later"]),
    Status.ETMPFAIL: ("ETMPFAIL", "try again later", ["temp", "retry-later"]),
    Status.DURABILITY_INVALID_LEVEL: (
        "DURABILITY_INVALID_LEVEL",
        "no such level",
        ["item-only", "invalid-input"],
    ),
    Status.DURABILITY_IMPOSSIBLE: (
        "DURABILITY_IMPOSSIBLE",
        "too few copies follow",
        ["item-only"],
    ),
    Status.SYNC_WRITE_AMBIGUOUS: ("SYNC_WRITE_AMBIGUOUS", "outcome unknown", ["item-only"]),
}
ERROR_MAP: Final = {
    "version": 2,
    "revision": 1,
    "errors": {
        f"{status:x}": {"name": name, "desc": text, "attrs": attributes}
        for status, (name, text, attributes) in _ERRORS.items()
    },
}
_PLAIN_PORT: Final = json.encode(
    {
        "error": {
            "context": "this is the memcached port, where no bucket is chosen: take the kv port"
        }
    }
)
_OPEN: Final = Struct(">II")
_KNOWN: Final = Struct(">qq")
"""Epoch and revision of the map that a client has."""
_OPEN_FLAGS: Final = sum(map(int, OpenFlag))
_SCRAM_NAMES: Final = ("SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1")


def _success(packet: Packet, value: bytes = b"", *, datatype: int = 0) -> bytes:
    return response(packet.opcode, Status.SUCCESS, packet.opaque, value=value, datatype=datatype)


def _hello(session: KvSession, packet: Packet, _: int) -> bytes | None:
    if len(packet.value) % 2 or len(packet.value) > 2 * FEATURES_MAX:
        return session.refusal(packet, Status.EINVAL)
    asked = unpack(f">{len(packet.value) // 2}H", packet.value)
    withheld = {Feature.MILLSTREAM, Feature.MAP_NOTICE} if session.hashes_keys else set()
    if Feature.DUPLEX not in asked:
        withheld.add(Feature.MAP_NOTICE)
    granted = [code for code in dict.fromkeys(asked) if code in _GRANTED - withheld]
    session.features = frozenset(granted)
    session.needs_care |= Feature.MAP_NOTICE in session.features
    session.client_name = packet.key[:STREAM_NAME_BYTES_MAX].decode(errors="replace")
    session.datatype_mask = int(Datatype.JSON) if Feature.JSON in session.features else 0
    session.wants_tokens = Feature.MUTATION_SEQNO in session.features
    return _success(packet, b"".join(code.to_bytes(2, "big") for code in granted))


def _list_mechanisms(_: KvSession, packet: Packet, __: int) -> bytes | None:
    return _success(packet, " ".join([*_SCRAM_NAMES, "PLAIN"]).encode())


def _log_in(session: KvSession, user: User | None) -> None:
    session.user = user
    session.scram = None
    session.select(session.bucket)


def _sasl_auth(session: KvSession, packet: Packet, _: int) -> bytes | None:
    mechanism = packet.key.decode(errors="replace")
    if session.host.users.is_empty:
        return _success(packet, _welcome(session, mechanism, packet.value))
    _log_in(session, None)
    if mechanism == "PLAIN":
        return _plain(session, packet)
    if mechanism not in _SCRAM_NAMES:
        return session.refusal(packet, Status.AUTH_ERROR)
    session.scram = session.host.users.scram_server(mechanism, session.source)
    return _sasl_step(session, packet, _)


def _welcome(session: KvSession, mechanism: str, first: bytes) -> bytes:
    """Return the answer of a node without users to a log-in, which accepts any user.

    Most clients only need the status. The Go SDK goes on with SCRAM, and needs a challenge.
    """
    if mechanism not in _SCRAM_NAMES:
        return b""
    try:
        return session.host.users.scram_server(mechanism, session.source).step(first)[0]
    except AccessError:
        return b""


def _plain(session: KvSession, packet: Packet) -> bytes | None:
    parts = packet.value.split(b"\0")
    if len(parts) != 3:
        return session.refusal(packet, Status.AUTH_ERROR)
    try:
        name, password = parts[1].decode(), parts[2].decode()
    except UnicodeDecodeError:
        return session.refusal(packet, Status.AUTH_ERROR)

    def answer(user: User | None) -> bytes:
        if user is None:
            return session.refusal(packet, Status.AUTH_ERROR)
        _log_in(session, user)
        return _success(packet)

    session.is_waiting = True
    session.password_reply = answer
    session.host.check_password(session, name, password)
    return None


def _sasl_step(session: KvSession, packet: Packet, _: int) -> bytes | None:
    if session.host.users.is_empty:
        return _success(packet)
    if session.scram is None:
        return session.refusal(packet, Status.AUTH_ERROR)
    server = session.scram
    try:
        challenge, user = server.step(packet.value)
    except AccessError:
        session.scram = None
        refusal = session.refusal(packet, Status.AUTH_ERROR)
        if not server.pause_s:
            return refusal
        session.wait_for_reply(
            lambda done: session.host.later(session, server.pause_s, lambda: done(refusal))
        )
        return None
    if user is None:
        return response(packet.opcode, Status.AUTH_CONTINUE, packet.opaque, value=challenge)
    _log_in(session, user)
    return _success(packet, challenge)


def _select_bucket(session: KvSession, packet: Packet, _: int) -> bytes | None:
    if session.hashes_keys:
        return response(
            packet.opcode, Status.EACCESS, packet.opaque,
            datatype=session.datatype_mask, value=_PLAIN_PORT,
        )  # fmt: skip
    bucket = session.host.buckets.get(packet.key.decode(errors="replace"))
    if bucket is None:
        return session.refusal(packet, Status.EACCESS)
    if bucket.is_managed:
        bucket.look_at_rights()  # requests may follow in the bytes that are being answered
    previous = session.bucket
    session.select(bucket)
    if not any(session.may(right) for right in ("read", "write", "stream", "design")):
        session.select(previous)
        return session.refusal(packet, Status.EACCESS)
    return _success(packet)


def _cluster_config(session: KvSession, packet: Packet, _: int) -> bytes | None:
    config = session.host.config(session.bucket)
    tells_known = Feature.MAP_KNOWN in session.features and len(packet.extras) == _KNOWN.size
    if tells_known and _KNOWN.unpack(packet.extras) >= version_of(config):
        return _success(packet)
    return _success(packet, config, datatype=Datatype.JSON)


def _noop(_: KvSession, packet: Packet, __: int) -> bytes | None:
    return _success(packet)


def _version(session: KvSession, packet: Packet, _: int) -> bytes | None:
    return _success(packet, (MEMCACHED_VERSION if session.hashes_keys else VERSION).encode())


def _error_map(session: KvSession, packet: Packet, _: int) -> bytes | None:
    if len(packet.value) != 2 or packet.value == b"\0\0":
        return session.refusal(packet, Status.EINVAL)
    version = min(2, int.from_bytes(packet.value, "big"))
    value = json.encode({**ERROR_MAP, "version": version})
    return _success(packet, value, datatype=Datatype.JSON)


def _not_supported(session: KvSession, packet: Packet, _: int) -> bytes | None:
    """Answer an unsupported command of Couchbase; SDKs distinguish this from an error."""
    return session.refusal(packet, Status.NOT_SUPPORTED)


def _quit(session: KvSession, packet: Packet, _: int) -> bytes | None:
    session.is_closing = True
    return None if packet.opcode == Opcode.QUITQ else _success(packet)


def _open_stream(session: KvSession, packet: Packet, _: int) -> bytes | None:
    """DCP_OPEN: from here on the connection streams changes to its client."""
    if session.bucket is None:
        return session.refusal(packet, Status.NO_BUCKET)
    if not session.may("stream"):
        return session.refusal(packet, Status.EACCESS)
    try:
        _, flags = _OPEN.unpack(packet.extras)
    except error:
        return session.refusal(packet, Status.EINVAL)
    if not 1 <= len(packet.key) <= STREAM_NAME_BYTES_MAX or session.stream is not None:
        return session.refusal(packet, Status.EINVAL)
    both = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_KEEP_DATATYPE
    deleted = OpenFlag.INCLUDE_DELETED_USER_XATTRS
    is_alone = flags & deleted and not flags & OpenFlag.INCLUDE_XATTRS
    is_producer = bool(flags & OpenFlag.PRODUCER)
    is_alone = is_alone or (flags & OpenFlag.SKIP_DELETES_IN_BACKFILL and not is_producer)
    if flags & ~_OPEN_FLAGS or flags & both == both or is_alone or not _is_object(packet.value):
        return session.refusal(packet, Status.EINVAL)
    name = packet.key.decode(errors="backslashreplace")
    if not is_producer:
        return _open_feed(session, packet, name)
    session.stream = session.host.open_stream(session, name, flags)
    return _success(packet)


def _open_feed(session: KvSession, packet: Packet, name: str) -> bytes | None:
    """The opposite direction: an administrator feeds copies on this node."""
    if not session.may("admin"):
        return session.refusal(packet, Status.EACCESS)
    session.emit(_success(packet))  # before the node's own requests
    session.stream = session.host.open_feed(session, name)
    return None


def _is_object(value: bytes) -> bool:
    """Return whether the value of DCP_OPEN is valid: empty, or a JSON object."""
    try:
        return not value or isinstance(json.decode(value), dict)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _stream(session: KvSession, packet: Packet, _: int) -> bytes | None:
    """A stream request: answered by the stream, in its own turn."""
    if session.stream is None:
        is_unknown = packet.opcode in _OWN_OPCODES and Feature.MILLSTREAM not in session.features
        return session.refusal(packet, Status.UNKNOWN_COMMAND if is_unknown else Status.EINVAL)
    session.stream.on_packet(packet)
    return None


_OWN_OPCODES: Final = (
    Opcode.BARRIER,
    Opcode.BARRIER_REACHED,
    Opcode.CYCLE_END,
    Opcode.DOC_META,
)
_STREAM_OPCODES: Final = (
    *range(Opcode.DCP_ADD_STREAM, Opcode.DCP_OSO_SNAPSHOT + 1),
    *_OWN_OPCODES,
)

_SUBDOC_OPCODES: Final = range(Opcode.SUBDOC_GET, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR + 1)

SESSION_COMMANDS: Final[dict[int, Command]] = {
    Opcode.HELLO: _hello,
    Opcode.SASL_LIST_MECHS: _list_mechanisms,
    Opcode.SASL_AUTH: _sasl_auth,
    Opcode.SASL_STEP: _sasl_step,
    Opcode.SELECT_BUCKET: _select_bucket,
    Opcode.GET_CLUSTER_CONFIG: _cluster_config,
    Opcode.GET_ERROR_MAP: _error_map,
    Opcode.NOOP: _noop,
    Opcode.VERSION: _version,
    Opcode.VERBOSITY: _noop,
    Opcode.QUIT: _quit,
    Opcode.QUITQ: _quit,
    Opcode.DCP_OPEN: _open_stream,
    **dict.fromkeys(_STREAM_OPCODES, _stream),
    **dict.fromkeys(_SUBDOC_OPCODES, _not_supported),
}
