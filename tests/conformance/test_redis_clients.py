"""Clients and tools made for Redis against the coordination port: redis-cli, redis-benchmark,
redis-py.
"""

import base64
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.node.node_process import NodeProcess
from support.node.outside_program import outside_program

RunProgram = Callable[..., subprocess.CompletedProcess[bytes]]
Login = tuple[str, str]


def where(node: NodeProcess, login: Login) -> tuple[str, ...]:
    host, port = node.address("coord")
    return ("-h", host, "-p", str(port), "--user", login[0], "-a", login[1])


@pytest.fixture
def cli(node: NodeProcess, login: Login, run_program: RunProgram) -> Callable[..., str]:
    def run(*words: str) -> str:
        options = (*where(node, login), "--no-auth-warning")
        return run_program("redis-cli", *options, *words).stdout.decode()

    return run


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli(cli: Callable[..., str], protocol: str) -> None:
    key = f"cli{protocol}"
    assert cli(protocol, "SET", key, "a b\r\nc") == "OK\n"
    assert cli(protocol, "GET", key) == "a b\r\nc\n"
    assert cli(protocol, "CAS", key, "x", "y").startswith("CAS_MISMATCH")
    value, version = cli(protocol, "GET", key, "META").rsplit("\n", 2)[:2]
    assert value == "a b\r\nc"
    assert re.fullmatch(r"\d+:\d+:\d+", version)
    assert cli(protocol, "--no-raw", "GET", key) == '"a b\\r\\nc"\n'
    assert cli(protocol, "PING") == "PONG\n"
    assert cli(protocol, "NOSUCH").startswith("UNKNOWN_COMMAND")


def test_redis_cli_shows_a_session(cli: Callable[..., str]) -> None:
    shown = cli("-3", "--json", "SESSION", "OPEN", "TTL", "3000")
    assert '"ttl":3000' in shown
    assert re.search(r'"client_id":"[0-9a-f]{32}-\d+"', shown)


