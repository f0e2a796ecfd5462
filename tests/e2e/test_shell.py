"""`millstream shell` against a node: V2R2's examples as they are printed there, scripts, a prompt.

Where this differs from the paper, docs/reference/shell.md says so.
"""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time

import pytest

from support.coordination.said_in_shell import Said, address, exchanges
from support.node.node_process import FREE, NodeProcess
from support.node.waiting import until

WAIT_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    made = NodeProcess(tmp_path_factory.mktemp("shell") / "n", "--coord", FREE, "--peer", FREE)
    with Said(made.start()) as said:
        for name in ("myroot", "mynamespace/app/data/record", "myroot/app"):
            root, *below = name.split("/")
            said.say(f"CREATENAMESPACE /{root}")
            if below:
                said.say(f'CREATE BINARY PARENTS /{name} "These are not the doors"')
    yield made
    made.kill()


EXAMPLES = {
    "read on a replica": """
v2r2> GET /mynamespace/app/data/record STALEREAD
"These are not the doors"
""",
    "heartbeats": """
v2r2> CONFIG GET /myroot NAMESPACE.SESSION.HEARTBEAT.DURATION
NAMESPACE.SESSION.HEARTBEAT.DURATION: 10000 ms
v2r2> CONFIG SET /myroot NAMESPACE.SESSION.HEARTBEAT.DURATION 3 seconds
OK
v2r2> CONFIG GET /myroot NAMESPACE.SESSION.HEARTBEAT.DURATION
NAMESPACE.SESSION.HEARTBEAT.DURATION: 3000 ms
""",
    "CREATENAMESPACE": """
v2r2> CREATENAMESPACE /demo "Binary Data: Namespace create for demo"
OK
v2r2> CREATENAMESPACE /demo "Binary Data: Namespace create for demo"
EXISTS
""",
    "CREATE": """
v2r2> CREATE BINARY EPHEMERAL SEQUENTIAL /myroot/app/element "Binary data to be attached"
/myroot/app/element0000000000
v2r2> CREATE BINARY /myroot/app/element0000000000 "Duplicate Name"
EXISTS
""",
    "DELETE and MOVE": """
v2r2> CREATE BINARY PARENTS /myroot/move/a "1"
OK
v2r2> CREATE BINARY /myroot/move/b "2"
OK
v2r2> DELETE /myroot/move/none
ERROR_DOES_NOT_EXISTS /myroot/move/none
v2r2> MOVE /myroot/move/a /myroot/move/b
NAME_CONFLICT /myroot/move/b
v2r2> MOVE /myroot/move/a /myroot/move/b FORCE_MOVE
OK
v2r2> DELETE /myroot/move/b
OK
""",
    "GET": """
v2r2> GET /mynamespace/app/data/record
"These are not the doors"
v2r2> GET /mynamespace/app/data/record CAS
CAS: VERSION
"These are not the doors"
""",
    "LIST": """
v2r2> CREATE BINARY PARENTS /mynamespace/listed/data/aaa
OK
v2r2> CREATE BINARY /mynamespace/listed/data/abc
OK
v2r2> CREATE BINARY /mynamespace/listed/data/aab
OK
v2r2> LIST /mynamespace/listed/data/ COUNT 2
TOKEN: T
aaa
aab
v2r2> LIST /mynamespace/listed/data/ TOKEN YWFi
abc
""",
    "LOOKUP": """
v2r2> LOOKUP /mynamespace/app/data/record
OK
v2r2> LOOKUP /mynamespace/app/data/foo
NOTFOUND
/mynamespace/app/data
""",
    "SEMAPHORE": """
v2r2> CREATE BINARY PARENTS /mynamespace/semaphore
OK
v2r2> SEMAPHORE INIT 3  /mynamespace/semaphore
OK
v2r2> SEMAPHORE ACQUIRE /mynamespace/semaphore
OK
v2r2> SEMAPHORE RELEASE /mynamespace/semaphore
OK
v2r2> SEMAPHORE DESTROY /mynamespace/semaphore
OK
""",
    "COUNTER": """
v2r2> CREATE COUNTER /mynamespace/app/data/counter
OK
v2r2> CREATE COUNTER UNSIGNED BIT 2048 /mynamespace/app/data/unsigned
OK
v2r2> COUNTER INC /mynamespace/app/data/unsigned
1
v2r2> COUNTER DEC /mynamespace/app/data/unsigned
0
v2r2> COUNTER DEC /mynamespace/app/data/unsigned
0
NOWRAP
v2r2> COUNTER INC /mynamespace/app/data/counter
1
v2r2> COUNTER DEC /mynamespace/app/data/counter
0
v2r2> COUNTER INC 13 /mynamespace/app/data/counter
13
v2r2> COUNTER INC 13 /mynamespace/app/data/counter
26
v2r2> COUNTER RESET /mynamespace/app/data/counter
0
""",
    "transactions": """
v2r2> MULTI
OK
v2r2> CHECK /mynamespace/transaction ABSENT
QUEUED
v2r2> CREATE BINARY /mynamespace/transaction "x"
QUEUED
v2r2> GET /mynamespace/transaction
QUEUED
v2r2> EXEC
OK
OK
"x"
""",
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_printed_as_in_the_paper(node, name):
    with Said(node) as said:
        for line, expected in exchanges(EXAMPLES[name]):
            assert said.say(line) == expected, line


def test_put_with_the_version_that_get_has_shown(node):
    with Said(node) as said:
        said.say("CREATE BINARY PARENTS /mynamespace/put/record x")
        said.say("GET /mynamespace/put/record CAS")
        version = re.findall(r"CAS: (\S+)", said.out.getvalue().decode())[-1]
        put = f'PUT /mynamespace/put/record "They open like this" CAS {version}'
        assert said.say(put) == "OK\n"
        assert said.say(put).startswith("CAS_MISMATCH")


WAITS = {
    "LOCK": (
        ["LOCK /mynamespace/waited"],
        "LOCK READ /mynamespace/waited", ["PENDING"], ["LOCK RELEASE /mynamespace/waited"], "OK",
    ),
    "LOCK GROUP": (
        ["LOCK /mynamespace/waited/alice"],
        "LOCK READ GROUP /mynamespace/waited/alice /mynamespace/waited/bob",
        ["PENDING", "/mynamespace/waited/alice LOCKED"],
        ["LOCK RELEASE /mynamespace/waited/alice"], "OK",
    ),
    "SEMAPHORE": (
        ["SEMAPHORE INIT 1 /mynamespace/waited", "SEMAPHORE ACQUIRE /mynamespace/waited"],
        "SEMAPHORE ACQUIRE /mynamespace/waited", ["PENDING"],
        ["SEMAPHORE RELEASE /mynamespace/waited"], "OK",
    ),
    "SEMAPHORE DESTROY": (
        ["SEMAPHORE INIT 1 /mynamespace/waited", "SEMAPHORE ACQUIRE /mynamespace/waited"],
        "SEMAPHORE DESTROY /mynamespace/waited", ["PENDING"],
        ["SEMAPHORE RELEASE /mynamespace/waited"], "OK",
    ),
    "BARRIER": (
        ["BARRIER INIT 2 /mynamespace/waited"],
        "BARRIER WAIT /mynamespace/waited", ["PENDING"],
        ["BARRIER WAIT /mynamespace/waited"], "OK",
    ),
    "ELECT": (
        ["ELECT CAMPAIGN /mynamespace/waited"],
        "ELECT CAMPAIGN /mynamespace/waited x", ["PENDING"],
        ["ELECT RESIGN /mynamespace/waited"], "OK\nTOKEN: VERSION",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_who_waits_is_told_to_retry_and_then_gets_it(node, name):
    before, line, waiting, after, then = WAITS[name]
    with Said(node) as first, Said(node) as second:
        for path in ("", "/alice", "/bob"):
            assert first.say(f"CREATE BINARY /mynamespace/waited{path}") == "OK\n"
        for each in before:
            first.say(each)
        thread = threading.Thread(target=second.say, args=(line,))
        thread.start()
        until(lambda: second.text().splitlines() == waiting)
        assert [first.say(each) for each in after] in (["OK\n"], ["GO\n"])
        thread.join(WAIT_S)
        assert second.text().splitlines() == [*waiting, "RETRY"]
        assert second.say(line) == then + "\n"
    with Said(node) as third:
        assert third.say("DELETE /mynamespace/waited RECURSIVE") == "OK\n"


def test_barrier_of_the_paper_lets_four_sessions_go(node):
    """The paper prints GO for one that has waited; its text gives it to the last one, as here."""
    path = "/mynamespace/paper"
    with contextlib.ExitStack() as stack:
        first, *waiting = [stack.enter_context(Said(node)) for _ in range(4)]
        assert first.say(f"CREATE BINARY {path}") == "OK\n"
        assert first.say(f"BARRIER INIT 4 {path}") == "OK\n"
        threads = []
        for each in waiting:
            thread = threading.Thread(target=each.say, args=(f"BARRIER WAIT {path}",))
            thread.start()
            threads.append(thread)
            until(lambda said=each: said.text() == "PENDING\n")
        assert first.say(f"BARRIER WAIT {path}") == "GO\n"
        for each, thread in zip(waiting, threads, strict=True):
            thread.join(WAIT_S)
            assert each.text() == "PENDING\nRETRY\n"
            assert each.say(f"BARRIER WAIT {path}") == "OK\n"
        assert first.say(f"BARRIER DESTROY {path}") == "OK\n"
        assert first.say(f"DELETE {path}") == "OK\n"


def test_raw_output_is_what_the_wire_has(node):
    with Said(node, is_raw=True) as said:
        assert said.say("LOOKUP /mynamespace") == "+OK\r\n"
        assert said.say("GET /mynamespace/app/data/record") == "$23\r\nThese are not the doors\r\n"
        assert (
            said.say("LOOKUP /mynamespace/none")
            == "*2\r\n$8\r\nNOTFOUND\r\n$12\r\n/mynamespace\r\n"
        )
        assert said.say("NOSUCH").startswith("-UNKNOWN_COMMAND ")


def run(node, *options, stdin=b""):
    command = [sys.executable, "-m", "millstream", "shell", "--coord", address(node), *options]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=WAIT_S)


def test_scripts_end_with_their_first_error(node, tmp_path):
    script = tmp_path / "script"
    script.write_text('# a script\n\nECHO "a b"\nGET /none\nECHO never\n')
    done = run(node, str(script))
    assert (done.returncode, done.stdout) == (1, b'"a b"\nERROR_DOES_NOT_EXISTS /none\n')
    assert done.stderr == b"millstream: line 4: the node answers ERROR_DOES_NOT_EXISTS\n"
    done = run(node, stdin=b"CREATENAMESPACE /mynamespace\nEXIT\nECHO never\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"EXISTS\n", b"")
    done = run(node, stdin=b'ECHO "a\n')
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"line 1: a quote is not closed" in done.stderr


class Terminal:
    """A shell behind a pseudo-terminal."""

    def __init__(self, node, home):
        self.seen = b""
        self.master, slave = pty.openpty()
        environment = {**os.environ, "XDG_STATE_HOME": str(home), "TERM": "dumb"}
        command = [sys.executable, "-m", "millstream", "shell", "--coord", address(node)]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)

    def type(self, text, shown):
        """Type something and wait until `shown` is on the screen behind what was there."""
        begin = len(self.seen)
        os.write(self.master, text)
        ends = time.monotonic() + WAIT_S
        while shown not in self.seen[begin:]:
            assert time.monotonic() < ends, self.seen
            if select.select([self.master], [], [], 1)[0]:
                self.seen += os.read(self.master, 4096)

    def close(self):
        self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self.master)


def test_a_prompt_with_history_completion_and_what_is_told_meanwhile(node, tmp_path):
    terminal = Terminal(node, tmp_path)
    try:
        terminal.type(b"", b"v2r2> ")
        terminal.type(b"LOOK\t/mynames\t", b"LOOKUP /mynamespace")
        terminal.type(b"/app/da\t\n", b"OK\r\nv2r2> ")
        terminal.type(b"AUTH ada secret\n", b"v2r2> ")
        terminal.type(b"ECHO one\n", b'"one"\r\nv2r2> ')
        terminal.type(b"GET /none\n", b"ERROR_DOES_NOT_EXISTS /none\r\nv2r2> ")
        terminal.type(b"\x10\x10\n", b'"one"\r\nv2r2> ')
        terminal.type(b"SUBSCRIBE /mynamespace/app/data/record\n", b'"op":"start"')
        terminal.type(b"PI", b"PI")
        with Said(node) as other:
            other.say("PUT /mynamespace/app/data/record told")
            other.say('PUT /mynamespace/app/data/record "These are not the doors"')
        terminal.type(b"", b'"op":"put"')
        terminal.type(b"NG\n", b"PONG\r\nv2r2> ")
        terminal.type(b"\x04", b"\n")
        assert terminal.process.wait(WAIT_S) == 0
    finally:
        terminal.close()
    kept = (tmp_path / "millstream" / "shell_history").read_text()
    assert "LOOKUP /mynamespace/app/data" in kept
    assert "secret" not in kept
