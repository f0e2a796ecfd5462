"""A client program of `tests/sdks`: an official Couchbase SDK in another language.

Each program reads a command per line in JSON and answers each with a line: what was found, or
`error`, the kind of error by a name that all programs share, and `text`, the SDK's own words.
`make sdks` builds the programs.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

FOLDER = Path(__file__).parents[2] / "sdks"
LIMIT_S = 60
"""How long an SDK tries; its own limits."""
_ANSWER_S = 3 * LIMIT_S
"""Longest wait for an answer to a command, whatever the program says besides."""
END_S = 60
"""Longest wait for the end of a program that was killed."""

COMMANDS: dict[str, list[str]] = {
    "go": [str(FOLDER / "go/build/client")],
    "java": ["java", "-cp", f"{FOLDER}/java/build/classes:{FOLDER}/java/build/lib/*", "Client"],
    "node": ["node", str(FOLDER / "node/client.js")],
    "rust": [str(FOLDER / "rust/build/debug/sdk-client")],
}
_NOT_AVAILABLE = (
    "UNSUPPORTED", "not supported", "unknown command", "collections are not enabled",
    "Not allowed on this version of cluster",
)  # fmt: skip
"""What the node says in the words of an SDK that has no error of its own for it."""
_CANCELLED = "request cancelled: Closed in flight"
"""What the SDK for Rust says of a request whose connection ended, without an error of its own."""
_BUILT = {"java": "java/build/classes/Client.class", "node": "node/node_modules/couchbase"}


class SdkClient:
    """One running program; `sdk` is a key of `COMMANDS`."""

    def __init__(self, sdk: str) -> None:
        command = COMMANDS[sdk]
        built = FOLDER / _BUILT.get(sdk, command[0])
        if shutil.which(command[0]) is None or not built.exists():
            pytest.skip(f"the SDK for {sdk} is not built here: make sdks")
        self.sdk = sdk
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._said = b""
        self._got = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(END_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def connect(self, kv: tuple[str, int], login: tuple[str, str], **options: Any) -> None:
        """Connect to a node and wait until the cluster is ready."""
        self.do("connect", **self.at(kv, login), **options)

    def at(self, kv: tuple[str, int], login: tuple[str, str]) -> dict[str, Any]:
        """Return what a command `connect` needs."""
        host, port = kv
        return {"connection": f"couchbase://{host}:{port}", "user": login[0], "password": login[1]}

    def do(self, command: str, **words: Any) -> dict[str, Any]:
        """Perform a command that must succeed; return its answer."""
        answer = self.ask(command, **words)
        assert "error" not in answer, (self.sdk, command, words, answer)
        return answer

    def error(self, command: str, **words: Any) -> str:
        """Perform a command that must fail; return the kind of error."""
        answer = self.ask(command, **words)
        assert "error" in answer, (self.sdk, command, words, answer)
        kind = str(answer["error"])
        assert kind != "other", (self.sdk, command, words, answer)
        return kind

    def ask(self, command: str, **words: Any) -> dict[str, Any]:
        """Perform a command; return its answer, an error as well."""
        assert self._process.stdin is not None
        line = json.dumps({"do": command, "limit_s": LIMIT_S, **words})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line(command))
        if answer.get("error") == "other" and any(w in answer["text"] for w in _NOT_AVAILABLE):
            answer["error"] = "not_available"
        if answer.get("error") == "other" and _CANCELLED in answer["text"]:
            answer["error"] = "cancelled"
        return answer

    def _line(self, command: str) -> bytes:
        """Return the next line of the program, which may write as much as it likes to stderr."""
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        end = time.monotonic() + _ANSWER_S
        while b"\n" not in self._got:
            left_s = end - time.monotonic()
            ready = select.select([out, err], [], [], left_s)[0] if left_s > 0 else []
            assert ready, (
                f"{self.sdk}: no answer to {command} within {_ANSWER_S} s: {self._said!r}"
            )
            if err in ready:
                self._said = (self._said + os.read(err.fileno(), 65536))[-4000:]
            if out in ready:
                read = os.read(out.fileno(), 65536)
                assert read, (
                    f"{self.sdk} ended at {command}: {self._said.decode(errors='replace')}"
                )
                self._got += read
        line, _, self._got = self._got.partition(b"\n")
        return line
