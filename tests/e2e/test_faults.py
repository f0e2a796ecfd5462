"""A real node whose disk fills up, fails or refuses, or whose clock is set back.

Most faults are put behind the port to the disk (`faults/sitecustomize.py`); a full disk is also a
real one, a small file system in a mount namespace of the node's own.

Shown: without space writes are refused for the time being and nothing that was accepted is lost;
every other error stops the node, with exit code 1 and a message that names the file, and the next
start has all that was persisted; a clock that is set back changes no order.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.wire.mcbp import Opcode, Status, request
from support.kv.raw_client import Closed, RawClient
from support.kv.small_disk import in_small_disk
from support.node.node_process import NodeProcess
from support.node.waiting import until

BUCKET = "default"
HOUR_S = 3600
TO_DISK = bytes((0x11, 3))
"""Frame info of a write that is answered once it is persisted."""
MakeNode = Callable[..., NodeProcess]


class Faults:
    """What fails in the node that was started with `env`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.env = {
            "MILLSTREAM_TEST_FAULTS": str(path),
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parent / "faults"), *_search_path()]
            ),
        }

    def set(self, name: str, number: int) -> None:
        (self.path / f"{name}.new").write_text(str(number))
        (self.path / f"{name}.new").rename(self.path / name)

    def clear(self) -> None:
        for path in self.path.iterdir():
            path.unlink()


def _search_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults")


@pytest.fixture
def node(make_node: MakeNode, faults: Faults) -> NodeProcess:
    return make_node("--bucket", f"{BUCKET}:1", env=faults.env).start()


def put(client: RawClient, key: bytes, value: bytes, *, is_durable: bool = False) -> int:
    framing = TO_DISK if is_durable else b""
    return client.ask(Opcode.SET, key=key, value=value, extras=bytes(8), framing=framing).status


def get(client: RawClient, key: bytes) -> bytes | None:
    reply = client.ask(Opcode.GET, key=key)
    return reply.value if reply.status == Status.SUCCESS else None


def send_durable(client: RawClient, key: bytes, value: bytes) -> None:
    """Ask, and do not wait for the answer."""
    client.send(request(Opcode.SET, key=key, value=value, extras=bytes(8), framing=TO_DISK))


# -- a disk that is full


def resize(node: NodeProcess, path: Path, size: str) -> None:
    enter = ["nsenter", f"--mount=/proc/{node.pid}/ns/mnt", "--"]
    subprocess.run([*enter, "mount", "-o", f"remount,size={size}", str(path)], check=True)


def test_without_space_writes_are_refused_and_nothing_is_lost(
    make_node: MakeNode, tmp_path: Path
) -> None:
    prefix = in_small_disk(tmp_path / "node", "6m")
    # Nothing is flushed unasked: on a slow machine the disk would be full before all is accepted.
    options = ("--bucket", f"{BUCKET}:1", "--flush-interval", "600000")
    node = make_node(*options, prefix=prefix).start()
    with RawClient(node.kv, BUCKET) as client, RawClient(node.kv, BUCKET) as other:
        assert put(client, b"first", b"1", is_durable=True) == 0
        for number in range(100):
            assert put(client, b"large-%d" % number, bytes(100_000)) == 0
        send_durable(client, b"last", b"2")
        until(lambda: "free space; it is tried again" in node.log())
        assert get(other, b"first") == b"1"
        assert put(other, b"meanwhile", b"3") == Status.ETMPFAIL
        assert put(other, b"meanwhile", b"3", is_durable=True) == Status.ETMPFAIL
        resize(node, tmp_path / "node", "64m")
        assert client.receive().status == 0
        until(lambda: put(other, b"meanwhile", b"4", is_durable=True) == 0)
    os.kill(node.pids()[1], 9)  # the supervisor starts another engine, in the same file system
    until(lambda: "new failover entries" in node.log())
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(connected(node))
        for key, value in ((b"first", b"1"), (b"last", b"2"), (b"meanwhile", b"4")):
            assert get(client, key) == value
        assert get(client, b"large-99") == bytes(100_000)
    assert node.stop() == 0


def in_its_disk(node: NodeProcess, *command: str) -> None:
    enter = ["nsenter", f"--mount=/proc/{node.pid}/ns/mnt", "--"]
    subprocess.run([*enter, *command], check=False, capture_output=True)


