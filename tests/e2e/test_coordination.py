"""Coordination in whole nodes: over TLS, killed, without a disk, on a full one, without files."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.coordination.redis_cli import RedisCli
from support.kv.small_disk import in_small_disk
from support.node.node_process import FREE, free_port
from support.node.outside_program import outside_program
from support.node.waiting import until

TLS = Path(__file__).parent / "tls"
SECRET = "a secret of the nodes"
OPEN = ("--no-kv", "--no-memcached", "--no-http")
ENCRYPTED = ("--tls-cert", str(TLS / "node.pem"), "--tls-ca", str(TLS / "authority.pem"))
# The program after this one: it understands one more format. The one before knows of it only.
NEWER = """
from millstream.coordination.core.namespace import machine

machine.STATE_FORMAT = 2
machine.SINCE = {b"COUNTER": 2}
"""
OLDER = NEWER.replace("STATE_FORMAT = 2", "STATE_FORMAT = 1")


def coordination_of(node):
    """The process id, None while there is none."""
    for pid in node.pids():
        with contextlib.suppress(OSError):
            if "coord_child" in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
    return None


def fill(path):
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass


@pytest.mark.slow
def test_three_nodes_over_tls(make_node):
    options = ("--user", "ada:secret", *OPEN, *ENCRYPTED)
    login = (
        "--tls", "--cacert", str(TLS / "authority.pem"), "--user", "ada", "--pass", "secret",
        "--no-auth-warning",
    )  # fmt: skip
    environment = {"MILLSTREAM_CLUSTER_SECRET": SECRET}
    nodes, peers = [], [f"127.0.0.1:{free_port()}" for _ in range(3)]
    for number, peer in enumerate(peers):
        join = ("--join", peers[0]) if number else ()
        made = make_node(
            "--coord", FREE, "--peer", peer, *join, *options, name=f"n{number}", env=environment
        )
        nodes.append(made.start())
    clients = [RedisCli(node, *login) for node in nodes]
    first = clients[0]
    until(lambda: len(first.table("ADMIN", "NODES")) == 3, lambda: nodes[1].log())
    others = [node["node"] for node in first.table("ADMIN", "NODES") if not node["is_here"]]
    first.until_said("1", "ADMIN", "GROUP", "ADD", "1", *others)
    first.until_said("OK", "SET", "key", "value")
    until(lambda: first.table("ADMIN", "STATUS", "1")["fault_tolerance"] == 1)
    nodes[0].kill()
    until(lambda: any(one.say("GET", "key") == "value" for one in clients[1:]))
    assert "NOAUTH" in RedisCli(nodes[1], *login[:3]).say("GET", "key")
    for node in nodes[1:]:
        assert node.stop() == 0


def test_a_coordination_process_that_dies_comes_back(make_node):
    node = make_node("--coord", FREE, *OPEN).start()
    client = RedisCli(node)
    client.until_said("OK", "SET", "key", "value")
    coordination = coordination_of(node)
    os.kill(coordination, signal.SIGKILL)
    client.until_said("value", "GET", "key")
    assert "the coordination process was killed by signal 9" in node.log()
    assert coordination not in node.pids()
    assert node.stop() == 0


def test_a_coordination_disk_that_fails_ends_the_node(make_node):
    """Files may have no more than 16 MB: what the log's segment takes, and a write more."""
    limit = ("prlimit", f"--fsize={16 << 20}")
    node = make_node("--coord", FREE, *OPEN, prefix=limit).start()
    value = "v" * 100_000
    client = RedisCli(node)
    client.until_said("OK", "SET", "key", "value")
    host, port = node.address("coord")
    load = (outside_program("redis-benchmark"), "-h", host, "-p", str(port), "-c", "64", "-q")
    words = ("-n", "2000", "SET", "key", value)
    subprocess.run([*load, *words], capture_output=True, check=False, timeout=60)
    assert node.wait() == 1
    assert "its disk failed, the node must restart" in node.log()


def test_nodes_start_again_on_a_full_disk_and_go_on_once_there_is_room(make_node, tmp_path):
    node = make_node("--coord", FREE, *OPEN, prefix=in_small_disk(tmp_path / "node", "8m")).start()
    client = RedisCli(node)
    client.until_said("OK", "SET", "key", "value")
    filler = Path(f"/proc/{node.pid}/root/{tmp_path}/node/filler")
    fill(filler)
    engine, coordination = node.pids()[1], coordination_of(node)
    os.kill(engine, signal.SIGKILL)  # the supervisor starts another one, in the same file system
    until(lambda: coordination_of(node) not in (None, coordination))
    client.until_said("group", "ADMIN", "STATUS", "1")
    assert "cannot" not in node.log()
    filler.unlink()
    client.until_said("OK", "SET", "key", "other")
    client.until_said("other", "GET", "key")
    assert node.stop() == 0


