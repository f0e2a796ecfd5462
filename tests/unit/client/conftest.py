"""A node that speaks the kv protocol as far as clients need, in a thread of the test's process.

`node.handlers[opcode]` answers a request: it takes the packet and returns frames; `None` closes
the connection. `node.documents` is what SET wrote. `node.requests` are the packets received.
"""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator

import pytest

from millstream.client.kv import Client, connect
from millstream.wire.mcbp import (
    Feature,
    Opcode,
    Packet,
    Status,
    cut_packets,
    response,
)

Handler = Callable[[Packet], bytes | None]
PARTITIONS = 8
UUID = 0xABCDEF012345


class FakeNode:
    def __init__(self) -> None:
        self.documents: dict[bytes, tuple[bytes, bytes, int]] = {}
        self.requests: list[Packet] = []
        self.revision = 1
        self.config: dict[str, object] | None = None
        """What it sends as the map, if that is another one than its own."""
        self.features = [Feature.JSON, Feature.MUTATION_SEQNO, Feature.MILLSTREAM]
        self.handlers: dict[int, Handler] = {
            Opcode.HELLO: self._hello,
            Opcode.SELECT_BUCKET: self._select_bucket,
            Opcode.GET_CLUSTER_CONFIG: self._config,
            Opcode.GET: self._get,
            Opcode.SET: self._set,
            Opcode.DELETE: self._delete,
        }
        node = self

        class Answer(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                rest = b""
                while data := self.request.recv(65536):
                    packets, rest = cut_packets(rest + data, 32 * 1024 * 1024)
                    for packet in packets:
                        node.requests.append(packet)
                        reply = node._reply(packet)
                        if reply is None:
                            return
                        self.request.sendall(reply)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that hangs up is no news

        self._server = Server(("127.0.0.1", 0), Answer)
        self.host, self.port = self._server.server_address[:2]
        self.address = f"{self.host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def requests_of(self, opcode: int) -> list[Packet]:
        return [packet for packet in self.requests if packet.opcode == opcode]

    def _reply(self, packet: Packet) -> bytes | None:
        handler = self.handlers.get(packet.opcode)
        if handler is None:
            return response(packet.opcode, Status.UNKNOWN_COMMAND, packet.opaque)
        return handler(packet)

    def _hello(self, packet: Packet) -> bytes:
        granted = b"".join(feature.to_bytes(2, "big") for feature in self.features)
        return response(packet.opcode, Status.SUCCESS, packet.opaque, value=granted)

    def _select_bucket(self, packet: Packet) -> bytes:
        status = Status.SUCCESS if packet.key == b"flights" else Status.EACCESS
        return response(packet.opcode, status, packet.opaque)

    def _config(self, packet: Packet) -> bytes:
        config = {
            "rev": self.revision,
            "revEpoch": 1,
            "uuid": "feed",
            "nodesExt": [{"thisNode": True, "services": {"kv": self.port, "mgmt": 5984}}],
            "vBucketServerMap": {"vBucketMap": [[0]] * PARTITIONS},
        }
        value = json.dumps(config if self.config is None else self.config).encode()
        return response(packet.opcode, 0, packet.opaque, value=value)

    def _get(self, packet: Packet) -> bytes:
        found = self.documents.get(packet.key)
        if found is None:
            return response(packet.opcode, Status.KEY_ENOENT, packet.opaque)
        value, flags, datatype = found
        return response(
            packet.opcode, 0, packet.opaque, cas=7, datatype=datatype, extras=flags, value=value
        )

    def _set(self, packet: Packet) -> bytes:
        self.documents[packet.key] = packet.value, packet.extras[:4], packet.datatype
        return self._token(packet)

    def _delete(self, packet: Packet) -> bytes:
        if self.documents.pop(packet.key, None) is None:
            return response(packet.opcode, Status.KEY_ENOENT, packet.opaque)
        return self._token(packet)

    def _token(self, packet: Packet) -> bytes:
        token = UUID.to_bytes(8, "big") + len(self.requests).to_bytes(8, "big")
        return response(packet.opcode, 0, packet.opaque, cas=len(self.requests), extras=token)


@pytest.fixture
def make_fake_node() -> Iterator[Callable[[], FakeNode]]:
    made: list[FakeNode] = []

    def make() -> FakeNode:
        made.append(FakeNode())
        return made[-1]

    yield make
    for node in made:
        node.stop()


@pytest.fixture
def node(make_fake_node: Callable[[], FakeNode]) -> FakeNode:
    return make_fake_node()


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with connect(node.address, bucket="flights", timeout_s=60) as made:
        yield made