@pytest.mark.parametrize("has_reserve", [True, False])
def test_a_bucket_that_is_opened_on_a_full_disk_serves_reads_or_comes_back_with_the_space(
    make_node: MakeNode, tmp_path: Path, has_reserve: bool
) -> None:
    disk = tmp_path / "node"
    options = ("--bucket", f"{BUCKET}:64", "--no-coord")
    node = make_node(*options, prefix=in_small_disk(disk, "6m")).start()
    with RawClient(node.kv, BUCKET) as client:
        for number in range(20):
            assert put(client, b"k%d" % number, b"1", is_durable=True) == 0
    if not has_reserve:
        in_its_disk(node, "sh", "-c", f"rm {disk}/buckets/*/reserve")
    in_its_disk(node, "dd", "if=/dev/zero", f"of={disk}/filler", "bs=1k")
    os.kill(node.pids()[1], 9)
    if has_reserve:
        until(lambda: "new failover entries" in node.log())
        with connected(node) as client:
            assert [get(client, b"k%d" % number) for number in range(20)] == [b"1"] * 20
            send_durable(client, b"k0", bytes(300_000))
            until(lambda: "free space; it is tried again" in node.log())
            in_its_disk(node, "rm", f"{disk}/filler")
            assert client.receive().status == 0
    else:
        until(lambda: "it is tried again by itself" in node.log())
        until(lambda: up(node)[0] == 503)
        assert up(node)[1]["failed_buckets"] == [BUCKET]
        in_its_disk(node, "rm", f"{disk}/filler")
        until(lambda: up(node) == (200, {"status": "ok"}))
        with connected(node) as client:
            assert get(client, b"k19") == b"1"
            assert put(client, b"k19", b"2", is_durable=True) == 0
    assert node.stop() == 0


def test_without_space_a_local_document_is_refused_and_the_engine_goes_on(
    make_node: MakeNode, tmp_path: Path
) -> None:
    disk = tmp_path / "node"
    node = make_node("--bucket", f"{BUCKET}:4", "--no-coord", prefix=in_small_disk(disk, "6m"))
    node.start()
    in_its_disk(node, "dd", "if=/dev/zero", f"of={disk}/filler", "bs=1k")
    engine = node.pids()[1]
    local = f"{node.http}/{BUCKET}/_local/checkpoint"
    for _ in range(2):
        assert put_text(local) == (503, "disk_full")
    in_its_disk(node, "rm", f"{disk}/filler")
    assert put_text(local)[0] == 201
    assert node.pids()[1] == engine
    assert node.stop() == 0


def put_text(url: str) -> tuple[int, str]:
    asked = urllib.request.Request(url, b'{"a":1}', {"Content-Type": "application/json"})
    asked.method = "PUT"
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())["error"]


