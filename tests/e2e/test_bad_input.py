"""Bad input on the binary ports: an error status or a closed connection, never more than that.

After every test the node must still run and serve, its log must show no traceback, and at the end
a restart must show every document that was acknowledged.

MILLSTREAM_SEED repeats a run of random bytes.
"""

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from struct import Struct

import pytest

from millstream.model.partitions import partition_of
from millstream.wire.mcbp import HEADER, REQUEST, RESPONSE, Opcode, Packet, Status, request
from support.budget import budget
from support.kv.raw_client import Closed, RawClient
from support.node.node_process import NodeProcess
from support.streams.stream_witness import documents_of, merged

SEED = int(os.environ.get("MILLSTREAM_SEED") or random.randrange(2**32))
PARTITIONS = 16
PORTS = ("kv", "memcached")
VALUE_BYTES_MAX = 20 * 1024 * 1024
GROWTH_BYTES_MAX = 96 * 1024 * 1024
MEANT_TO_WRITE = 256 * 1024 * 1024
EXTRAS = Struct(">II")
FLUSHES = (Opcode.FLUSH, Opcode.FLUSHQ)
KEPT = {b"kept-%d" % n: b'{"kept": %d}' % n for n in range(200)}
FUZZ_ROUNDS = budget(400)
Connect = Callable[..., RawClient]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("bad-input") / "node"
    with NodeProcess(directory, "--bucket", f"default:{PARTITIONS}") as running:
        with RawClient(running.kv, "default") as client:
            for key, value in KEPT.items():
                assert put(client, key, value).status == Status.SUCCESS
        yield running
        assert running.stop() == 0
        running.start()
        shown = merged(documents_of(running.kv, "default", PARTITIONS))
        with RawClient(running.kv, "default") as client:
            for key, value in KEPT.items():
                assert get(client, key).value == value
                assert not shown[key].is_deleted
        assert running.stop() == 0


@pytest.fixture(autouse=True)
def still_well(node: NodeProcess) -> Iterator[None]:
    begin = len(node.log())
    yield
    assert node.is_running
    with RawClient(node.kv, "default") as client:
        key = random.choice(list(KEPT))
        assert get(client, key).value == KEPT[key]
        assert put(client, b"after", b"1").status == Status.SUCCESS
        assert put(client, b"after-durably", b"1", framing=b"\x11\x03").status == Status.SUCCESS
    said = node.log()[begin:]
    assert "Traceback" not in said, said[-4000:]


@pytest.fixture
def connect(node: NodeProcess) -> Iterator[Connect]:
    """Make clients of a port that are closed when the test ends."""
    with contextlib.ExitStack() as clients:

        def make(port: str = "kv", timeout_s: float = 20.0) -> RawClient:
            client = RawClient(node.address(port), "default" if port == "kv" else None)
            client.set_timeout(timeout_s)
            return clients.enter_context(client)

        yield make


def put(
    client: RawClient, key: bytes, value: bytes, flags: int = 0, framing: bytes = b""
) -> Packet:
    return client.ask(
        Opcode.SET, vbucket=partition_of(key, PARTITIONS), extras=EXTRAS.pack(flags, 0), key=key,
        value=value, framing=framing,
    )  # fmt: skip


def get(client: RawClient, key: bytes) -> Packet:
    return client.ask(Opcode.GET, vbucket=partition_of(key, PARTITIONS), key=key)


def header(
    *, magic: int = REQUEST, opcode: int = Opcode.SET, key: int = 0, extras: int = 0, body: int = 0
) -> bytes:
    return HEADER.pack(magic, opcode, key, extras, 0, 0, body, 7, 0)


def replies_until_noop(client: RawClient, data: bytes) -> list[Packet] | None:
    """Send, then a NOOP; return the replies before that of the NOOP, None if the server closed."""
    found: list[Packet] = []
    try:
        client.send(data + request(Opcode.NOOP, opaque=0x4E4F4F50))
        while True:
            packet = client.receive()
            if packet.opcode == Opcode.NOOP and packet.opaque == 0x4E4F4F50:
                return found
            found.append(packet)
    except Closed:
        return None


