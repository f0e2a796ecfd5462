"""How long a session may be silent is set for what it holds; clients learn of it by themselves."""

import redis

from millstream.coordination import BlockingClient
from support.node.node_process import FREE
from support.node.waiting import until

OPEN = ("--no-kv", "--no-memcached", "--no-http")
HEARTBEAT = "NAMESPACE.SESSION.HEARTBEAT.DURATION"


def is_free(client, path):
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command("LOCK", "WRITE", path, "NOWAIT")
    pipeline.execute_command("LOCK", "RELEASE", path)
    found, released = pipeline.execute(raise_on_error=False)
    assert found == released == b"OK" or str(found).startswith("LOCKED"), (found, released)
    return found == b"OK"


class Signs:
    """Signs of life of the one session with this time-out, as its primary counts them."""

    def __init__(self, client, *, ttl):
        self.client, self.ttl = client, ttl
        self.number, self.silent_ms = 0, 0

    def counted(self):
        shown = self.client.execute_command("SESSION", "LIST")
        (silent_ms,) = (one[b"silent_ms"] for one in shown if one[b"ttl"] == self.ttl)
        self.number += silent_ms < self.silent_ms
        self.silent_ms = silent_ms
        return self.number


def test_a_lock_is_lost_as_early_as_is_set_for_it_by_whoever_is_silent(make_node):
    node = make_node("--coord", FREE, *OPEN).start()
    host, port = node.address("coord")
    options = {"protocol": 3, "socket_timeout": 60, "single_connection_client": True}
    with redis.Redis(host, port, **options) as silent, redis.Redis(host, port, **options) as other:
        until(lambda: silent.execute_command("CREATENAMESPACE", "/app"))
        for words in (
            ("CREATE", "BINARY", "/app/short"), ("CREATE", "BINARY", "/app/short/kept"),
            ("CREATE", "BINARY", "/app/short/lost"), ("CREATE", "BINARY", "/app/long"),
            ("CONFIG", "SET", "/app/short", HEARTBEAT, "2500 ms"),
            ("CONFIG", "SET", "/app/long", HEARTBEAT, "1 hour"),
            ("LOCK", "WRITE", "/app/short/lost"),
        ):  # fmt: skip
            assert silent.execute_command(*words) == b"OK", words
        assert silent.execute_command("SESSION", "PING") == b"PONG"
        assert silent.execute_command("SESSION", "INFO")[b"ttl"] == 2500
        with BlockingClient([f"{host}:{port}"]) as client, client.lock("/app/short/kept") as lock:
            until(lambda: is_free(other, "/app/short/lost"), wait_s=8)
            signs = Signs(other, ttl=2500)
            until(lambda: signs.counted() >= 4)
            assert not is_free(other, "/app/short/kept")
            assert lock.is_held
            with client.lock("/app/long"):
                assert signs.counted() >= 4, "the shorter time counts"
