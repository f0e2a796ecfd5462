"""The change stream of gocbcore, which go-dcp is built on: the program of `tests/sdks/go/dcp`.

It begins over HTTP alone, and opens a stream that ended where it was.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from support.node.sdk_client import END_S

_PROGRAM = Path(__file__).parents[2] / "sdks/go/build/dcp"


class SdkStream:
    """One running program.

    `values`: key -> the value last received; a key that was removed is not there. `seqnos`:
    partition -> those received, in order. `others`: what it said of its streams.
    """

    def __init__(self, http: list[str], login: tuple[str, str], bucket: str) -> None:
        if not _PROGRAM.exists():
            pytest.skip("gocbcore is not built here: make sdks")
        self.values: dict[str, Any] = {}
        self.seqnos: dict[int, list[int]] = {}
        self.others: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [str(_PROGRAM), ",".join(http), *login, bucket],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(END_S)
        self._reader.join(END_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:  # it fails
                self.others.append({"failed": line.decode(errors="replace")})
                continue
            if "seqno" in said:
                self.seqnos.setdefault(said["partition"], []).append(said["seqno"])
            if "key" in said:
                self.values[said["key"]] = said["value"]
            elif "removed" in said:
                self.values.pop(said["removed"], None)
            else:
                self.others.append(said)
