"""A node that answers a reader by a script: two partitions, no state of its own."""

import asyncio
import json
from struct import pack, unpack

from millstream.model.position import FailoverEntry
from millstream.upr.core.messages import Reached, decode_barrier, encode_barrier_reached
from millstream.wire.frames import mutation, snapshot_marker, stream_end
from millstream.wire.mcbp import Feature, Opcode, Packet, Status, cut_packets, response

A, B = FailoverEntry(0xA, 0, 5), FailoverEntry(0xB, 4, 9)


class Source:
    """Partitions 0 and 1 with failover logs; `script` answers each stream request in turn."""

    def __init__(self) -> None:
        self.logs = {0: (A,), 1: (A,)}
        self.high = 10
        self.uuid = "feed"
        self.ports, self.owners, self.revision = [1], [0, 0], 1
        """The map."""
        self.script: list[bytes | None] = []
        self.asked: list[tuple[int, ...]] = []
        self.requests: list[Packet] = []
        self.open_status = Status.SUCCESS
        self.cookies: list[bytes] = []
        self.drops_cookies = False

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(65536):
            packets, rest = cut_packets(rest + data, 100_000)
            for packet in packets:
                self.requests.append(packet)
                reply = self._reply(packet)
                if reply is None:
                    writer.close()
                    return
                writer.write(reply)
        writer.close()

    def _reply(self, packet: Packet) -> bytes | None:
        value, status = b"", Status.SUCCESS
        match packet.opcode:
            case Opcode.HELLO:
                value = Feature.MILLSTREAM.to_bytes(2, "big")
            case Opcode.SELECT_BUCKET if packet.key != b"orders":
                status = Status.EACCESS
            case Opcode.GET_CLUSTER_CONFIG:
                nodes = [{"services": {"kv": port}} for port in self.ports]
                map_ = {"vBucketMap": [[owner] for owner in self.owners]}
                config = {
                    "uuid": self.uuid, "rev": self.revision, "nodesExt": nodes,
                    "vBucketServerMap": map_,
                }  # fmt: skip
                value = json.dumps(config).encode()
            case Opcode.GET_ALL_VB_SEQNOS:
                value = pack(">HQHQ", 0, self.high, 1, 0)
            case Opcode.GET_FAILOVER_LOG | Opcode.DCP_GET_FAILOVER_LOG:
                value = b"".join(pack(">QQ", *entry[:2]) for entry in self.logs[packet.vbucket])
            case Opcode.BRANCH_LOG:
                value = b"".join(pack(">QQQ", *entry) for entry in self.logs[packet.vbucket])
            case Opcode.POSITIONS:
                value = pack(
                    ">HB5x8Q", unpack(">H", packet.value)[0], 1, 0xA, 5, *[self.high] * 5, 0
                )
            case Opcode.DCP_OPEN:
                status = self.open_status
            case Opcode.DCP_STREAM_REQ:
                self.asked.append((packet.vbucket, *unpack(">IIQQQQQ", packet.extras)))
                return self._stream(packet)
            case Opcode.BARRIER:
                self.cookies.append(decode_barrier(packet)[0])
                if self.drops_cookies:
                    return None
                reached = {0: Reached(0xA, 5)}
                return response(packet.opcode, 0, packet.opaque) + encode_barrier_reached(
                    self.cookies[-1], packet.opaque, reached
                )
            case Opcode.DCP_BUFFER_ACK:
                return b""
        return response(packet.opcode, status, packet.opaque, value=value)

    def _stream(self, packet: Packet) -> bytes | None:
        if not self.script:
            return self.opened(packet.vbucket) + stream_end(packet.vbucket, packet.vbucket, 0)
        return self.script.pop(0)

    def opened(self, partition_id: int) -> bytes:
        log = b"".join(pack(">QQ", *entry[:2]) for entry in self.logs[partition_id])
        return response(Opcode.DCP_STREAM_REQ, 0, partition_id, value=log)


def snapshot(partition_id: int, *seqnos: int) -> bytes:
    return snapshot_marker(partition_id, partition_id, seqnos[0], seqnos[-1], 1) + b"".join(
        mutation(partition_id, b"k%d" % n, b"v", n, 1, n, 0, 0, 0) for n in seqnos
    )
