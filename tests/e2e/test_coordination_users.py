"""Who may what in coordination: users, groups and tokens, with redis-py over TLS."""

import base64
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from support.node.node_process import FREE, NodeProcess
from support.node.token_issuer import RULES, claims, jwks, token
from support.node.waiting import until

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


def is_out(client: redis.Redis) -> bool:
    try:
        client.execute_command("ACL WHOAMI")
    except redis.RedisError:
        return True
    return False


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
        ada.execute_command("CONFIG SET", "GLOBAL", "GLOBAL.AUTH.ADMINS", "ops")
        until(lambda: is_admin(node, of_issuer("joe", "ops"), protocol=protocol))
        assert not is_admin(node, of_issuer("eve", "admins"), protocol=protocol)
    assert "secret" not in node.log()


def test_whose_tokens_are_taken_may_be_set_for_all_nodes(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    settings = (("ISSUER", RULES.issuer), ("AUDIENCE", RULES.audience), ("JWKS", str(keys)))
    options = OPTIONS[: OPTIONS.index("--oidc-issuer")]
    with NodeProcess(tmp_path / "node", *options) as node, logged_in(node, "ada", "secret") as ada:
        until(lambda: ada.execute_command("SET", "ready", "yes"))
        with (
            logged_in(node, "token", of_issuer("bob")) as stranger,
            pytest.raises((redis.AuthenticationError, redis.ResponseError), match="no tokens"),
        ):
            stranger.ping()
        ada.execute_command("CREATENAMESPACE", "/app")
        for key, value in settings:
            ada.execute_command("CONFIG SET", "GLOBAL", f"GLOBAL.AUTH.{key}", value)

        def is_let_in() -> bool:
            with logged_in(node, "token", of_issuer("bob")) as bob:
                return bob.execute_command("ACL WHOAMI")[b"principal"] == b"bob"

        until(lambda: succeeds(is_let_in))
        shown = ada.execute_command("CONFIG GET", "NODE", "NODE.*")
        assert Path(shown["NODE.DATA"]).samefile(node.data_dir)
        assert shown["NODE.TLS.CERTIFICATE"] == str(TLS / "node.pem")
        ada.execute_command("CONFIG UNSET", "GLOBAL", "GLOBAL.AUTH.ISSUER")
        until(lambda: not succeeds(is_let_in))


def succeeds(call: Callable[[], bool]) -> bool:
    """Return what is found, False if it is refused."""
    try:
        return call()
    except redis.RedisError:
        return False


def is_admin(node: NodeProcess, secret: str, **options: Any) -> bool:
    with logged_in(node, "token", secret, **options) as client:
        try:
            client.execute_command("ADMIN", "USER", "LIST")
        except NoPermissionError:
            return False
        return True


def test_a_client_without_tls_gets_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    with NodeProcess(tmp_path / "node", *OPTIONS, "--oidc-jwks", str(keys)) as node:
        host, port = node.address("coord")
        with redis.Redis(host, port, socket_timeout=60) as client, pytest.raises(redis.RedisError):
            client.ping()


def test_one_record_for_all_listeners(tmp_path: Path) -> None:
    """A user made by RESP logs in over HTTP, one made over HTTP by RESP; both within seconds."""
    with NodeProcess(tmp_path / "node", "--coord", FREE, "--user", "ada:secret") as node:
        host, port = node.address("coord")

        def logs_in(name: str, password: str) -> bool:
            basic = base64.b64encode(f"{name}:{password}".encode()).decode()
            request = urllib.request.Request(
                f"{node.http}/_millstream/users", headers={"Authorization": f"Basic {basic}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60):
                    return True
            except urllib.error.HTTPError as error:
                error.close()
                return error.code == 403  # known, but no administrator

        with redis.Redis(host, port, username="ada", password="secret") as ada:
            until(lambda: ada.execute_command("SET", "ready", "yes"))
            ada.execute_command("ADMIN USER SET", "bob", "PASSWORD", "s3cret", "GROUPS", "staff")
            rows = ada.execute_command("ADMIN USER LIST")
            assert b"staff" in str(rows).encode()
            until(lambda: logs_in("bob", "s3cret"))
            with redis.Redis(host, port, username="bob", password="s3cret") as bob:
                assert b"staff" in str(bob.execute_command("ACL WHOAMI")).encode()
                assert ada.execute_command("ADMIN USER DEL", "bob") in (b"OK", True)
                until(lambda: is_out(bob))
            until(lambda: not logs_in("bob", "s3cret"))
    assert "s3cret" not in node.log()
