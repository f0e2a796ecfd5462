"""A client with no manners: raw frames over one blocking socket, for tests from outside.

It shares only the packet layout with the product, so that a fault in the product's own client
cannot hide one in the server.
"""

from struct import Struct

from millstream.wire.mcbp import HEADER, HEADER_BYTES, Opcode, Packet, cut_packets, request
from support.raw_socket import Closed, RawSocket

BODY_BYTES_MAX = 64 * 1024 * 1024
FEATURES = (0x03, 0x04, 0x07, 0x08, 0x0B, 0x10, 0x11)
EXTENSIONS = 0xFF00
DURABLE = Struct(">BBH")


class RawClient(RawSocket):
    """One connection. `bucket` selects one after HELLO; without it nothing is sent."""

    def __init__(
        self, address: tuple[str, int], bucket: str | None = None, *, extended: bool = False
    ) -> None:
        super().__init__(address)
        self._packets: list[Packet] = []
        if bucket is not None:
            try:
                self._greet(bucket, (*FEATURES, EXTENSIONS) if extended else FEATURES)
            except BaseException:  # a server that is killed meanwhile leaves nobody to close it
                self._socket.close()
                raise

    def _greet(self, bucket: str, features: tuple[int, ...]) -> None:
        codes = b"".join(code.to_bytes(2, "big") for code in features)
        assert self.ask(Opcode.HELLO, key=b"raw", value=codes).status == 0
        assert self.ask(Opcode.SELECT_BUCKET, key=bucket.encode()).status == 0

    def receive_bytes(self) -> bytes:
        """Return what comes next, as it comes.

        Raises:
            Closed: the server closed.
            TimeoutError: nothing came.
        """
        data = self._socket.recv(1 << 18)
        if not data:
            raise Closed
        return data

    def receive(self) -> Packet:
        """Return the next packet, whoever asked for it.

        Raises:
            Closed: the server closed, or was killed.
            TimeoutError: nothing came.
        """
        while not self._packets:
            wanted = HEADER_BYTES
            if len(self._rest) >= HEADER_BYTES:
                wanted += HEADER.unpack_from(self._rest)[6]
            pieces, size = [self._rest], len(self._rest)
            while size < wanted:
                try:
                    data = self._socket.recv(1 << 18)
                except ConnectionResetError as error:
                    raise Closed from error
                if not data:
                    raise Closed
                pieces.append(data)
                size += len(data)
            self._packets, self._rest = cut_packets(b"".join(pieces), BODY_BYTES_MAX)
            self._packets.reverse()
        return self._packets.pop()

    def ask(
        self,
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
    ) -> Packet:
        """Send one request and return the next packet."""
        self.send(
            request(
                opcode,
                vbucket=vbucket,
                opaque=opaque,
                cas=cas,
                datatype=datatype,
                framing=framing,
                extras=extras,
                key=key,
                value=value,
            )
        )
        return self.receive()

    def is_closed_by_server(self) -> bool:
        """Whether the server closes within the time-out; packets before that are read."""
        try:
            while True:
                self.receive()
        except Closed:
            return True
        except TimeoutError:
            return False