# -- frames that contradict themselves


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(header(magic=0x00), id="magic 0"),
        pytest.param(b"get key\r\n" * 5, id="text protocol"),
        pytest.param(header(magic=0x99) + b"x" * 100, id="unknown magic"),
        pytest.param(header(key=10, extras=8, body=4) + b"abcd", id="body below its parts"),
        pytest.param(header(opcode=Opcode.GET, key=500, body=10) + b"x" * 10, id="key past body"),
        pytest.param(header(magic=0x08, key=0xFF01, body=3) + b"\xff\xff\xff", id="framing"),
        pytest.param(header(magic=0x08, key=0x0200, body=2) + b"\x1f\xf0", id="framing cut"),
        pytest.param(header(magic=RESPONSE, opcode=Opcode.GET), id="a response nobody asked for"),
        pytest.param(header(body=0xFFFFFFFF), id="body of 4 GiB"),
        pytest.param(header(key=3, extras=8, body=VALUE_BYTES_MAX * 2), id="body of 40 MiB"),
    ],
)
def test_malformed_frame_closes_the_connection(connect: Connect, port: str, data: bytes) -> None:
    client = connect(port, timeout_s=60)
    with contextlib.suppress(Closed):
        client.send(data)
    assert client.is_closed_by_server()


@pytest.mark.parametrize("port", PORTS)
def test_an_http_request_is_answered_in_http_and_closes_the_connection(
    connect: Connect, port: str
) -> None:
    client = connect(port, timeout_s=60)
    client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    with contextlib.suppress(Closed):
        while True:
            answer += client.receive_bytes()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"wrong_port" in answer


@pytest.mark.parametrize("port", PORTS)
def test_requests_before_a_malformed_frame_are_answered(connect: Connect, port: str) -> None:
    client = connect(port, timeout_s=60)
    client.send(request(Opcode.NOOP, opaque=1) + request(Opcode.NOOP, opaque=2) + b"\0" * 24)
    assert [client.receive().opaque for _ in range(2)] == [1, 2]
    assert client.is_closed_by_server()


# -- requests that ask for what cannot be


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("body", [(b"", b"", b""), (b"\xff" * 20, b"\xff" * 250, b"\xff" * 300)])
def test_every_opcode_with_nonsense(
    connect: Connect, port: str, body: tuple[bytes, bytes, bytes]
) -> None:
    """An error status, silence where the protocol has no reply, or a closed connection."""
    extras, key, value = body
    for opcode in range(256):
        if opcode in FLUSHES and not key:
            continue  # no nonsense: it would do what it says
        client = connect(port, timeout_s=60)
        frame = request(opcode, opaque=9, vbucket=0xFFFF, extras=extras, key=key, value=value)
        for reply in replies_until_noop(client, frame) or ():
            assert (reply.magic, reply.opaque, reply.opcode) == (RESPONSE, 9, opcode)
        client.close()


@pytest.mark.parametrize("opcode", [Opcode.GET, Opcode.SET, Opcode.ADD, Opcode.DELETE])
def test_key_too_long_or_missing(connect: Connect, opcode: int) -> None:
    client = connect("memcached")
    extras = bytes(8) if opcode in (Opcode.SET, Opcode.ADD) else b""
    for key in (b"k" * 251, b"k" * 60_000, b""):
        reply = client.ask(opcode, extras=extras, key=key)
        assert reply.status in (Status.EINVAL, Status.E2BIG)
    longest = client.ask(opcode, extras=extras, key=b"k" * 250)
    assert longest.status in (Status.SUCCESS, Status.KEY_ENOENT, Status.KEY_EEXISTS)


@pytest.mark.parametrize("port", PORTS)
def test_value_too_long(connect: Connect, port: str) -> None:
    client = connect(port)
    assert put(client, b"big", b"\0" * VALUE_BYTES_MAX).status == Status.SUCCESS
    assert put(client, b"big", b"\0" * (VALUE_BYTES_MAX + 1)).status == Status.E2BIG
    assert len(get(client, b"big").value) == VALUE_BYTES_MAX
    vbucket = partition_of(b"big", PARTITIONS)
    assert client.ask(Opcode.APPEND, vbucket=vbucket, key=b"big", value=b"1").status == (
        Status.E2BIG
    )
    assert put(client, b"big", b"small").status == Status.SUCCESS


