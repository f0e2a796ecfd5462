"""Namespaces of two groups over three nodes, one of which is killed while it creates them."""

from concurrent.futures import ThreadPoolExecutor

from millstream.coordination.core.namespace.names import UNDO_MS
from support.coordination.redis_cli import RedisCli
from support.node.node_process import FREE, free_port
from support.node.waiting import until

OPEN = ("--no-kv", "--no-memcached", "--no-http")
SETTLED = ("OK", "EXISTS")
SETTLED_S = 2 * UNDO_MS / 1000
"""A name that was reserved for a client that came no more is free after half of it."""


def said_by_one(clis, *words):
    """Ask all in turn until one does it; return what it says."""

    def what_is_wrong():
        asked = [words, ("ADMIN", "STATUS", "1"), ("ADMIN", "STATUS", "2"), ("VDS", "/")]
        return "\n".join(cli.say(*each) for each in asked for cli in clis)

    return until(
        lambda: [one for cli in clis if (one := cli.say(*words)) in SETTLED],
        what_is_wrong, wait_s=SETTLED_S,
    )[0]  # fmt: skip


def test_names_survive_the_node_that_was_creating_them(make_node):
    nodes, peers = [], [f"127.0.0.1:{free_port()}" for _ in range(3)]
    for number, peer in enumerate(peers):
        join = ("--join", peers[0]) if number else ()
        node = make_node("--coord", FREE, "--peer", peer, *join, *OPEN, name=f"n{number}")
        nodes.append(node.start())
    clis = [RedisCli(node) for node in nodes]
    first = clis[0]
    until(lambda: len(first.table("ADMIN", "NODES")) == 3, lambda: nodes[1].log())
    others = [one["node"] for one in first.table("ADMIN", "NODES") if not one["is_here"]]
    until(lambda: first.say("ADMIN", "GROUP", "ADD", "1", *others).startswith("1"))
    until(lambda: first.table("ADMIN", "STATUS", "1")["fault_tolerance"] == 1)
    assert first.say("ADMIN", "GROUP", "CREATE", "2", others[-1]) == "OK"
    assert said_by_one(clis, "CREATENAMESPACE", "/here", "GROUP", "1") == "OK"
    roots = [f"/n{number}" for number in range(12)]
    answers = {}

    def create():
        for root in roots:
            answers[root] = said_by_one(clis, "CREATENAMESPACE", root, "GROUP", "2")

    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(create)
        until(lambda: len(answers) >= 2)
        nodes[0].kill()
        creating.result()
    assert sorted(answers) == sorted(roots)
    left = clis[1:]
    for cli in left:
        known = {"/here": 1, **dict.fromkeys(roots, 2)}
        until(lambda cli=cli, known=known: cli.table("VDS", "/") == known)
        assert cli.table("VDS", "/n3/below")["/n3"]["group"] == 2
    assert said_by_one(left, "CREATENAMESPACE", "/n3", "GROUP", "1") == "EXISTS"
    assert said_by_one(left, "CREATE", "BINARY", "/n3/a", "x") == "OK"
    assert said_by_one(left, "DELETENAMESPACE", "/n3", "FORCE") == "OK"
    assert said_by_one(left, "CREATENAMESPACE", "/n3", "GROUP", "1") == "OK"
    for node in nodes[1:]:
        assert node.stop() == 0
