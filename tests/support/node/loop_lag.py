"""How long the loop of a node's engine keeps a client waiting, measured from outside.

A process of its own sends NOOP after NOOP to the kv port. Of the time until an answer is there,
what the two processes waited for a processor is taken off: how busy the machine is hardly matters.
Threads of the engine that keep the interpreter's lock count in full.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Self

from support.node.node_process import NodeProcess

PROBE = """
import select, socket, sys, time

host, port, engine = sys.argv[1], int(sys.argv[2]), sys.argv[3]
noop = b"\\x80\\x0a" + bytes(22)
client = socket.create_connection((host, port))
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
waits = [open(path, "rb", buffering=0) for path in (engine, "/proc/thread-self/schedstat")]

def waited_ns():
    total = 0
    for file in waits:
        file.seek(0)
        total += int(file.read().split()[1])
    return total

longest_ns = 0
while True:
    before_ns, began_ns = waited_ns(), time.perf_counter_ns()
    client.sendall(noop)
    left = len(noop)
    while left:
        left -= len(client.recv(left))
    took_ns = time.perf_counter_ns() - began_ns
    longest_ns = max(longest_ns, took_ns - (waited_ns() - before_ns))
    if select.select([0], [], [], 0.0005)[0]:
        if not sys.stdin.readline():
            break
        print(longest_ns / 1e6, flush=True)
        longest_ns = 0
"""


class LoopLag:
    """Measures from when it is made until it is left."""

    def __init__(self, node: NodeProcess) -> None:
        family = [Path(f"/proc/{pid}") for pid in node.pids()]
        engine = next(one for one in family if "engine_process" in (one / "cmdline").read_text())
        main_thread = engine / "task" / engine.name / "schedstat"
        command = [sys.executable, "-c", PROBE, *map(str, node.kv), str(main_thread)]
        self._probe = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.longest_ms()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._probe.kill()
        self._probe.communicate()

    def longest_ms(self) -> float:
        """Return the longest wait since this was asked last."""
        assert self._probe.stdin is not None
        assert self._probe.stdout is not None
        self._probe.stdin.write("\n")
        self._probe.stdin.flush()
        return float(self._probe.stdout.readline())
