"""A client that only wants to be served while others are attacked, or attack.

Invariants:
1. It asks for one document over and over on a connection of its own; every answer is right.
2. Meanwhile it looks at the memory of the node.
"""

from __future__ import annotations

import threading
import time
from typing import Self

from support.http.raw_http import RawHttp
from support.node.node_process import NodeProcess

PAUSE_S = 0.02


class Bystander:
    """From `with` on it asks; at the end it raises what went wrong.

    Args:
        node: that serves it.
        path: of the document.
        body: that has to come back.
    """

    def __init__(self, node: NodeProcess, path: str, body: bytes) -> None:
        self._node, self._path, self._body = node, path, body
        self._before = node.resident_bytes()
        self._most = self._before
        self._ends = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.answers = 0
        self.slowest_s = 0.0

    @property
    def growth_bytes(self) -> int:
        """How much more memory the node had at its most than before."""
        return self._most - self._before

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        if self._error is not None:
            raise AssertionError(f"another client was not served: {self._error!r}")

    def _run(self) -> None:
        try:
            with RawHttp(self._node.address("http")) as client:
                while True:
                    started = time.monotonic()
                    answer = client.ask("GET", self._path)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                    assert answer.body == self._body, answer
                    self.answers += 1
                    self._most = max(self._most, self._node.resident_bytes())
                    if self._ends.wait(PAUSE_S):
                        return
        except BaseException as error:  # noqa: BLE001 - told where the test waits for it
            self._error = error
