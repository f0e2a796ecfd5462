"""The client's steps from a bare kv connection to one that may be used, without sockets.

    steps = open_session(Login(address, user, ...))
    frame = next(steps)           # send it, wait for its one response,
    frame = steps.send(packet)    # ... until StopIteration, whose value is the features

Invariants:
1. One request at a time; each is answered by exactly one response.
2. A password leaves the machine only inside SCRAM, or as PLAIN on an encrypted connection.
3. The strongest mechanism that the node offers is taken.

Elsewhere: the server's side (`kv.core.session.handshake`), sockets (`client.connection`,
`upr.aio.client`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from millstream.access.scram_client import ScramClient
from millstream.errors import AccessError, MillstreamError, RemoteProtocolError
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, request
from millstream.wire.replies import detail_of, error_of

__all__ = ["Login", "Steps", "hung_up", "open_session"]

Steps = Generator[bytes, Packet, frozenset[int]]
_FEATURES: Final = (
    Feature.TCP_NODELAY,
    Feature.MUTATION_SEQNO,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.JSON,
    Feature.ALT_REQUEST,
    Feature.SYNC_REPLICATION,
    Feature.PRESERVE_TTL,
    Feature.MILLSTREAM,
)
_OTHER_PROTOCOLS: Final = {
    b"HTTP/": "HTTP",
    b"-": "RESP (coordination)",
    b"e=": "the protocol between nodes (peer)",
    b"\x15\x03": "TLS (give --tls-ca)",
}
"""How servers of other protocols begin to answer what they do not understand."""
_NINEP_ERRORS: Final = (b"\x07", b"\x6b")
_NINEP_ERROR_BYTES_MAX: Final = 1024
_SCRAM: Final = ("SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1")


class Login(NamedTuple):
    """Who connects, where to, and for which bucket.

    `user` None: a node without users. `bucket` None: none is selected. `name` is shown in the
    node's logs.
    """

    address: str
    user: str | None = None
    password: str = ""
    bucket: str | None = None
    is_encrypted: bool = False
    name: str = "millstream-python"

    def __repr__(self) -> str:
        return f"Login({self.address}, user={self.user!r}, bucket={self.bucket!r})"


def open_session(login: Login) -> Steps:
    """Yield requests, take responses; return the features granted.

    Raises:
        AccessError: `bad_credentials`, `no_mechanism`, `unknown_bucket`, `access_denied`.
        MillstreamError: what any other refusal means.
    """
    wanted = b"".join(feature.to_bytes(2, "big") for feature in _FEATURES)
    packet = yield request(Opcode.HELLO, key=login.name.encode(), value=wanted)
    _demand_success(packet, login, "hello")
    codes = packet.value
    features = frozenset(
        int.from_bytes(codes[at : at + 2], "big") for at in range(0, len(codes), 2)
    )
    if login.user is not None:
        yield from _log_in(login, login.user)
    if login.bucket is not None:
        packet = yield request(Opcode.SELECT_BUCKET, key=login.bucket.encode())
        if packet.status != Status.SUCCESS:
            raise _no_bucket(packet, login)
    return features


def hung_up(error: MillstreamError, address: str, answered: bytes) -> MillstreamError:
    """Return what a log-in that failed most likely means.

    Args:
        error: what ended the log-in.
        address: of the node.
        answered: the first bytes that are no answer of a kv port; may be empty.
    """
    spoken = _protocol_of(answered)
    if spoken:
        return RemoteProtocolError(
            f"{address} is no kv port: it speaks {spoken}; give the kv port of the node "
            "(11210 unless it was told another)",
            code="wrong_port",
        )
    if error.code != "connection_closed":
        return error
    return type(error)(
        f"{address} hung up at once: it is no kv port, or one that wants TLS (or does not)",
        code=error.code,
    )


def _protocol_of(answered: bytes) -> str:
    """Return the protocol of a server by its first bytes; empty if they tell nothing."""
    for start, name in _OTHER_PROTOCOLS.items():
        if answered.startswith(start):
            return name
    size = int.from_bytes(answered[:4], "little")
    if answered[4:5] in _NINEP_ERRORS and len(answered) <= size <= _NINEP_ERROR_BYTES_MAX:
        return "9P (coordination files)"
    return ""


def _log_in(login: Login, user: str) -> Generator[bytes, Packet, None]:
    packet = yield request(Opcode.SASL_LIST_MECHS)
    _demand_success(packet, login, "log-in")
    offered = packet.value.decode("ascii", "replace").split()
    mechanism = next((name for name in _SCRAM if name in offered), "")
    if mechanism:
        packet = yield from _log_in_scram(mechanism, user, login.password)
    elif "PLAIN" in offered and login.is_encrypted:
        plain = f"\0{user}\0{login.password}".encode()
        packet = yield request(Opcode.SASL_AUTH, key=b"PLAIN", value=plain)
    else:
        raise AccessError(
            f"{login.address} offers no way to log in without showing it the password "
            f"(only: {' '.join(offered) or 'none'}); use TLS",
            code="no_mechanism",
        )
    if packet.status in (Status.AUTH_ERROR, Status.EACCESS):
        raise AccessError(
            f"{login.address} does not accept user {user!r} with this password; check both",
            code="bad_credentials",
        )
    _demand_success(packet, login, f"log-in of user {user!r}")


def _log_in_scram(mechanism: str, user: str, password: str) -> Generator[bytes, Packet, Packet]:
    scram = ScramClient(mechanism, user, password)
    key = mechanism.encode()
    packet = yield request(Opcode.SASL_AUTH, key=key, value=scram.first())
    if packet.status != Status.AUTH_CONTINUE:
        return packet  # accepted at once by a node without users, or refused
    packet = yield request(Opcode.SASL_STEP, key=key, value=scram.next(packet.value))
    if packet.status == Status.SUCCESS:
        scram.finish(packet.value)
    return packet


def _no_bucket(packet: Packet, login: Login) -> MillstreamError:
    if packet.status not in (Status.EACCESS, Status.KEY_ENOENT):
        return error_of(packet, address=login.address, what=f"selecting bucket {login.bucket!r}")
    said = detail_of(packet)
    if "memcached port" in said:
        return RemoteProtocolError(f"{login.address} is no kv port: {said}", code="wrong_port")
    if login.user is None:
        hint = "it may also be that the node wants a user: give name and password"
    else:
        hint = f"it may also be that user {login.user!r} has no right to it"
    return AccessError(
        f"{login.address} has no bucket {login.bucket!r}{f' ({said})' if said else ''}; "
        f"check the name; {hint}",
        code="unknown_bucket",
    )


def _demand_success(packet: Packet, login: Login, what: str) -> None:
    if packet.status != Status.SUCCESS:
        raise error_of(packet, address=login.address, what=what)
