"""One blocking connection to a node's kv port: plain sockets, optional TLS, log-in, pipelining.

Invariants:
1. Requests carry increasing opaques; replies come in request order, which `request` relies on.
2. Sending never waits for a peer that waits for us: while a long write is blocked, what has
   arrived is taken in.
3. After any transport error the connection is closed and of no further use.

Elsewhere: what to ask (`client.kv`), streams (`client.bulk`), meaning of statuses
(`wire.replies`). A connection belongs to one thread at a time.
"""

from __future__ import annotations

import select
import socket
import ssl
from typing import Final, Self

from millstream.access.kv_login import Login, Steps, hung_up, open_session
from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.wire.mcbp import (
    ALT_RESPONSE,
    HEADER,
    HEADER_BYTES,
    RESPONSE,
    Feature,
    Packet,
    Status,
    cut_packets,
    request,
)
from millstream.wire.replies import error_of

__all__ = ["PORT_DEFAULT", "TIMEOUT_S", "Connection"]

PORT_DEFAULT: Final = 11210
TIMEOUT_S: Final = 10.0
_RECEIVE_BYTES: Final = 256 * 1024
_SEND_AT_ONCE_BYTES_MAX: Final = 16 * 1024
_RESPONSES: Final = (RESPONSE, ALT_RESPONSE)


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
        AccessError: `bad_credentials`, `no_mechanism`, `unknown_bucket`.
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
        login = Login(self.address, user, password or "", bucket, tls is not None, name)
        self._socket = self._connect(tls)
        self._hang_ups = select.poll()
        self._hang_ups.register(self._socket, select.POLLRDHUP)
        try:
            self.features = self._open_session(open_session(login))
        except BaseException:  # also when interrupted: the socket is closed
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether the socket is closed."""
        return self._socket.fileno() < 0

    @property
    def has_ended(self) -> bool:
        """Whether the socket is closed, or the peer has hung up since the last answer."""
        return self.is_closed or bool(self._hang_ups.poll(0))

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
        """Send all of `data`, taking in what arrives meanwhile (invariant 2).

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
        body_bytes: int = HEADER.unpack_from(self._pieces[0])[6]
        if body_bytes > FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"body of {body_bytes} bytes is too long", code="too_large")
        return HEADER_BYTES + body_bytes

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

    def _open_session(self, steps: Steps) -> frozenset[int]:
        frame = next(steps)
        while True:
            try:
                self.send(frame)
                packets = self.receive()
            except (RemoteProtocolError, UnavailableError) as error:
                raise hung_up(error, self.address, b"".join(self._pieces)) from error
            self._waiting = packets[1:]
            try:
                frame = steps.send(packets[0])
            except StopIteration as done:
                features: frozenset[int] = done.value
                return features

    def _broken(self, error: OSError) -> UnavailableError:
        """Close, and return the error that says why (invariant 3)."""
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