def up(node: NodeProcess) -> tuple[int, dict[str, object]]:
    with contextlib.suppress(OSError):
        try:
            with urllib.request.urlopen(f"{node.http}/_up", timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
    return 0, {}


@contextlib.contextmanager
def connected(node: NodeProcess) -> Iterator[RawClient]:
    """To a node that may be about to listen again."""
    clients: list[RawClient] = []

    def connects() -> bool:
        with contextlib.suppress(OSError, Closed):
            clients.append(RawClient(node.kv, BUCKET))
        return bool(clients)

    until(connects)
    with clients[0] as client:
        yield client


def test_a_disk_that_stays_full_leaves_durable_writes_in_doubt_and_the_node_running(
    make_node: MakeNode, node: NodeProcess, faults: Faults
) -> None:
    node.kill()
    faults.set("disk_full_s", 1)
    node = make_node(env=faults.env).start()
    with RawClient(node.kv, BUCKET) as client, RawClient(node.kv, BUCKET) as other:
        assert put(client, b"first", b"1", is_durable=True) == 0
        faults.set("write", errno.ENOSPC)
        assert put(client, b"doubtful", b"2", is_durable=True) == Status.SYNC_WRITE_AMBIGUOUS
        assert put(other, b"refused", b"3") == Status.ETMPFAIL
        assert get(client, b"first") == b"1"
        assert get(client, b"doubtful") == b"2"
        faults.clear()
        until(lambda: put(client, b"after", b"4", is_durable=True) == 0)
    assert node.stop() == 0
    node.start()
    with RawClient(node.kv, BUCKET) as client:
        found = [get(client, key) for key in (b"first", b"doubtful", b"refused", b"after")]
        assert found == [b"1", b"2", None, b"4"]
    assert node.stop() == 0


# -- a disk that fails


def check_the_end(node: NodeProcess, faults: Faults, call: str, number: int, message: str) -> None:
    """Nothing is acknowledged that is not durable, the node ends, and has what was persisted."""
    with RawClient(node.kv, BUCKET) as client:
        for n in range(50):
            assert put(client, b"k%d" % n, b"%d" % n, is_durable=True) == 0
        faults.set(call, number)
        with contextlib.suppress(Closed):
            reply = put(client, b"lost", b"x" * 400_000, is_durable=True)
            assert reply != Status.SUCCESS
    assert node.wait() == 1
    log = node.log()
    assert message in log
    assert os.strerror(number) in log
    assert "repair it, then start again" in log.splitlines()[-1]
    faults.clear()
    node.start()
    with RawClient(node.kv, BUCKET) as client:
        assert [get(client, b"k%d" % n) for n in range(50)] == [b"%d" % n for n in range(50)]
        assert put(client, b"lost", b"found", is_durable=True) == 0
    assert node.stop() == 0


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("sync", errno.EIO),
        ("write", errno.EIO),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("sync", errno.ENOSPC),
                ("write", errno.EROFS),
                ("create", errno.EACCES),
                ("create", errno.EROFS),
                ("sync_directory", errno.EIO),
            )
        ),
    ],
)
def test_an_error_of_the_disk_stops_the_node(
    node: NodeProcess, faults: Faults, call: str, number: int
) -> None:
    check_the_end(node, faults, call, number, ".seg: the disk failed")


@pytest.mark.parametrize(
    "call",
    ["write", *(pytest.param(call, marks=pytest.mark.slow) for call in ("sync", "truncate"))],
)
def test_a_stop_that_cannot_be_clean_says_so(node: NodeProcess, faults: Faults, call: str) -> None:
    with RawClient(node.kv, BUCKET) as client:
        assert put(client, b"k", b"1", is_durable=True) == 0
    faults.set(call, errno.EIO)
    code = node.stop()
    assert code == 1, node.log()
    assert "repair it, then start again" in node.log().splitlines()[-1]
    faults.clear()
    node.start()
    with RawClient(node.kv, BUCKET) as client:
        assert get(client, b"k") == b"1"


@pytest.mark.parametrize(
    "number",
    [
        errno.ENOSPC,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (errno.EIO, errno.EACCES)),
    ],
)
def test_a_bucket_that_cannot_be_written_at_the_start_is_not_served(
    node: NodeProcess, faults: Faults, number: int
) -> None:
    with RawClient(node.kv, BUCKET) as client:
        assert put(client, b"k", b"1", is_durable=True) == 0
    node.kill()
    faults.set("write", number)
    node.start()
    assert f"bucket {BUCKET} is not served" in node.log()
    assert os.strerror(number) in node.log()
    node.stop()
    faults.clear()
    node.start()
    with RawClient(node.kv, BUCKET) as client:
        assert get(client, b"k") == b"1"


# -- a clock that is set back


def test_a_clock_set_back_changes_no_order(node: NodeProcess, faults: Faults) -> None:
    with RawClient(node.kv, BUCKET) as client:
        before = client.ask(Opcode.SET, key=b"k", value=b"1", extras=bytes(8), framing=TO_DISK)
        faults.set("clock", -HOUR_S)
        after = client.ask(Opcode.SET, key=b"k", value=b"2", extras=bytes(8), framing=TO_DISK)
        assert after.status == 0
        assert after.cas > before.cas
    node.kill()
    node.start()
    with RawClient(node.kv, BUCKET) as client:
        assert get(client, b"k") == b"2"
        again = client.ask(Opcode.SET, key=b"k", value=b"3", extras=bytes(8), framing=TO_DISK)
        assert again.cas > after.cas
    assert node.stop() == 0
