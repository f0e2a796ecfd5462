import json
import os
import signal
import sys

import pytest

PROGRAM = """
import logging, msgspec, sys
from millstream.node.processes.child_start import run_child, stop_signal

class Order(msgspec.Struct):
    parent_pid: int
    log_level: str = "info"
    log_json: bool = False
    more: int = 1
    loud: int = 0

async def run(order, tell):
    stop = stop_signal()
    print("a stray print")
    for _ in range(order.loud):
        logging.getLogger("millstream.loud").warning("\\x01" * 3000)
    tell({"event": "ready"})
    for _ in range(order.more):
        tell({"event": "more"})
    await stop.wait()
    return 7

sys.exit(run_child(Order, run))
"""


@pytest.fixture
def start(launch):
    def run(line):
        return launch([sys.executable, "-c", PROGRAM], line)

    return run


def order(parent_pid, **more):
    return json.dumps({"parent_pid": parent_pid, **more}).encode() + b"\n"


def test_it_says_what_it_has_to_say_and_nothing_else(start):
    process = start(order(os.getpid()))
    assert json.loads(process.stdout.readline()) == {"event": "ready"}
    assert json.loads(process.stdout.readline()) == {"event": "more"}
    process.send_signal(signal.SIGINT)  # is for who started it
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 7
    assert process.stdout.read() == b""
    assert b"a stray print" in process.stderr.read()


def test_it_ends_with_the_pipe_of_who_started_it(start):
    process = start(order(os.getpid()))
    assert process.stdout.readline()
    process.stdin.close()
    process.stdin = None
    assert process.wait(60) == 1


def test_it_runs_for_nobody_else(start):
    assert start(order(1)).wait(60) == 1


def test_without_an_order_it_ends(start):
    process = start(b"")
    process.stdin.close()
    process.stdin = None
    assert process.wait(60) == 1


def test_who_does_not_listen_holds_it_up_in_nothing(start):
    process = start(order(os.getpid(), more=100_000))
    assert json.loads(process.stdout.readline()) == {"event": "ready"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 7


def test_long_lines_of_its_log_spoil_no_other_line(start):
    process = start(order(os.getpid(), loud=8, more=0))
    loud = 0
    while loud < 8:  # its pipe is not read meanwhile
        loud += b"loud" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 7
    events = [json.loads(line) for line in process.stdout]
    assert [one["event"] for one in events] == ["log"] * 8 + ["ready"]
    assert (events[0]["level"], events[0]["logger"]) == ("warning", "loud")
    assert set(events[0]["text"]) == {"\x01"}