@pytest.mark.slow
def test_a_node_that_lost_who_it_is_says_how_to_go_on_and_so_it_does(make_node):
    peer = f"127.0.0.1:{free_port()}"
    first = make_node("--coord", FREE, "--peer", peer, *OPEN, name="first").start()
    join = ("--coord", FREE, "--peer", FREE, "--join", peer, *OPEN)
    make_node(*join, name="second").start()
    client = RedisCli(first)

    def others():
        nodes = client.table("ADMIN", "NODES")
        return {one["node"] for one in nodes if not one["is_here"]}

    until(lambda: len(others()) == 1)
    [second] = others()
    lost = make_node(*join, name="lost").start()
    until(lambda: len(others()) == 2)
    [old] = others() - {second}
    client.until_said("1", "ADMIN", "GROUP", "ADD", "1", second, old)
    client.until_said("OK", "SET", "key", "value")
    assert lost.stop() == 0
    folder = lost.data_dir / "coord"
    for name in ("pool", "node.toml"):
        for path in (folder / name, folder / f"{name}.copy"):
            path.write_bytes(path.read_bytes()[:-300])
        lost.launch()
        assert lost.wait() != 0
        last = [line for line in lost.log().splitlines() if "coordination:" in line][-1]
        assert name.partition(".")[0] in last
        assert "ADMIN GROUP REPLACE" in last
    folder.rename(lost.data_dir / "aside")
    lost.start()
    until(lambda: len(others()) == 3)
    [new] = others() - {second, old}
    client.until_said("2", "ADMIN", "GROUP", "REPLACE", "1", old, new)
    client.until_said("value", "GET", "key")
    until(lambda: client.table("ADMIN", "STATUS", "1")["fault_tolerance"] == 1)


def program(folder: Path, text: str) -> dict[str, str]:
    """What a node's environment has for it to be this program."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    path = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{path}", "MILLSTREAM_CLUSTER_SECRET": SECRET}


@pytest.mark.slow
def test_a_group_is_upgraded_one_member_at_a_time(make_node, tmp_path):
    older, newer = program(tmp_path / "older", OLDER), program(tmp_path / "newer", NEWER)
    peers = [f"127.0.0.1:{free_port()}" for _ in range(3)]

    def started(number, env):
        join = ("--join", peers[0]) if number else ()
        options = ("--coord", FREE, "--peer", peers[number], *join, *OPEN)
        return make_node(*options, name=f"n{number}", env=env).start()

    nodes = [started(number, older) for number in range(3)]

    def clients():
        return [RedisCli(node, "-3") for node in nodes]

    def said(answer, *words):
        until(
            lambda: any(answer == one.say(*words) for one in clients()),
            lambda: [one.say(*words) for one in clients()],
        )

    def formats(node):
        status = RedisCli(node).table("ADMIN", "STATUS", "1")
        return status.get("state_format"), status.get("state_format_max")

    first = RedisCli(nodes[0])
    until(lambda: len(first.table("ADMIN", "NODES")) == 3, lambda: nodes[1].log())
    others = [node["node"] for node in first.table("ADMIN", "NODES") if not node["is_here"]]
    first.until_said("1", "ADMIN", "GROUP", "ADD", "1", *others)
    said("OK", "CREATENAMESPACE", "/a")
    said("OK", "CREATE", "COUNTER", "/a/n")
    refused = "UNKNOWN_COMMAND COUNTER needs all members to be upgraded first"
    for number in range(3):
        said(refused, "COUNTER", "INC", "/a/n")
        assert nodes[number].stop() == 0
        node = nodes[number] = started(number, newer)
        until(lambda node=node: formats(node)[1] == 2, node.log)
    until(lambda: [formats(node) for node in nodes] == [(2, 2)] * 3)
    said("1", "COUNTER", "INC", "/a/n")
    assert nodes[0].stop() == 0
    said("2", "COUNTER", "INC", "/a/n")
    back = started(0, older)
    until(lambda: "state format 2, and this version knows formats up to 1" in back.log(), back.log)
