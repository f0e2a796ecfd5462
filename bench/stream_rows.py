"""A Python program reads a bucket to its present end, and prints items per second: one JSON line.

    stream_rows.py ROW --port PORT --items N

Best of `ROUNDS`, in wall time: node and reader have a processor each where there are two. Nothing
is done with what comes: the reader's own state is not the library's cost.

Elsewhere: who starts the rows, and the compiled sinks (streams.py).
"""

import argparse
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from millstream.access.kv_login import Login, open_session
from millstream.client.bulk import BulkReader, Range
from millstream.client.connection import Connection
from millstream.model.limits import FRAME_BYTES_MAX
from millstream.model.position import Position
from millstream.upr.core.consumer import ChangesReceived, ConsumerCore, StreamEnded
from millstream.upr.core.follower import StreamOptions
from millstream.wire.mcbp import HEADER, HEADER_BYTES, Opcode, StreamFlag, cut_packets

Figures = dict[str, Any]
PARTITIONS = 64
ROUNDS = 3
RECEIVE_BYTES = 512 * 1024
CHANGES = frozenset((Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION))


def bulk(port: int, items: int) -> float:
    """`client.bulk`: chunks of whole frames, as Spark's executors read."""
    with Connection("127.0.0.1", port, bucket="default") as connection:
        ends = _ends(connection)
    ranges = [Range(number, Position(), end) for number, end in ends.items() if end]
    with Connection("127.0.0.1", port, bucket="default") as connection:
        count = sum(map(_changes_in, BulkReader(connection).read(ranges)))
    if count != items:
        raise SystemExit(f"bulk saw {count} of {items} items")
    with Connection("127.0.0.1", port, bucket="default") as connection:
        reader, began = BulkReader(connection), time.perf_counter()
        for _ in reader.read(ranges):
            pass
        return time.perf_counter() - began


def _ends(connection: Connection) -> dict[int, int]:
    value = connection.ask(Opcode.GET_ALL_VB_SEQNOS, "seqnos").value
    cut = (value[at : at + 10] for at in range(0, len(value), 10))
    return {int.from_bytes(one[:2], "big"): int.from_bytes(one[2:], "big") for one in cut}


def _changes_in(chunk: bytes) -> int:
    count = at = 0
    unpack, changes = HEADER.unpack_from, CHANGES
    while at < len(chunk):
        _, opcode, _, _, _, _, body, _, _ = unpack(chunk, at)
        count += opcode in changes
        at += HEADER_BYTES + body
    return count


def core(port: int, items: int) -> float:
    """`ConsumerCore` over a plain socket: every change is cut out and checked."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        _log_in(peer)
        began = time.perf_counter()
        consumer = ConsumerCore()
        consumer.start(b"bench-core")
        for partition_id in range(PARTITIONS):
            consumer.follow(partition_id, options=StreamOptions(flags=StreamFlag.TO_LATEST))
        count = ended = 0
        while ended < PARTITIONS:
            peer.sendall(consumer.take_bytes())
            for event in consumer.receive_data(peer.recv(RECEIVE_BYTES)):
                if isinstance(event, ChangesReceived):
                    count += len(event.frames)
                else:
                    ended += isinstance(event, StreamEnded)
    if count != items:
        raise SystemExit(f"the core saw {count} of {items} items")
    return time.perf_counter() - began


def _log_in(peer: socket.socket) -> None:
    steps = open_session(Login("the node", None, "", "default", False))
    frame = next(steps)
    while True:
        peer.sendall(frame)
        data = b""
        while not (packets := cut_packets(data, FRAME_BYTES_MAX)[0]):
            data += peer.recv(RECEIVE_BYTES)
        try:
            frame = steps.send(packets[0])
        except StopIteration:
            return


ROWS: dict[str, Callable[[int, int], float]] = {"bulk": bulk, "core": core}


def main() -> None:
    """Measure one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--items", type=int, required=True)
    options = parser.parse_args()
    seconds = min(ROWS[options.row](options.port, options.items) for _ in range(ROUNDS))
    print(json.dumps({"items_per_s": options.items / seconds}))


if __name__ == "__main__":
    main()
