import json
import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.node.processes import supervisor as supervise
from millstream.node.processes.supervisor import Supervisor, console_address, ready_line
from millstream.runtime import logs
from millstream.runtime.logs import KeptLines, set_up_logs

ENGINE = """
import json, os, signal, sys, threading
order = json.loads(sys.stdin.readline())
def say(**event):
    print(json.dumps(event), flush=True)
runs = "{runs}"
with open(runs, "a") as file:
    file.write(json.dumps(order["settings"]["kv"]) + "\\n")
run = len(open(runs).readlines())
{body}
"""
READY = 'say(event="ready", listeners={"kv": "127.0.0.1:7", "http": None})\n'
WAIT = "signal.sigwait([signal.SIGTERM])\n"
BLOCK = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"


@pytest.fixture
def make(make_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "_BACKOFF_S", (0.0,) * 5)
    monkeypatch.setattr(supervise, "set_up_logs", lambda *_, **__: None)
    made = []

    def supervisor(body, announce=made.append):
        (tmp_path / "runs").touch()
        program = ENGINE.replace("{runs}", str(tmp_path / "runs")).replace("{body}", body)
        return Supervisor(
            make_settings(), announce=announce, command=(sys.executable, "-c", program)
        )

    supervisor.announced = made
    supervisor.runs = lambda: (tmp_path / "runs").read_text().splitlines()
    return supervisor


def stop_me(_):
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_ready_line_has_all_listeners_in_order():
    line = json.loads(ready_line({"http": "h:1", "kv": "k:1"}))
    assert list(line) == ["event", "pid", "kv", "memcached", "http", "coord", "ninep", "peer"]
    assert line["pid"] == os.getpid()
    assert line["memcached"] is None


def test_a_signal_stops_the_engine_and_ends_with_0(make):
    handler = signal.getsignal(signal.SIGTERM)
    assert make(BLOCK + READY + WAIT, announce=stop_me).run() == 0
    assert signal.getsignal(signal.SIGTERM) is handler
    assert make.runs() == ['["127.0.0.1", 0]']


def test_no_signal_is_lost_in_a_call_that_waits_for_the_engine_alone(make, monkeypatch):
    """One that came just before such a call was not heard of until the engine ended by itself."""
    look = subprocess.Popen._try_wait

    def try_wait(self, options):
        assert options & os.WNOHANG, "a call that only the engine's end ends"
        return look(self, options)

    monkeypatch.setattr(subprocess.Popen, "_try_wait", try_wait)
    assert make(BLOCK + READY + WAIT, announce=stop_me).run() == 0


def test_a_dead_engine_is_started_again_on_its_ports_until_it_is_enough(make):
    with pytest.raises(UnavailableError, match="ended with code 4; it was started again 5 times"):
        make(READY + "sys.exit(4)").run()
    assert len(make.announced) == 1
    assert make.runs() == ['["127.0.0.1", 0]'] + ['["127.0.0.1", 7]'] * 5


@pytest.mark.parametrize("body", ["", WAIT])
def test_an_engine_whose_disk_failed_is_not_started_again(make, body):
    """Nor is the stop a clean one if the disk failed meanwhile."""
    announce = stop_me if body else lambda _: None
    with pytest.raises(UnavailableError, match="repair it") as raised:
        make(BLOCK + READY + body + "sys.exit(3)", announce=announce).run()
    assert raised.value.code == "disk_failed"
    assert len(make.runs()) == 1


def test_a_killed_engine_is_named_by_its_signal(make):
    with pytest.raises(UnavailableError, match="killed by signal 9"):
        make(READY + "os.kill(os.getpid(), 9)").run()


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"is_usage": True, "is_final": True}, UsageError),
        ({"is_usage": False, "is_final": True}, CorruptionError),
        ({"is_usage": False, "is_final": False}, UnavailableError),
    ],
)
def test_an_engine_that_cannot_start_says_why_once(make, event, error):
    say = f'say(event="error", message="no such luck", **{event})'
    with pytest.raises(error, match="no such luck"):
        make(say).run()
    assert len(make.runs()) == 1
    assert make.announced == []


@pytest.mark.parametrize("body", ["sys.exit(1)", "print('nonsense')", "print('[]')"])
def test_an_engine_that_says_nothing_is_an_error(make, body):
    with pytest.raises(UnavailableError, match="the engine"):
        make(body).run()
    assert len(make.runs()) == 1


def test_an_engine_that_ended_before_it_was_told_anything_is_named(make, monkeypatch):
    popen = supervise.subprocess.Popen

    def ended(*args, **options):
        engine = popen(*args, **options)
        engine.kill()
        engine.wait()
        return engine

    monkeypatch.setattr(supervise.subprocess, "Popen", ended)
    with pytest.raises(UnavailableError, match="killed by signal 9"):
        make("").run()


def test_damage_found_by_a_restart_ends_it(make):
    body = (
        f"if run == 1:\n    {READY}    sys.exit(4)\n"
        'say(event="error", message="damaged", is_usage=False, is_final=True)'
    )
    with pytest.raises(CorruptionError, match="damaged"):
        make(body).run()
    assert len(make.runs()) == 2


def test_a_second_signal_kills_an_engine_that_does_not_stop(make):
    def announce(_):
        stop_me(_)
        stop_me(_)

    assert make(BLOCK + READY + "threading.Event().wait()", announce=announce).run() == 0


def test_an_engine_that_takes_too_long_to_stop_is_killed(make, monkeypatch):
    monkeypatch.setattr(supervise, "STOP_SECONDS", 1)
    assert make(BLOCK + READY + "threading.Event().wait()", announce=stop_me).run() == 0


def test_a_signal_ends_the_wait_before_a_restart(make, monkeypatch):
    monkeypatch.setattr(supervise, "_BACKOFF_S", (60.0,) * 5)
    timers = []

    def log(*_):
        timers.append(threading.Timer(0.05, stop_me, [None]))
        timers[-1].start()

    monkeypatch.setattr(supervise._LOG, "error", log)
    assert make(READY).run() == 0
    timers[0].join()


def test_an_engine_that_is_started_again_is_told_why(make, tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "set_up_logs", set_up_logs)
    kept = KeptLines()
    for module in (supervise, logs):
        monkeypatch.setattr(module, "RECENT", kept)
    body = (
        READY + f"json.dump(order['lines'], open('{tmp_path}/lines', 'w'))\n"
        "os._exit(9) if run == 1 else os.kill(order['supervisor_pid'], signal.SIGTERM)\n" + WAIT
    )
    before = logging.getLogger().handlers[:]
    try:
        make(body).run()
    finally:
        logging.getLogger().handlers[:] = before
    lines = json.loads((tmp_path / "lines").read_text())
    assert {line[2] for line in lines} == {"supervisor"}
    assert any("code 9" in line[5] for line in lines), lines


def test_the_console_is_where_the_pages_are(make_settings):
    settings = make_settings()
    assert console_address(settings, None) is None
    assert console_address(settings, "127.0.0.1:8091") == "http://127.0.0.1:8091/_console/"
    everywhere = replace(settings, advertise="node.example", tls_cert="cert.pem")
    assert console_address(everywhere, "0.0.0.0:8091") == "https://node.example:8091/_console/"
