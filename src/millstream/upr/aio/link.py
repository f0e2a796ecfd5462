"""One kv connection of a consumer: opened, logged in, then asked or read.

Invariants:
1. `ask` and `ask_all` are for a connection without streams: every response answers the oldest
   request not yet answered.
2. Every wait has a bound; what exceeds it, or a connection that is cut, is an `UnavailableError`.

Elsewhere: the steps of the log-in (`access.kv_login`), what streams say (`upr.core.consumer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from struct import Struct
from typing import Final

from millstream.access.kv_login import Login, hung_up, open_session
from millstream.errors import RemoteProtocolError, StreamError, UnavailableError
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.wire.cluster_map import ClusterMap, cluster_map_from
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, cut_packets, request
from millstream.wire.replies import error_of

__all__ = ["UNIX", "Link"]

UNIX: Final = "unix:"
"""Prefix of the path in the address of a Unix socket."""
TIMEOUT_S: Final = 10.0
SILENCE_S: Final = 65.0
"""Longest silence of the node, which says it is alive every 20 s."""
_READ_BYTES: Final = 512 * 1024
_SEQNO: Final = Struct(">HQ")


class Link:
    """A connection to `host`:`port`.

    Args:
        login: who, and which bucket; `login.address` is for messages.
        host: name or address of the node, or `unix:` and the path of a socket of this machine.
        port: its kv port; of no meaning with a path.
        tls: context of an encrypted connection; None for plain.
        timeout_s: longest wait for the connection and for each answer, in seconds.
    """

    def __init__(
        self, login: Login, host: str, port: int, *, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        self.address = login.address
        self._login = login
        self._host, self._port = host, port
        self._tls = tls
        self._timeout_s = timeout_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._received = b""
        """The beginning of what came last, for errors."""

    async def open(self) -> frozenset[int]:
        """Connect and log in; return the features granted.

        Raises:
            UnavailableError: `unreachable`, `timeout`, `connection_closed`.
            AccessError: `bad_credentials`, `unknown_bucket`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                self._reader, self._writer = await self._connect()
        except OSError as error:  # TimeoutError included
            raise UnavailableError(
                f"cannot connect to {self.address}: {error or 'no answer in time'}; check that "
                "the node runs and that the address is that of its kv port",
                code="unreachable",
            ) from error
        steps = open_session(self._login)
        frame = next(steps)
        while True:
            try:
                packet = await self.ask(frame)
            except (RemoteProtocolError, UnavailableError) as error:
                raise hung_up(error, self.address, self._received) from error
            try:
                frame = steps.send(packet)
            except StopIteration as done:
                features: frozenset[int] = done.value
                return features

    async def open_bucket(self, bucket_uuid: str) -> None:
        """Connect, and check that the node is one of ours and has the bucket with this uuid.

        Raises:
            RemoteProtocolError: `refused`: the node is none of ours; `bad_map`.
            StreamError: `bucket_recreated`: the bucket of that name there is another one.
            UnavailableError, AccessError: as `open`.
        """
        if Feature.MILLSTREAM not in await self.open():
            raise RemoteProtocolError(
                f"{self.address} is not a Millstream node: correct the address", code="refused"
            )
        found = (await self.cluster_map()).bucket_uuid
        if found != bucket_uuid:
            raise StreamError(
                f"bucket {self._login.bucket!r} at {self.address} is another one ({found}, not "
                f"{bucket_uuid}): it was deleted and created again, and what was read of the old "
                "one is void",
                code="bucket_recreated",
            )

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith(UNIX):
            path = self._host.removeprefix(UNIX)
            return await asyncio.open_unix_connection(path, limit=_READ_BYTES)
        return await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, limit=_READ_BYTES
        )

    async def close(self) -> None:
        """Close the connection. Harmless if there is none."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def ask(self, frame: bytes) -> Packet:
        """Send a request and return its response."""
        return (await self.ask_all([frame]))[0]

    async def demand(self, frame: bytes, what: str) -> Packet:
        """Send a request and return its response; a refusal is an error that names `what`."""
        packet = await self.ask(frame)
        if packet.status != Status.SUCCESS:
            raise error_of(packet, address=self.address, what=what)
        return packet

    async def ask_all(self, frames: Sequence[bytes]) -> list[Packet]:
        """Send requests at once and return their responses, in order."""
        await self.write(b"".join(frames))
        found: list[Packet] = []
        pieces: list[bytes] = []
        self._received = b""
        while len(found) < len(frames):
            pieces.append(await self.read(self._timeout_s))
            self._received = pieces[0]
            packets, rest = cut_packets(b"".join(pieces), FRAME_BYTES_MAX)
            found += packets
            pieces = [rest]
        return found

    async def cluster_map(self) -> ClusterMap:
        """Ask which node serves which partition.

        Raises:
            RemoteProtocolError: `bad_map`.
        """
        packet = await self.demand(request(Opcode.GET_CLUSTER_CONFIG), "the partition map")
        return cluster_map_from(packet.value, host=self._host, port=self._port)

    async def high_seqnos(self) -> dict[int, int]:
        """Ask for the newest seqno of each partition that the node has."""
        packet = await self.demand(request(Opcode.GET_ALL_VB_SEQNOS), "the newest seqnos")
        return dict(_SEQNO.iter_unpack(packet.value))

    async def read(self, timeout_s: float = SILENCE_S, bytes_max: int = _READ_BYTES) -> bytes:
        """Return what has come, at least a byte, at most `bytes_max`.

        Raises:
            UnavailableError: `timeout`, `connection_closed`.
        """
        if self._reader is None:
            raise self._broken(ConnectionResetError("it was closed"))
        try:
            async with asyncio.timeout(timeout_s):
                data = await self._reader.read(bytes_max)
            if not data:
                raise ConnectionResetError("closed by the peer")
        except OSError as error:
            raise self._broken(error) from error
        return data

    async def write(self, data: bytes) -> None:
        """Send; waits while the node does not read.

        Raises:
            UnavailableError: `timeout`, `connection_closed`.
        """
        if self._writer is None:
            raise self._broken(ConnectionResetError("it was closed"))
        if not data:
            return
        try:
            if self._writer.is_closing():  # uvloop raises no OSError for a write after that
                raise ConnectionResetError("it was closed")
            self._writer.write(data)
            async with asyncio.timeout(SILENCE_S):
                await self._writer.drain()
        except OSError as error:
            raise self._broken(error) from error

    def _broken(self, error: OSError) -> UnavailableError:
        if isinstance(error, TimeoutError):
            return UnavailableError(f"{self.address} has gone silent", code="timeout")
        return UnavailableError(
            f"connection to {self.address} is lost: {error}", code="connection_closed"
        )