@pytest.mark.parametrize(
    ("opcode", "extras"),
    [
        (Opcode.SET, b""),
        (Opcode.SET, bytes(7)),
        (Opcode.SET, bytes(9)),
        (Opcode.GET, bytes(4)),
        (Opcode.DELETE, bytes(4)),
        (Opcode.INCREMENT, bytes(19)),
        (Opcode.TOUCH, b""),
        (Opcode.GAT, bytes(3)),
        (Opcode.APPEND, bytes(8)),
    ],
)
def test_extras_of_the_wrong_size(connect: Connect, opcode: int, extras: bytes) -> None:
    reply = connect("memcached").ask(opcode, extras=extras, key=b"key", value=b"")
    assert reply.status == Status.EINVAL


def test_partition_that_does_not_exist(connect: Connect) -> None:
    client = connect("kv")
    for opcode, extras in ((Opcode.GET, b""), (Opcode.SET, bytes(8)), (Opcode.DELETE, b"")):
        for vbucket in (PARTITIONS, 0xFFFF):
            reply = client.ask(opcode, vbucket=vbucket, extras=extras, key=b"key")
            assert reply.status == Status.NOT_MY_VBUCKET
            assert reply.datatype == 1
            assert b"vBucketServerMap" in reply.value


def test_unknown_durability_and_frame_info(connect: Connect) -> None:
    client = connect("kv")
    key = b"never-written"
    assert put(client, key, b"", framing=b"\x11\x09").status == Status.DURABILITY_INVALID_LEVEL
    assert put(client, key, b"", framing=b"\x91\x00").status == Status.UNKNOWN_FRAME_INFO
    assert put(client, key, b"", framing=b"\x13\x01\x00\x00").status == Status.EINVAL
    assert get(client, key).status == Status.KEY_ENOENT


def test_datatype_that_was_not_granted(connect: Connect) -> None:
    vbucket = partition_of(b"typed", PARTITIONS)
    for datatype in (0x02, 0x04, 0x80):
        reply = connect("kv").ask(
            Opcode.SET, vbucket=vbucket, datatype=datatype, extras=bytes(8), key=b"typed"
        )
        assert reply.status == Status.EINVAL


# -- requests that never end


@pytest.mark.parametrize("port", PORTS)
def test_truncated_write_changes_nothing(connect: Connect, port: str) -> None:
    client = connect(port)
    assert put(client, b"half", b"whole").status == Status.SUCCESS
    vbucket = partition_of(b"half", PARTITIONS)
    frame = request(Opcode.SET, vbucket=vbucket, extras=bytes(8), key=b"half", value=b"x" * 5000)
    for size in (1, 23, 24, 30, 40, 4000, len(frame) - 1):
        victim = connect(port)
        victim.send(frame[:size])
        victim.close_sending()
        assert victim.is_closed_by_server()
    assert get(client, b"half").value == b"whole"


def test_clients_that_never_finish_a_header(connect: Connect) -> None:
    slow = [connect("kv") for _ in range(100)]
    for client in slow:
        client.send(header()[:5])
    assert put(connect("kv"), b"meanwhile", b"1").status == Status.SUCCESS
    for client in slow:
        client.send(header(opcode=Opcode.NOOP)[5:])  # a SET without a key, after all
        assert client.receive().status == Status.EINVAL


def test_client_that_sends_byte_by_byte(connect: Connect) -> None:
    client = connect("kv")
    vbucket = partition_of(b"drip", PARTITIONS)
    for byte in request(Opcode.SET, vbucket=vbucket, extras=bytes(8), key=b"drip", value=b"drop"):
        client.send(bytes((byte,)))
    assert client.receive().status == Status.SUCCESS
    assert get(client, b"drip").value == b"drop"


# -- clients that never read


def send_until_stuck(client: RawClient, data: bytes) -> int:
    """Send `data` over and over until the server takes no more; return how much it took."""
    client.set_timeout(1.0)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < MEANT_TO_WRITE:
            client.send(data)
            sent += len(data)
    return sent


