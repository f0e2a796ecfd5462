"""What one session may own: the end of a session is one piece of work, which has to be bounded."""

import redis

from millstream.coordination.core.namespace.state.elements import OWNED_MAX
from support.node.node_process import FREE
from support.node.waiting import until

OPEN = ("--no-kv", "--no-memcached", "--no-http")
AT_ONCE = 100
"""Paths of one LOCK."""


def said(client, commands):
    """Say all of this at once; return what is answered."""
    pipeline = client.pipeline(transaction=False)
    for words in commands:
        pipeline.execute_command(*words)
    return pipeline.execute(raise_on_error=False)


def test_a_session_owns_so_much_and_all_of_it_ends(make_node):
    node = make_node("--coord", FREE, *OPEN).start()
    host, port = node.address("coord")
    options = {"protocol": 3, "socket_timeout": 60, "single_connection_client": True}
    with redis.Redis(host, port, **options) as one, redis.Redis(host, port, **options) as other:
        until(lambda: one.execute_command("CREATENAMESPACE", "/app"))
        create = ("CREATE", "BINARY", "EPHEMERAL", "SEQUENTIAL", "/app/p")
        *paths, refused = said(one, [create] * (OWNED_MAX + 1))
        assert len(set(paths)) == OWNED_MAX
        assert str(refused).startswith("QUOTA a session has 5000 ephemeral elements")
        groups = [paths[at : at + AT_ONCE] for at in range(0, OWNED_MAX, AT_ONCE)]
        assert said(one, [("LOCK", "WRITE", "GROUP", *group) for group in groups]) == [b"OK"] * 50
        refused = said(one, [("LOCK", "WRITE", "/app"), ("LOCK", "READ", "/app", "NOWAIT")])
        assert {str(each)[:5] for each in refused} == {"QUOTA"}
        assert said(other, [create])[0] not in paths
        assert said(other, [("LOCK", "WRITE", paths[0], "NOWAIT")])[0].args[0].startswith("LOCKED")
        assert said(one, [("SESSION", "CLOSE")]) == [b"OK"]
        until(lambda: len(other.execute_command("LIST", "/app")[1]) == 1)
        assert said(other, [("LOCK", "WRITE", "/app")]) == [b"OK"]
