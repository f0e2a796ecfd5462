"""Who may what in coordination: users, groups and tokens, with redis-py over TLS."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from node_process import FREE, NodeProcess
from token_issuer import RULES, claims, jwks, token
from waiting import until

TLS = Path(__file__).parent / "tls"
AUTHORITY = str(TLS / "authority.pem")
OPTIONS = (
    "--coord", FREE, "--no-kv", "--no-memcached", "--no-http", "--user", "ada:secret",
    "--tls-cert", str(TLS / "node.pem"), "--oidc-issuer", RULES.issuer,
    "--oidc-audience", RULES.audience,
)  # fmt: skip


@contextmanager
def logged_in(node: NodeProcess, name: str, secret: str, **options: Any) -> Iterator[redis.Redis]:
    host, port = node.address("coord")
    url = f"rediss://{host}:{port}"
    client = redis.Redis.from_url(
        url, username=name, password=secret, ssl_ca_certs=AUTHORITY, **options
    )
    with client:
        yield client


def of_issuer(name: str, *groups: str, lasts_s: float = 600) -> str:
    return token(claims(sub=name, groups=groups, exp=time.time_ns() / 1e9 + lasts_s)).decode()


@pytest.mark.parametrize("protocol", [2, 3])
def test_users_and_bearers_of_tokens(tmp_path: Path, protocol: int) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    options = (*OPTIONS, "--oidc-jwks", str(keys))
    with (
        NodeProcess(tmp_path / "node", *options) as node,
        logged_in(node, "ada", "secret", protocol=protocol) as ada,
    ):
        until(lambda: ada.execute_command("SET", "ready", "yes"))
        ada.execute_command("CREATENAMESPACE", "/app")
        ada.execute_command("ACL SET", "/app", "ENTRY", "group:staff:rw-")
        with logged_in(node, "token", of_issuer("bob", "staff"), protocol=protocol) as bob:
            assert bob.execute_command("CREATE", "BINARY", "/app/bobs", "1") in (b"OK", True)
            assert bob.execute_command("ACL CHECK", "/app", "w") == 1
            with pytest.raises(NoPermissionError):
                bob.execute_command("CREATENAMESPACE", "/other")
        with logged_in(node, "token", of_issuer("eve", "admins"), protocol=protocol) as eve:
            assert eve.execute_command("GET", "/app/bobs") == b"1"
            for words in (("PUT", "/app/bobs", "2"), ("DELETE", "/app/bobs"), ("SET", "a", "b")):
                with pytest.raises(NoPermissionError):
                    eve.execute_command(*words)
        for name, secret in (
            ("token", of_issuer("bob", lasts_s=-100)), ("token", "x.y.z"), ("ada", "wrong"),
        ):  # fmt: skip
            with (
                logged_in(node, name, secret, protocol=protocol) as stranger,
                pytest.raises((redis.AuthenticationError, redis.ResponseError), match=r"\w"),
            ):
                stranger.execute_command("GET", "/app/bobs")
    assert "secret" not in node.log()


def test_a_client_without_tls_gets_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    with NodeProcess(tmp_path / "node", *OPTIONS, "--oidc-jwks", str(keys)) as node:
        host, port = node.address("coord")
        with redis.Redis(host, port, socket_timeout=60) as client, pytest.raises(redis.RedisError):
            client.ping()
