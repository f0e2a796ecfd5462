import json
import os
import signal
import sys
import threading

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.node.processes import engines as several
from millstream.node.processes import supervisor as supervise
from millstream.node.processes.engines import Engines, run_node
from millstream.node.settings import load_settings

ENGINE = """
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
order = json.loads(sys.stdin.readline())
settings = order["settings"]
number = settings["engine"]
with open("{runs}", "a") as file:
    file.write(json.dumps([number, settings["join"], os.environ["MILLSTREAM_LOG_LABEL"]]) + "\\n")
listeners = {name: settings[name] for name in ("kv", "http", "coord", "peer")}
listeners = {name: f"{at[0]}:{at[1]}" for name, at in listeners.items()}
def ready():
    print(json.dumps({"event": "ready", "listeners": listeners}), flush=True)
{body}
signal.sigwait([signal.SIGTERM])
"""


class Run:
    def __init__(self, tmp_path, body="ready()", count=2, make_cluster=None, **given):
        self.runs_file = tmp_path / "runs"
        self.runs_file.touch()
        program = ENGINE.replace("{runs}", str(self.runs_file)).replace("{body}", body)
        self.announced, self.formed = [], []
        given |= {"data": str(tmp_path / "data"), "port-base": 21000, "engines": count}
        self.engines = Engines(
            load_settings(given, {}),
            announce=self.announce,
            command=(sys.executable, "-c", program),
            make_cluster=make_cluster or self.form,
        )

    def form(self, clients, settings):
        self.formed.append([client.address for client in clients])

    def announce(self, line):
        self.announced.append(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)

    def runs(self):
        return [json.loads(line) for line in self.runs_file.read_text().splitlines()]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(supervise, "_BACKOFF_S", (0.0,) * 5)
    monkeypatch.setattr(several, "set_up_logs", lambda *_, **__: None)


def test_engines_are_one_cluster_before_they_are_announced_and_stop_together(tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    run = Run(tmp_path)
    assert run.engines.run() == 0
    assert signal.getsignal(signal.SIGTERM) is handler
    assert run.formed == [["127.0.0.1:21002", "127.0.0.1:21102"]]
    (ready,) = run.announced
    assert (ready["kv"], ready["pid"]) == ("127.0.0.1:21000", os.getpid())
    assert [one["kv"] for one in ready["engines"]] == ["127.0.0.1:21000", "127.0.0.1:21100"]
    assert [one["data"] for one in ready["engines"]] == [
        str(tmp_path / "data"), str(tmp_path / "data" / "engine-2")
    ]  # fmt: skip


def test_the_others_coordinate_with_engine_1_and_logs_tell_them_apart(tmp_path):
    run = Run(tmp_path)
    run.engines.run()
    assert run.runs() == [[1, None, "engine-1"], [2, ["127.0.0.1", 21005], "engine-2"]]


def test_engines_that_join_another_cluster_coordinate_with_that_one(tmp_path):
    run = Run(tmp_path, join="other:1")
    run.engines.run()
    assert [join for _, join, _ in run.runs()] == [None, None]


def test_an_engine_that_dies_is_started_again_and_the_others_go_on(tmp_path):
    run = Run(tmp_path)

    def announce(_):
        def kill():
            os.kill(run.engines._engines[2]._engine.pid, signal.SIGKILL)
            while [number for number, *_ in run.runs()].count(2) < 2:
                again.wait(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        again = threading.Event()
        threading.Thread(target=kill).start()

    run.engines._announce = announce
    assert run.engines.run() == 0
    assert sorted(number for number, *_ in run.runs()) == [1, 2, 2]


def test_all_are_stopped_when_one_gives_up(tmp_path):
    run = Run(tmp_path, "ready()\nif number == 2: sys.exit(4)")
    run.engines._announce = run.announced.append
    with pytest.raises(UnavailableError, match="engine 2 ended with code 4; it was started again"):
        run.engines.run()
    assert sorted(number for number, *_ in run.runs()) == [1] + [2] * 6


def test_an_engine_that_cannot_start_stops_all_and_says_why(tmp_path):
    said = 'print(json.dumps({"event": "error", "message": "no", "is_usage": 1, "is_final": 0}))'
    run = Run(tmp_path, f"if number == 2:\n    {said}\n    sys.exit(1)\nready()")
    with pytest.raises(UsageError, match=r"^no$"):
        run.engines.run()
    assert run.announced == []


def test_engines_that_are_no_cluster_are_stopped(tmp_path):
    def refuse(*_):
        raise UnavailableError("the cluster refuses them")

    run = Run(tmp_path, make_cluster=refuse)
    with pytest.raises(UnavailableError, match="the cluster refuses them"):
        run.engines.run()
    assert run.announced == []


def test_a_mistake_leaves_no_engine_behind(tmp_path, monkeypatch):
    run = Run(tmp_path)

    def announce(_):
        raise ValueError("a mistake")

    run.engines._announce = announce
    with pytest.raises(ValueError, match="a mistake"):
        run.engines.run()
    assert not any(thread.name.startswith("engine ") for thread in threading.enumerate())


def test_a_signal_before_they_are_a_cluster_is_a_clean_stop(tmp_path):
    def form(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        raise UnavailableError("the engines are gone")

    run = Run(tmp_path, make_cluster=form)
    assert run.engines.run() == 0
    assert run.announced == []


def test_a_second_signal_kills_engines_that_do_not_end(tmp_path):
    run = Run(tmp_path, "ready()\nsignal.sigwait([signal.SIGUSR1])")

    def announce(_):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    run.engines._announce = announce
    assert run.engines.run() == 0


def test_a_directory_with_more_engines_than_asked_for_is_not_touched(tmp_path):
    (tmp_path / "engine-2").mkdir()
    with pytest.raises(UsageError, match="--engines 2"):
        run_node(load_settings({"data": str(tmp_path)}, {}), announce=print)
    assert [one.name for one in tmp_path.iterdir()] == ["engine-2"]
