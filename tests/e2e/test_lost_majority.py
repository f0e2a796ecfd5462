"""The guide to a group that lost its majority, run as it stands there, on real nodes."""

import re
import subprocess

import pytest

from pasted import blocks_of, path_of, steps_of
from support.coordination.redis_cli import RedisCli
from support.node.node_process import FREE, free_port
from support.node.waiting import until

OPEN = ("--no-kv", "--no-memcached", "--no-http")
NUMBER = re.compile(r"\b[0-9a-f]{32}\b|\b\d+\b")


def ids_of(client, number):
    """Return the ids of the pool's nodes by their addresses, once it has so many."""
    rows = until(lambda: len(found := client.table("ADMIN", "NODES")) == number and found)
    return {row["peer"]: row["node"] for row in rows}


@pytest.mark.slow
def test_the_guide_brings_a_group_back_from_its_survivor(make_node, tmp_path):
    peers = [f"127.0.0.1:{free_port()}" for _ in range(5)]

    def start(number):
        join = ("--join", peers[0]) if number else ()
        node = make_node("--coord", FREE, "--peer", peers[number], *join, *OPEN, name=f"n{number}")
        node.start()
        return node

    nodes = [start(number) for number in range(3)]
    client = RedisCli(nodes[0])
    ids = ids_of(client, 3)
    added = [ids[peers[number]] for number in (1, 2)]
    until(lambda: ids[peers[0]] in client.say("ADMIN", "GROUP", "ADD", "1", *added))
    until(lambda: "OK" in client.say("SET", "greeting", "hello"))
    survivor = nodes[1]
    survived = RedisCli(survivor)
    until(lambda: "hello" in survived.say("GET", "greeting", "STALEREAD"))
    for lost in (nodes[0], nodes[2]):
        lost.kill()
    names = {"ee359b94": ids[peers[0]], "5b10c2fe": ids[peers[2]]}
    peers[0] = peers[1]  # the one to join from now on
    host, port = survivor.address("coord")
    steps = (step for block in blocks_of("lost-majority") for step in steps_of(block.text))
    for command, printed in steps:
        if "GROUP ADD" in command:
            new = [start(number) for number in (3, 4)]
            ids = ids_of(survived, 5)
            names |= {"622dd453": ids[peers[3]], "7a03bb19": ids[peers[4]]}
        line = command.replace("redis-cli -p 7379", f"redis-cli --no-raw -h {host} -p {port}")
        line = line.replace("/backups", str(tmp_path))
        for name, node_id in names.items():
            line = line.replace(name, node_id)
        run = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False
        )
        assert "(error)" not in run.stdout, (command, run.stdout)
        if printed:
            assert NUMBER.sub("N", run.stdout) == NUMBER.sub("N", printed), command
        elif "FORCE" in command and not command.startswith("until"):
            fields = set(re.findall(r'"(\w+)"', run.stdout))
            table = path_of("lost-majority").read_text().split("| --- |")[1]
            documented = set(re.findall(r"`(\w+)`", table))
            assert {"kept_lsn", "may_be_lost", "forced_epoch", "silent"} <= fields
            assert {name for name in fields if "_lsn" in name or "_be_" in name} <= documented
    for node in new:
        assert "hello" in until(
            lambda node=node: RedisCli(node).say("GET", "greeting", "STALEREAD")
        )
