"""`millstream serve` as people and scripts meet it: ready line, errors, stopping, dying."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from millstream.client.connection import Connection
from millstream.errors import AccessError, UnavailableError
from support.http.http_calls import call
from support.node.node_process import FREE, free_port
from support.node.waiting import until

TLS = Path(__file__).parent / "tls"
CLOSED = [f"--no-{name}" for name in ("memcached", "http", "coord", "ninep", "peer")]


def serve(*options, env=None):
    """Run to the end; for nodes that do not come up."""
    return subprocess.run(
        [sys.executable, "-m", "millstream", "serve", *map(str, options)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


def refused(done, code, *words):
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("millstream: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in line


def fetch(node, path):
    with urllib.request.urlopen(node.http + path, timeout=60) as answer:
        return json.loads(answer.read())


def engine_of(node):
    return next(pid for pid in node.pids() if pid != node.pid)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def test_the_ready_line_is_the_contract(make_node):
    node = make_node("--coord", FREE, "--peer", FREE).start()
    assert list(node.ready) == [
        "event", "pid", "kv", "memcached", "http", "coord", "ninep", "peer",
    ]  # fmt: skip
    assert node.ready["event"] == "ready"
    assert node.ready["pid"] == node.pid
    assert node.ready["ninep"] is None
    with socket.create_connection(node.address("coord")) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(20) == b"+PONG\r\n"
    with socket.create_connection(node.address("peer")) as other:
        other.sendall(b"millstream-peer 1\n")
        assert other.recv(20) == b"ok\n"
    assert fetch(node, "/")["couchdb"] == "Welcome"
    assert fetch(node, "/_up") == {"status": "ok"}
    with Connection(*node.kv, bucket="default") as connection:
        assert connection.is_extended
    assert node.stop() == 0


def test_closed_listeners_are_null_and_sigint_is_a_clean_stop(make_node):
    node = make_node("--no-http", "--no-memcached").start()
    assert node.ready["http"] is None
    assert node.ready["memcached"] is None
    os.kill(node.pid, signal.SIGINT)
    assert node._process.wait(60) == 0


def test_a_signal_to_all_processes_is_a_clean_stop_and_logs_no_error(make_node):
    node = make_node("--log-json", "--coord", FREE, "--peer", FREE).start()
    os.killpg(node.pid, signal.SIGTERM)
    assert node.wait() == 0
    levels = {json.loads(line)["level"] for line in node.log().splitlines()}
    assert not levels & {"error", "critical"}, node.log()


def test_buckets_and_settings_survive_a_restart(make_node, tmp_path):
    config = tmp_path / "node.toml"
    config.write_text('bucket = ["orders:8"]\nlog-json = true\nlog-level = "debug"\n')
    options = ("--config", str(config))
    node = make_node(*options, name="a").start()
    before = fetch(node, "/_millstream/buckets")["buckets"]
    assert [(bucket["name"], bucket["partitions"]) for bucket in before] == [("orders", 8)]
    assert node.stop() == 0
    for line in node.log().splitlines():
        assert {"time", "level", "logger", "message"} <= set(json.loads(line))
    node = make_node(*options, name="a").start()
    after = fetch(node, "/_millstream/buckets")["buckets"]
    assert [bucket["uuid"] for bucket in after] == [bucket["uuid"] for bucket in before]
    assert fetch(node, "/_millstream/node")["failed_buckets"] == []


def test_users_log_in_with_scram_and_with_plain_passwords(make_node):
    node = make_node(
        "--user", "ada:se:cret", "--user", "bob", env={"MILLSTREAM_PASSWORD_bob": "x"}
    )
    node.start()
    for name, password in (("ada", "se:cret"), ("bob", "x")):
        Connection(*node.kv, user=name, password=password, bucket="default").close()
    for name, password in (("ada", "wrong"), ("eve", "x")):
        with pytest.raises(AccessError):
            Connection(*node.kv, user=name, password=password, bucket="default")
    with pytest.raises(AccessError):
        Connection(*node.kv, bucket="default")
    environment = Path(f"/proc/{engine_of(node)}/environ").read_bytes()
    assert b"MILLSTREAM_PASSWORD" not in environment
    assert node.stop() == 0


def test_a_busy_port_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = serve("--data", tmp_path / "d", "--kv", address, *CLOSED)
    refused(done, 1, "--kv", address, "in use")


def test_a_directory_of_others_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    done = serve("--data", tmp_path, "--kv", "127.0.0.1:0", *CLOSED)
    refused(done, 2, str(tmp_path), "letter.txt")
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_an_unusable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    done = serve("--data", tmp_path / "file" / "d", "--kv", "127.0.0.1:0", *CLOSED)
    refused(done, 1, str(tmp_path / "file"), "cannot be used")
    done = serve("--data", "/proc/nothing", "--kv", "127.0.0.1:0", *CLOSED)
    refused(done, 1, "/proc/nothing", "cannot be used")


def test_a_newer_format_is_not_touched(tmp_path):
    (tmp_path / "node.toml").write_text('format = 99\nuuid = "x"\n')
    done = serve("--data", tmp_path, "--kv", "127.0.0.1:0", *CLOSED)
    refused(done, 2, "format 99", "newer")


def test_a_second_server_waits_and_gives_up(make_node, tmp_path):
    node = make_node().start()
    began = time.monotonic()
    done = serve("--data", node.data_dir, "--kv", "127.0.0.1:0", *CLOSED)
    refused(done, 1, "another server", str(engine_of(node)))
    assert time.monotonic() - began >= 3
    assert node.stop() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv", "nonsense"], ["--kv", "HOST:PORT"]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (["--bucket", "a:7"], ["power of two"]),
                (["--flush-interval", "-5"], ["milliseconds"]),
                (["--user", "ada"], ["MILLSTREAM_PASSWORD_ada"]),
                (["--http", "0.0.0.0:0"], ["--http", "needs users"]),
                (["--http", "0.0.0.0:0", "--user", "a:b"], ["--http", "needs TLS"]),
                (["--memcached", "0.0.0.0:0", "--user", "a:b"], ["--memcached", "loopback only"]),
                (["--tls-cert", "/nothing"], ["--tls-cert", "cannot be read"]),
                (["--roles", "cook"], ["--roles"]),
                (["--config", "/nothing"], ["--config"]),
            )
        ),
    ],
)
def test_invalid_options_end_with_2(tmp_path, options, words):
    done = serve("--data", tmp_path / "d", "--kv", "127.0.0.1:0", *options)
    refused(done, 2, *words)


def test_an_unknown_option_ends_with_2(tmp_path):
    done = serve("--data", tmp_path / "d", "--colour", "red")
    assert done.returncode == 2
    assert "--colour" in done.stderr


def test_a_killed_supervisor_takes_its_engine_along(make_node):
    node = make_node(name="a").start()
    engine = engine_of(node)
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: not is_alive(engine), lambda: "the engine outlives its supervisor")
    again = make_node(name="a").start()
    assert again.stop() == 0


def test_a_killed_engine_comes_back_on_the_same_ports(make_node):
    node = make_node().start()
    engine, welcome = engine_of(node), fetch(node, "/")
    os.kill(engine, signal.SIGKILL)
    until(lambda: engine not in node.pids() and len(node.pids()) == 2, lambda: "no new engine")
    until(
        lambda: "\x20ready\x20" in node.log().split("starting it again")[-1],
        lambda: "not ready again",
    )
    assert fetch(node, "/") == welcome
    assert "was killed by signal 9" in node.log()
    assert "1 of 5" in node.log()
    assert node.stop() == 0


def test_one_directory_after_the_other_without_a_pause(make_node):
    first = make_node(name="a").start()
    first._process.send_signal(signal.SIGTERM)
    second = make_node(name="a").start()
    assert first._process.wait(60) == 0
    assert second.stop() == 0


def test_a_corrupt_bucket_is_named_and_the_others_serve(make_node):
    node = make_node("--bucket", "good", "--bucket", "bad", name="a").start()
    bad = next(b for b in fetch(node, "/_millstream/buckets")["buckets"] if b["name"] == "bad")
    assert node.stop() == 0
    segment = next((node.data_dir / "buckets" / bad["uuid"] / "log").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 0xFF
    segment.write_bytes(content)
    node = make_node(name="a").start()
    statuses = {b["name"]: b for b in fetch(node, "/_millstream/buckets")["buckets"]}
    assert statuses["good"]["state"] == "ready"
    assert statuses["bad"]["state"] == "failed"
    assert segment.name in statuses["bad"]["reason"]
    with pytest.raises(AccessError):
        Connection(*node.kv, bucket="bad")
    Connection(*node.kv, bucket="good").close()


def test_help_names_every_option_of_the_contract():
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
    )
    for option in [
        "data",
        "kv",
        "memcached",
        "http",
        "coord",
        "ninep",
        "peer",
        "no-kv",
        "no-memcached",
        "no-http",
        "no-coord",
        "no-ninep",
        "no-peer",
        "advertise",
        "join",
        "bucket",
        "user",
        "tls-cert",
        "tls-key",
        "tls-ca",
        "roles",
        "flush-interval",
        "config",
        "log-level",
        "log-json",
        "insecure-plaintext",
    ]:
        assert f"--{option} " in done.stdout


def test_beyond_loopback_with_users_and_tls(make_node):
    node = make_node(
        *("--kv", "0.0.0.0:0", "--http", "0.0.0.0:0", "--advertise", "localhost"),
        *("--tls-cert", str(TLS / "node.pem"), "--user", "ada:secret"),
    ).start()
    trust = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    port = node.kv[1]
    who = {"user": "ada", "password": "secret", "bucket": "default"}
    with Connection("localhost", port, tls=trust, **who) as connection:
        config = json.loads(connection.request(0xB5).value)
    assert config["nodesExt"][0]["hostname"] == "localhost"
    with pytest.raises(UnavailableError):
        Connection("localhost", port, timeout_s=60, **who)
    http = f"https://localhost:{node.address('http')[1]}"
    with urllib.request.urlopen(f"{http}/_up", timeout=60, context=trust) as answer:
        assert answer.status == 200
    page = f"{http}/_millstream/security"
    assert call(page, "GET", "", login=("eve", "guessed"), tls=trust)[0] == 401
    told = call(page, "GET", "", login=("ada", "secret"), tls=trust)[1]
    assert [(one["name"], one["count"]) for one in told["failed_logins"]] == [("eve", 1)]
    assert {one["listener"] for one in told["certificates"]} >= {"http", "kv"}
    assert all(one["ends_ms"] > time.time_ns() // 10**6 for one in told["certificates"])
    assert all(one["subject"] for one in told["certificates"])
    environment = {**os.environ, "MILLSTREAM_PASSWORD": "secret"}
    status = subprocess.run(
        [sys.executable, "-m", "millstream", "status", "--connect", f"localhost:{port}",
         "--user", "ada", "--tls-ca", str(TLS / "authority.pem")],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert status.returncode == 0, status.stderr
    assert node.stop() == 0


def test_a_node_runs_on_when_nobody_reads_its_ready_line(tmp_path):
    port = free_port()
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(
        [sys.executable, "-m", "millstream", "serve", "--data", str(tmp_path / "d"),
         "--kv", f"127.0.0.1:{port}", *CLOSED],
        stdout=write, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        os.close(write)

        def answers():
            try:
                Connection("127.0.0.1", port, bucket="default").close()
            except UnavailableError:
                return False
            return True

        until(answers, lambda: "the node does not answer")
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in log
