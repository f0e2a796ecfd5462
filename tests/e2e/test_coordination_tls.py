"""TLS on the ports of coordination: who is believed, and that nothing is said plainly."""

import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from support.coordination.redis_cli import RedisCli
from support.node.authorities import Authority
from support.node.node_process import FREE, NodeProcess

WAIT_S = 60
GREETING = b"millstream-peer 1\n"
SECRET = {"MILLSTREAM_CLUSTER_SECRET": "a secret of the cluster"}
OPEN = ("--no-kv", "--no-memcached", "--no-http", "--coord", FREE, "--user", "ada:secret")


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


def say(node: NodeProcess, *options: str) -> str:
    """Return what redis-cli prints after PING."""
    login = ("--user", "ada", "--pass", "secret", "--no-auth-warning")
    return RedisCli(node, *login, *options).say("PING")


def pings(node: NodeProcess, **options: object) -> bool:
    host, port = node.address("coord")
    with redis.Redis(
        host, port, username="ada", password="secret", ssl=True, socket_timeout=WAIT_S, **options
    ) as client:
        try:
            return client.ping()
        except redis.ConnectionError:
            return False


def test_clients_and_nodes_find_out_who_is_who(
    tmp_path: Path, ours: Authority, theirs: Authority
) -> None:
    right, wrong, old = ours.issue("node"), theirs.issue("client"), ours.issue("old", days=-1)
    options = ("--tls-cert", str(right), "--tls-ca", str(ours.file))
    with NodeProcess(tmp_path / "node", *OPEN, *options) as node:
        ca = {"ssl_ca_certs": str(ours.file)}
        assert pings(node, **ca)
        assert say(node, "--tls", "--cacert", str(ours.file)) == "PONG"

        # Somebody who trusts another authority does not go on.
        assert not pings(node, ssl_ca_certs=str(theirs.file))
        assert "certificate verify failed" in say(node, "--tls", "--cacert", str(theirs.file))

        # A certificate may be shown; if it is, it has to be a good one.
        mine = ours.issue("client")
        for shown, is_good in ((mine, True), (wrong, False), (old, False)):
            both = {"ssl_certfile": str(shown), "ssl_keyfile": str(shown)}
            assert pings(node, **ca, **both) is is_good, shown
            cli = ("--tls", "--cacert", str(ours.file), "--cert", str(shown), "--key", str(shown))
            assert (say(node, *cli) == "PONG") is is_good, shown

        # It is no log-in.
        host, port = node.address("coord")
        with (
            redis.Redis(
                host, port, ssl=True, ssl_certfile=str(mine), ssl_keyfile=str(mine), **ca
            ) as nobody,
            pytest.raises(redis.AuthenticationError),
        ):
            nobody.execute_command("GET", "key")

        # What is said plainly is not answered, and does no harm.
        assert "PONG" not in say(node)
        assert b"+" not in plainly((host, port), b"AUTH ada secret\r\nPING\r\n")
        assert pings(node, **ca)
        assert node.stop() == 0
    assert "Traceback" not in node.log()


def test_a_certificate_that_is_over_is_believed_by_nobody(tmp_path: Path, ours: Authority) -> None:
    old = ours.issue("node", days=-1)
    with NodeProcess(tmp_path / "node", *OPEN, "--tls-cert", str(old)) as node:
        assert not pings(node, ssl_ca_certs=str(ours.file))
        assert "certificate verify failed" in say(node, "--tls", "--cacert", str(ours.file))
        assert node.stop() == 0


def test_nodes_let_in_only_who_shows_a_certificate_of_their_authority(
    tmp_path: Path, ours: Authority, theirs: Authority
) -> None:
    right = ours.issue("node")
    options = ("--peer", FREE, "--tls-cert", str(right), "--tls-ca", str(ours.file))
    with NodeProcess(tmp_path / "node", *OPEN, *options, env=SECRET) as node:
        place = node.address("peer")
        shown = (ours.issue("other"), theirs.issue("other"), ours.issue("old", days=-1), None)
        for number, certificate in enumerate(shown):
            tls = ssl.create_default_context(cafile=str(ours.file))
            if certificate is not None:
                tls.load_cert_chain(certificate)
            answer = greeted(place, tls)
            # Even then, it has to know the cluster's secret.
            assert answer.startswith(b"e=") if number == 0 else answer == b"", certificate
        assert node.stop() == 0


def plainly(place: tuple[str, int], said: bytes) -> bytes:
    """Return all that is answered without TLS until the connection ends."""
    answer = b""
    with (
        socket.create_connection(place, timeout=WAIT_S) as plain,
        suppress(ConnectionResetError),
    ):
        plain.sendall(said)
        while part := plain.recv(1000):
            answer += part
    return answer


def greeted(place: tuple[str, int], tls: ssl.SSLContext) -> bytes:
    """Return what a node answers to another one that does not log in."""
    try:
        with (
            socket.create_connection(place, timeout=WAIT_S) as plain,
            tls.wrap_socket(plain, server_hostname="localhost") as talk,
        ):
            talk.sendall(GREETING)
            return talk.recv(1000)
    except OSError:
        return b""
