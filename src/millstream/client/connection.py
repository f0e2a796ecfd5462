"""One blocking connection to a node's kv port: plain sockets, optional TLS, log-in, pipelining.

Invariants:
1. Requests carry increasing opaques; replies come in request order, which `request` relies on.
2. A password leaves this machine only inside SCRAM, or as PLAIN under TLS.
3. Sending never waits for a peer that waits for us: while a long write is blocked, what has
   arrived is taken in.
4. After any transport error the connection is closed and of no further use.

Elsewhere: what to ask (`client.kv`), streams (`client.bulk`), meaning of statuses
(`client.replies`). A connection belongs to one thread at a time.
"""

from __future__ import annotations

import select
import socket
import ssl
from types import TracebackType
from typing import Final, Self

from millstream.access.scram_client import ScramClient
from millstream.client.replies import detail_of, error_of
from millstream.errors import (
    AccessError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.wire.mcbp import (
    ALT_RESPONSE,
    HEADER,
    HEADER_BYTES,
    RESPONSE,
    Feature,
    Opcode,
    Packet,
    Status,
    cut_packets,
    request,
)

__all__ = ["PORT_DEFAULT", "TIMEOUT_S", "Connection", "parse_address"]

PORT_DEFAULT: Final = 11210
TIMEOUT_S: Final = 10.0
_RECEIVE_BYTES: Final = 256 * 1024
_SEND_AT_ONCE_BYTES_MAX: Final = 16 * 1024
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
_RESPONSES: Final = (RESPONSE, ALT_RESPONSE)
_SCRAM: Final = ("SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1")


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[V6]:PORT` or `HOST` (port 11210).

    Raises:
        UsageError: `bad_address`.
    """
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = text, str(PORT_DEFAULT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no address; write HOST:PORT", code="bad_address")
    return host, int(port)


class Connection:
    """A connection that is logged in and has its bucket selected once constructed.

    Args:
        host: name or address of the node.
        port: its kv port.
        user: user name; None on a node without users.
        password: that user's.
        bucket: bucket to select; None for none.
        timeout_s: longest wait for the connection, and for each answer, in seconds.
        tls: context of an encrypted connection; None for plain.
        name: shown in the node's logs.

    Raises:
        UnavailableError: `unreachable`, `timeout`, `connection_closed`.
        AccessError: `bad_credentials`, `unknown_bucket`, `access_denied`, `login_required`.
    """

    def __init__(
        self,
        host: str,
        port: int = PORT_DEFAULT,
        *,
        user: str | None = None,
        password: str | None = None,
        bucket: str | None = None,
        timeout_s: float = TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        name: str = "millstream-python",
    ) -> None:
        self.host, self.port = host, port
        self.address = f"{host}:{port}"
        self.bucket = bucket
        self._timeout_s = timeout_s
        self._opaque = 0
        self._pieces: list[bytes] = []
        self._waiting: list[Packet] = []
        self._socket = self._connect(tls)
        try:
            self.features = self._say_hello(name)
            if user is not None:
                self._log_in(user, password or "", is_encrypted=tls is not None)
            if bucket is not None:
                self._select_bucket(bucket, user)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.fileno() < 0

    @property
    def is_extended(self) -> bool:
        """Whether the peer is a Millstream node that granted our extensions."""
        return Feature.MILLSTREAM in self.features

    def close(self) -> None:
        """Close the socket; twice is harmless."""
        self._socket.close()

    def set_timeout(self, timeout_s: float) -> None:
        """Change the longest wait for an answer, in seconds."""
        self._timeout_s = timeout_s
        self._socket.settimeout(timeout_s)

    def next_opaque(self) -> int:
        """Return a number that no request in flight carries."""
        self._opaque = (self._opaque + 1) & 0xFFFFFFFF
        return self._opaque

    # -- one request, one answer -------------------------------------------------------------

    def request(
        self,
        opcode: int,
        *,
        vbucket: int = 0,
        cas: int = 0,
        datatype: int = 0,
        framing: bytes = b"",
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> Packet:
        """Send one request and return its response, whatever its status.

        Raises:
            UnavailableError: `timeout`, `connection_closed`.
            RemoteProtocolError: the peer sent something that is no response to it.
        """
        opaque = self.next_opaque()
        frame = request(
            opcode, vbucket=vbucket, opaque=opaque, cas=cas, datatype=datatype,
            framing=framing, extras=extras, key=key, value=value,
        )  # fmt: skip
        self.send(frame)
        return self.response_to(opaque)

    def ask(
        self,
        opcode: int,
        what: str,
        *,
        vbucket: int = 0,
        extras: bytes = b"",
        key: bytes = b"",
        value: bytes = b"",
    ) -> Packet:
        """As `request`, but any status other than success is raised.

        Raises:
            MillstreamError: as `replies.error_of` says; `what` names what was asked.
        """
        packet = self.request(opcode, vbucket=vbucket, extras=extras, key=key, value=value)
        if packet.status != Status.SUCCESS:
            raise error_of(packet, address=self.address, what=what)
        return packet

    def response_to(self, opaque: int) -> Packet:
        """Wait for the response that carries `opaque`; what comes before it is dropped."""
        while True:
            packets = self.receive()
            for at, packet in enumerate(packets):
                if packet.opaque == opaque and packet.magic in _RESPONSES:
                    self._waiting = packets[at + 1 :]
                    return packet

    # -- bytes -------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send all of `data`, taking in what arrives meanwhile (invariant 3).

        Raises:
            UnavailableError: `timeout`, `connection_closed`.
        """
        try:
            if len(data) <= _SEND_AT_ONCE_BYTES_MAX:
                self._socket.sendall(data)
            else:
                self._send_and_take_in(memoryview(data))
        except OSError as error:
            raise self._broken(error) from error

    def _send_and_take_in(self, data: memoryview) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        while data:
            events = poll.poll(self._timeout_s * 1000)
            if not events:
                raise TimeoutError
            if events[0][1] & ~select.POLLOUT:
                self._pieces.append(self._receive_some())
            if events[0][1] & select.POLLOUT:
                data = data[self._socket.send(data) :]

    def _receive_some(self) -> bytes:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("closed by the peer")
        return data

    def receive(self) -> list[Packet]:
        """Wait for and return at least one whole packet.

        Raises:
            UnavailableError: `timeout`, `connection_closed`.
            RemoteProtocolError: malformed bytes.
        """
        if self._waiting:
            packets, self._waiting = self._waiting, []
            return packets
        try:
            while True:
                # A long frame is joined once, when all of it is here, not at each arrival.
                if not self._pieces or sum(map(len, self._pieces)) < self._first_frame_bytes():
                    self._pieces.append(self._receive_some())
                    continue
                packets, rest = cut_packets(b"".join(self._pieces), FRAME_BYTES_MAX)
                self._pieces = [rest] if rest else []
                if packets:
                    return packets
        except OSError as error:
            raise self._broken(error) from error
        except RemoteProtocolError:
            self.close()
            raise

    def _first_frame_bytes(self) -> int:
        if len(self._pieces[0]) < HEADER_BYTES:
            self._pieces = [b"".join(self._pieces)]
            if len(self._pieces[0]) < HEADER_BYTES:
                return HEADER_BYTES
        return min(HEADER_BYTES + int(HEADER.unpack_from(self._pieces[0])[6]), FRAME_BYTES_MAX)

    def take_buffered(self) -> bytes:
        """Return the bytes received but not yet cut into packets, and forget them.

        For readers that go on with `receive_into`.
        """
        assert not self._waiting, "packets are waiting that were cut already"
        data = b"".join(self._pieces)
        self._pieces = []
        return data

    def receive_into(self, buffer: memoryview) -> int:
        """Receive raw bytes into `buffer`; return how many (at least one).

        Raises:
            UnavailableError: `timeout`, `connection_closed`.
        """
        try:
            size = self._socket.recv_into(buffer)
            if not size:
                raise ConnectionResetError("closed by the peer")
        except OSError as error:
            raise self._broken(error) from error
        return size

    # -- set-up ------------------------------------------------------------------------------

    def _connect(self, tls: ssl.SSLContext | None) -> socket.socket:
        try:
            plain = socket.create_connection((self.host, self.port), timeout=self._timeout_s)
        except OSError as error:
            raise UnavailableError(
                f"cannot connect to {self.address}: {_reason(error)}; check that the node runs "
                "and that the address is that of its kv port",
                code="unreachable",
            ) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return plain
        try:
            return tls.wrap_socket(plain, server_hostname=self.host)
        except OSError as error:
            plain.close()
            raise UnavailableError(
                f"no TLS connection to {self.address}: {_reason(error)}; check that this port "
                "speaks TLS and that the certificate authority is right",
                code="unreachable",
            ) from error

    def _say_hello(self, name: str) -> frozenset[int]:
        wanted = b"".join(feature.to_bytes(2, "big") for feature in _FEATURES)
        packet = self.ask(Opcode.HELLO, "hello", key=name.encode(), value=wanted)
        codes = packet.value
        return frozenset(
            int.from_bytes(codes[at : at + 2], "big") for at in range(0, len(codes), 2)
        )

    def _log_in(self, user: str, password: str, *, is_encrypted: bool) -> None:
        offered = (
            self.ask(Opcode.SASL_LIST_MECHS, "log-in").value.decode("ascii", "replace").split()
        )
        mechanism = next((name for name in _SCRAM if name in offered), "")
        if mechanism:
            packet = self._log_in_scram(mechanism, user, password)
        elif "PLAIN" in offered and is_encrypted:
            plain = f"\0{user}\0{password}".encode()
            packet = self.request(Opcode.SASL_AUTH, key=b"PLAIN", value=plain)
        else:
            raise AccessError(
                f"{self.address} offers no way to log in without showing it the password "
                f"({' '.join(offered) or 'none'}); use TLS",
                code="no_mechanism",
            )
        if packet.status != Status.SUCCESS:
            raise self._refused(packet, user)

    def _log_in_scram(self, mechanism: str, user: str, password: str) -> Packet:
        scram = ScramClient(mechanism, user, password)
        key = mechanism.encode()
        packet = self.request(Opcode.SASL_AUTH, key=key, value=scram.first())
        if packet.status != Status.AUTH_CONTINUE:
            return packet  # accepted at once by a node without users, or refused
        packet = self.request(Opcode.SASL_STEP, key=key, value=scram.next(packet.value))
        if packet.status == Status.SUCCESS:
            scram.finish(packet.value)
        return packet

    def _refused(self, packet: Packet, user: str) -> MillstreamError:
        if packet.status in (Status.AUTH_ERROR, Status.EACCESS):
            return AccessError(
                f"{self.address} does not accept user {user!r} with this password; check both",
                code="bad_credentials",
            )
        return error_of(packet, address=self.address, what=f"log-in of user {user!r}")

    def _select_bucket(self, bucket: str, user: str | None) -> None:
        packet = self.request(Opcode.SELECT_BUCKET, key=bucket.encode())
        if packet.status == Status.SUCCESS:
            return
        if packet.status in (Status.EACCESS, Status.KEY_ENOENT):
            who = "you gave no user" if user is None else f"user {user!r} may not use it"
            said = detail_of(packet)
            raise AccessError(
                f"{self.address} has no bucket {bucket!r}, or {who}; check the name"
                + (f" ({said})" if said else ""),
                code="unknown_bucket",
            )
        raise error_of(packet, address=self.address, what=f"selecting bucket {bucket!r}")

    def _broken(self, error: OSError) -> UnavailableError:
        """Close, and return the error that says why (invariant 4)."""
        self.close()
        if isinstance(error, TimeoutError):
            return UnavailableError(
                f"{self.address} did not answer within {self._timeout_s:g} s; "
                "try again, or allow more time",
                code="timeout",
            )
        return UnavailableError(
            f"connection to {self.address} is lost: {_reason(error)}; try again",
            code="connection_closed",
        )


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error) or type(error).__name__