@pytest.mark.parametrize("port", PORTS)
def test_reader_that_never_reads(connect: Connect, node: NodeProcess, port: str) -> None:
    big = b"x" * 1_000_000
    assert put(connect(port), b"megabyte", big).status == Status.SUCCESS
    before = node.resident_bytes()
    ask = request(Opcode.GET, vbucket=partition_of(b"megabyte", PARTITIONS), key=b"megabyte")
    stuck = connect(port)
    taken = send_until_stuck(stuck, ask * 300)
    assert taken < MEANT_TO_WRITE, "the server took requests whose replies nobody reads"
    assert node.resident_bytes() - before < GROWTH_BYTES_MAX
    started = time.monotonic()
    assert get(connect(port), b"megabyte").value == big
    assert time.monotonic() - started < 20


def test_writer_that_never_reads(connect: Connect, node: NodeProcess) -> None:
    before = node.resident_bytes()
    vbucket = partition_of(b"unread", PARTITIONS)
    frame = request(
        Opcode.SET, vbucket=vbucket, framing=b"\x11\x03", extras=bytes(8), key=b"unread",
        value=b"x",
    )  # fmt: skip
    stuck = connect("kv")
    taken = send_until_stuck(stuck, frame * 1000)
    assert taken < MEANT_TO_WRITE
    assert node.resident_bytes() - before < GROWTH_BYTES_MAX


@pytest.mark.parametrize("window", [b"0", b"1073741824"])
def test_stream_that_is_never_read(connect: Connect, node: NodeProcess, window: bytes) -> None:
    writer = connect("kv")
    before = node.resident_bytes()
    stream = connect("kv")
    opened = stream.ask(Opcode.DCP_OPEN, extras=bytes((0, 0, 0, 0, 0, 0, 0, 1)), key=b"unread")
    assert opened.status == Status.SUCCESS
    asked = stream.ask(Opcode.DCP_CONTROL, key=b"connection_buffer_size", value=window)
    assert asked.status == Status.SUCCESS
    for partition in range(PARTITIONS):
        extras = Struct(">II5Q").pack(0, 0, 0, 2**64 - 1, 0, 0, 0)
        stream.send(request(Opcode.DCP_STREAM_REQ, vbucket=partition, opaque=1, extras=extras))
    total = 0
    for round_number in range(20):
        for n in range(20):  # the same few documents: only superseded versions pile up
            key = b"flood-%d" % n
            assert put(writer, key, b"%d" % round_number * 100_000).status == Status.SUCCESS
            total += 100_000
    assert node.resident_bytes() - before < GROWTH_BYTES_MAX + total


def _readers(client: RawClient) -> dict[str, str]:
    """What the node says of its streams."""
    client.send(request(Opcode.STAT, key=b"readers"))
    found: dict[str, str] = {}
    while (packet := client.receive()).key:
        found[packet.key.decode()] = packet.value.decode()
    return found


def test_a_thousand_streams_opened_and_dropped(connect: Connect, node: NodeProcess) -> None:
    watcher = connect("kv")
    assert put(watcher, b"streamed", b"x").status == Status.SUCCESS
    opened = request(Opcode.DCP_OPEN, extras=bytes((0, 0, 0, 0, 0, 0, 0, 1)), key=b"thousand")
    extras = Struct(">II5Q").pack(0, 0, 0, 2**64 - 1, 0, 0, 0)
    before = node.resident_bytes()
    client = connect("kv")
    client.send(opened)
    assert client.receive().status == Status.SUCCESS
    for turn in range(1000):
        partition = turn % PARTITIONS
        asked = request(Opcode.DCP_STREAM_REQ, vbucket=partition, opaque=turn, extras=extras)
        client.send(asked + request(Opcode.DCP_CLOSE_STREAM, vbucket=partition, opaque=turn))
        statuses = []
        while len(statuses) < 2:
            packet = client.receive()
            if packet.magic == RESPONSE:
                statuses.append(packet.status)
        assert statuses == [Status.SUCCESS, Status.SUCCESS]
    assert _readers(watcher)["readers_streams"] == "0"
    client.close()
    for _ in range(50):  # each closes the one before, which has the same name
        client = connect("kv")
        frames = [
            request(Opcode.DCP_STREAM_REQ, vbucket=partition, opaque=1, extras=extras)
            for partition in range(PARTITIONS)
        ]
        client.send(opened + b"".join(frames))
        assert client.receive().status == Status.SUCCESS
    client.close()
    deadline = time.monotonic() + 60
    while _readers(watcher)["readers_connections"] != "0":
        assert time.monotonic() < deadline
    assert _readers(watcher)["readers_streams"] == "0"
    assert node.resident_bytes() - before < GROWTH_BYTES_MAX