def test_redis_cli_pipes_lines(node: NodeProcess, login: Login, cli: Callable[..., str]) -> None:
    """What it reads from its input it sends as commands."""
    command = [outside_program("redis-cli"), *where(node, login), "--no-auth-warning"]
    lines = "".join(f'CSN {number} SET pipe "{number}"\n' for number in range(1, 21))
    done = subprocess.run(
        command, input=(lines + "GET pipe\n").encode(), capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode().split() == ["OK"] * 20 + ["20"]


@pytest.mark.parametrize("options", [(), ("-P", "16"), ("-3",)])
def test_redis_benchmark(
    node: NodeProcess, login: Login, run_program: RunProgram, options: tuple[str, ...]
) -> None:
    done = run_program(
        "redis-benchmark", *where(node, login), "-n", "500", "-c", "10", "-t", "set,get,ping",
        "--csv", *options,
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode()
    assert len(re.findall(r'^"(?:SET|GET|PING_\w+)","[\d.]+"', said, re.MULTILINE)) == 4, said
    assert "Error" not in said.replace("WARNING", ""), said


# ---- redis-py


@pytest.fixture(params=[2, 3])
def client(
    request: pytest.FixtureRequest, node: NodeProcess, login: Login
) -> Iterator["redis.Redis[Any]"]:
    host, port = node.address("coord")
    with redis.Redis(
        host=host, port=port, username=login[0], password=login[1], protocol=request.param
    ) as client:
        yield client


def test_redis_py(client: Any) -> None:
    assert client.ping()
    assert client.set("py", b"\x00\xff")
    assert client.get("py") == b"\x00\xff"
    value, version = client.execute_command("GET", "py", "META")
    assert value == b"\x00\xff"
    assert re.fullmatch(rb"\d+:\d+:\d+", version)
    assert client.execute_command("CAS", "py", b"\x00\xff", "2") == b"OK"
    with pytest.raises(redis.ResponseError, match="CAS_MISMATCH"):
        client.execute_command("CAS", "py", "1", "2")
    with pytest.raises(redis.ResponseError, match="UNKNOWN_COMMAND"):
        client.mget("py")
    assert client.echo("x") == b"x"
    assert client.info("server")["server_name"] == "millstream"
    assert client.config_get("save") == {}


def test_redis_py_pipelines(client: Any) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(300):
            pipeline.set("many", number)
        pipeline.get("many")
        replies = pipeline.execute()
    assert replies == [True] * 300 + [b"299"]


def test_redis_py_uses_namespaces(client: Any, node: NodeProcess, login: Login) -> None:
    run = client.execute_command
    root = f"/py{client.connection_pool.connection_kwargs['protocol']}"
    assert run("CREATENAMESPACE", root, "data") in (b"OK", "OK")
    assert run("CREATE", "BINARY", "PARENTS", f"{root}/a/b", b"\x00\xff") == b"OK"
    assert run("CREATE", "BINARY", f"{root}/a/b", "other") == b"EXISTS"
    assert client.get(f"{root}/a/b") == b"\x00\xff"
    version, data = run("GET", f"{root}/a/b", "CAS")
    assert data == b"\x00\xff"
    assert run("PUT", f"{root}/a/b", "new", "CAS", version) == b"OK"
    with pytest.raises(redis.ResponseError, match="CAS_MISMATCH"):
        run("PUT", f"{root}/a/b", "newer", "CAS", version)
    first = run("CREATE", "BINARY", "SEQUENTIAL", f"{root}/job-")
    assert first == f"{root}/job-0000000000".encode()
    assert run("LIST", root) == [None, [b"a", b"job-0000000000"]]
    assert run("LOOKUP", f"{root}/a/b/c") == [b"NOTFOUND", f"{root}/a/b".encode()]
    host, port = node.address("coord")
    with redis.Redis(host=host, port=port, username=login[0], password=login[1]) as other:
        mine = other.client()
        assert mine.execute_command("CREATE", "BINARY", "EPHEMERAL", f"{root}/here") == b"OK"
        assert client.get(f"{root}/here") == b""
        assert mine.execute_command("SESSION", "CLOSE") == b"OK"
    with pytest.raises(redis.ResponseError, match="ERROR_DOES_NOT_EXISTS"):
        client.get(f"{root}/here")
    assert run("CREATE", "COUNTER", "UNSIGNED", f"{root}/n") == b"OK"
    assert run("COUNTER", "INC", 5, f"{root}/n") == 5
    assert run("COUNTER", "DEC", 7, f"{root}/n") == [0, b"NOWRAP"]
    assert run("CREATE", "QUEUE", f"{root}/q") == b"OK"
    [item] = run("QUEUE", "PUSH", f"{root}/q", "job")
    assert run("QUEUE", "TAKE", f"{root}/q") == [[item, b"job", 1]]
    assert run("QUEUE", "ACK", f"{root}/q", item) == 1
    with client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command("CREATE", "LIST", f"{root}/l", "a", "b")
        pipeline.execute_command("LIST", "RANGE", f"{root}/l", 0, -1)
        assert pipeline.execute() == [b"OK", [b"a", b"b"]]
    with client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command("LIST", "APPEND", f"{root}/l", "c")
        pipeline.execute_command("CHECK", f"{root}/none", "EXISTS")
        with pytest.raises(redis.ResponseError, match=r"EXECABORT|CHECK_FAILED"):
            pipeline.execute()
    assert run("LIST", "LEN", f"{root}/l") == 2
    assert run("DELETENAMESPACE", root, "FORCE") == b"OK"


def test_redis_py_takes_turns_with_a_lock(client: Any, node: NodeProcess, login: Login) -> None:
    root = f"/turns{client.connection_pool.connection_kwargs['protocol']}"
    client.execute_command("CREATENAMESPACE", root)
    client.execute_command("CREATE", "BINARY", f"{root}/leader")
    host, port = node.address("coord")
    with redis.Redis(host=host, port=port, username=login[0], password=login[1]) as other:
        one, two = client.client().execute_command, other.client().execute_command
        status, first = one("LOCK", f"{root}/leader", "TOKEN")
        assert status == b"OK"
        assert two("LOCK", f"{root}/leader") == b"PENDING"
        with pytest.raises(redis.ResponseError, match="LOCKED"):
            two("PUT", f"{root}/leader", "two")
        assert one("PUT", f"{root}/leader", "one", "IFLOCK", first) == b"OK"
        assert one("LOCK", "RELEASE", f"{root}/leader") == b"OK"
        status, second = two("LOCK", f"{root}/leader", "TOKEN")
        assert status == b"OK"
        assert [int(part) for part in second.split(b":")] > [
            int(part) for part in first.split(b":")
        ]
        assert two("SESSION", "CLOSE") == b"OK"
    with pytest.raises(redis.ResponseError, match="FENCED"):
        client.execute_command("PUT", f"{root}/leader", "late", "IFLOCK", second)
    assert client.execute_command("PUT", f"{root}/leader", "free") == b"OK"


def test_redis_py_is_refused_without_a_user(node: NodeProcess, login: Login) -> None:
    host, port = node.address("coord")
    once = Retry(NoBackoff(), 0)
    for options in ({}, {"username": login[0], "password": "no"}):
        with (
            redis.Redis(host=host, port=port, retry=once, **options) as nobody,
            pytest.raises(redis.AuthenticationError),
        ):
            nobody.get("py")


def test_a_session_goes_on_on_another_connection(client: Any) -> None:
    opened = client.execute_command("SESSION", "OPEN")
    if isinstance(opened, list):
        opened = dict(zip(opened[::2], opened[1::2], strict=True))
    assert client.execute_command("CSN", "1", "SET", "session", "1") == b"OK"
    client.connection_pool.disconnect()
    words = ("SESSION", "RESUME", opened[b"client_id"], opened[b"secret"])
    resumed = client.execute_command(*words)
    assert (resumed[b"csn"] if isinstance(resumed, dict) else resumed[-1]) == 1
    assert client.execute_command("CSN", "1", "SET", "session", "2") == b"OK"
    assert client.get("session") == b"1", "a number is executed once"
    assert client.execute_command("SESSION", "PING") == b"PONG"
    assert client.execute_command("SESSION", "CLOSE") == b"OK"


# ---- subscriptions


def _heard(listener: Any) -> dict[str, Any]:
    """Return the next message; what is not one is passed over."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = listener.get_message(timeout=1)
        if found is not None and found["type"] == "message":
            return {"channel": found["channel"], **json.loads(found["data"])}
    raise AssertionError("no message came")


def test_redis_py_hears_updates(client: Any) -> None:
    run = client.execute_command
    path = f"/heard{client.connection_pool.connection_kwargs['protocol']}"
    run("CREATENAMESPACE", path, "data")
    path += "/a"
    run("CREATE", "BINARY", path)
    with client.pubsub() as listener:
        listener.subscribe(path)
        assert listener.get_message(timeout=60)["type"] == "subscribe"
        start = _heard(listener)
        assert (start["op"], start["channel"]) == ("start", path.encode())
        for number in range(20):
            run("PUT", path, number)
        messages = [_heard(listener) for _ in range(20)]
        lsns = [message["lsn"] for message in messages]
        assert lsns == sorted(set(lsns))
        assert lsns[0] > start["lsn"]
        assert {(message["op"], message["path"]) for message in messages} == {("put", path)}
        listener.ping()
        assert listener.get_message(timeout=60)["type"] == "pong"
        listener.unsubscribe(path)
        assert listener.get_message(timeout=60)["type"] == "unsubscribe"
    with client.pubsub() as listener:
        listener.subscribe(path, "MODE", "DATA", "FROM", str(lsns[9]))
        again = [_heard(listener) for _ in range(10)]
        assert [message["lsn"] for message in again] == lsns[10:]
        assert base64.b64decode(again[-1]["data"]) == b"19"


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_hears_updates(
    node: NodeProcess, login: Login, cli: Callable[..., str], protocol: str
) -> None:
    root = f"/told{protocol}"
    cli("CREATENAMESPACE", root, "data")
    command = [outside_program("redis-cli"), *where(node, login), "--no-auth-warning", protocol]
    with subprocess.Popen([*command, "SUBSCRIBE", root], stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        said = ""
        try:
            while '"start"' not in said:
                said = listener.stdout.readline().decode()
                assert said
            cli("PUT", root, "ATTR", "u.a", "1")
            while '"attr"' not in said:
                said = listener.stdout.readline().decode()
                assert said
        finally:
            listener.kill()
