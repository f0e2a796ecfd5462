"""redis-cli with one node."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import Any

from support.node.node_process import NodeProcess
from support.node.outside_program import outside_program
from support.node.waiting import WAIT_S, until

__all__ = ["RedisCli"]


class RedisCli:
    """redis-cli with the coordination port of a node; a test skips where it is not installed.

    Args:
        node: runs.
        options: further ones of redis-cli.
    """

    def __init__(self, node: NodeProcess, *options: str) -> None:
        host, port = node.address("coord")
        self._command = [outside_program("redis-cli"), "-h", host, "-p", str(port), *options]

    def say(self, *words: str) -> str:
        """Return what is printed for a command, errors too, without the end of the line."""
        command = [*self._command, *words]
        run = subprocess.run(command, capture_output=True, check=False, timeout=WAIT_S)
        return (run.stdout + run.stderr).decode().strip()

    def table(self, *words: str) -> Any:
        """Return what a command answers; it is asked again while that is a refusal: no JSON."""

        def answer() -> list[Any]:
            with contextlib.suppress(ValueError):
                return [json.loads(self.say("--json", "-3", *words))]
            return []

        return until(answer, lambda: self.say(*words))[0]

    def until_said(self, answer: str, *words: str) -> None:
        """Say a command until its answer has a text in it."""
        until(lambda: answer in self.say(*words), lambda: self.say(*words))