# -- keys and flags that clients may write


@pytest.mark.parametrize(
    "key", [b"\xff\xfe\x00", b"\x00", bytes(range(250)), "ключ".encode(), b" \n"]
)
def test_strange_keys_and_flags_come_back_as_written(connect: Connect, key: bytes) -> None:
    client = connect("kv")
    assert put(client, key, b"\xff\x00", flags=0xFFFFFFFF).status == Status.SUCCESS
    read = get(client, key)
    assert (read.value, read.extras) == (b"\xff\x00", b"\xff" * 4)
    KEPT[key] = b"\xff\x00"


def test_strange_keys_are_streamed_as_written(node: NodeProcess, connect: Connect) -> None:
    keys = [bytes((n, 0xFF, 0x80)) for n in range(0, 256, 8)]
    client = connect("kv")
    for key in keys:
        assert put(client, key, key, flags=0xFFFFFFFF).status == Status.SUCCESS
    shown = merged(documents_of(node.kv, "default", PARTITIONS))
    assert not [key for key in keys if key not in shown or shown[key].is_deleted]


@pytest.mark.parametrize("key", [b"_design/x", b"_local/x"])
def test_reserved_keys_are_refused(connect: Connect, key: bytes) -> None:
    assert put(connect("kv"), key, b"{}").status == Status.EINVAL
    assert get(connect("kv"), key).status in (Status.EINVAL, Status.KEY_ENOENT)


# -- anything at all


def _random_frame(dice: random.Random) -> bytes:
    extras = dice.randbytes(dice.choice((0, 0, 4, 8, 8, 16, 20, 48)))
    key = dice.randbytes(dice.choice((0, 1, 5, 20, 250, 251)))
    value = dice.randbytes(dice.choice((0, 0, 1, 10, 1000)))
    framing = dice.randbytes(dice.choice((0, 0, 0, 1, 2, 4)))
    opcode = dice.choice([*list(Opcode), dice.randrange(256)])
    if opcode in FLUSHES:
        opcode = Opcode.NOOP
    vbucket = dice.choice((0, 1, PARTITIONS - 1, PARTITIONS, 0xFFFF))
    frame = bytearray(
        request(
            opcode,
            vbucket=vbucket,
            opaque=dice.randrange(2**32),
            cas=dice.choice((0, 0, 1, 2**64 - 1)),
            datatype=dice.choice((0, 0, 1, 255)),
            framing=framing,
            extras=extras,
            key=key,
            value=value,
        )
    )
    if dice.random() < 0.3:
        frame[dice.randrange(len(frame))] = dice.randrange(256)
    return bytes(frame)


@pytest.mark.parametrize("port", PORTS)
def test_random_frames(node: NodeProcess, connect: Connect, port: str) -> None:
    sys.stdout.write(f"MILLSTREAM_SEED={SEED}\n")
    dice = random.Random(SEED)
    for _ in range(FUZZ_ROUNDS):
        client = connect(port, timeout_s=60)
        frames = [_random_frame(dice) for _ in range(dice.randrange(1, 6))]
        if dice.random() < 0.3:
            producer = bytes((0, 0, 0, 0, 0, 0, 0, 1))
            frames.insert(0, request(Opcode.DCP_OPEN, extras=producer, key=b"fuzz"))
        with contextlib.suppress(Closed):
            client.send(b"".join(frames))
        client.close_sending()
        assert client.is_closed_by_server(), f"hangs on {frames!r} (seed {SEED})"
        client.close()
    assert node.is_running


@pytest.mark.parametrize("port", PORTS)
def test_random_bytes(connect: Connect, port: str) -> None:
    dice = random.Random(SEED)
    for _ in range(FUZZ_ROUNDS // 4):
        client = connect(port, timeout_s=60)
        with contextlib.suppress(Closed):
            client.send(dice.randbytes(dice.randrange(1, 2000)))
        client.close_sending()
        assert client.is_closed_by_server()
        client.close()
