"""What a stand-in knows of namespaces: each thing of `workloads`, honest or not.

Elsewhere: registers, and connections (`stand_in`).
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

__all__ = ["TREE_LIES", "Refusal", "Tree"]

TREE_LIES = (
    "two holders", "lock lost", "counted twice", "lost item", "item for two", "torn", "missed",
)  # fmt: skip
"""Of locks, of counters and sequences, of queues, of transactions, of subscriptions."""


class Refusal(Exception):
    """What is asked for is refused with this line."""


class Tree:
    """Elements without rights, time, or kinds; `lies` says when `lie` is to be told.

    Who calls counts `version`.
    """

    def __init__(self, lie: str, lies: Callable[[], bool]) -> None:
        self.lie, self.lies, self.version = lie, lies, 0
        self.values: dict[str, tuple[str, str]] = {}
        self.holders: dict[str, tuple[str, str]] = {}
        self.listeners: dict[str, list[Callable[[Any], None]]] = {}
        self.numbers: dict[str, int] = {}
        self.items: dict[str, list[list[Any]]] = {}
        """Of a queue: id, value, deliveries, who took it."""

    def run(self, session: str, words: list[str]) -> Any:
        """Do one command of a session; what it returns is an answer."""
        match words:
            case ("CREATENAMESPACE", _) | ("DELETE", _) | ("LOOKUP", _):
                return "OK"
            case ("CREATE", "BINARY", "EPHEMERAL", "SEQUENTIAL", path):
                return f"{path}{self._next(path) - 1:010d}"
            case ("CREATE", *_):
                return "OK"
            case ("COUNTER", "INC", path):
                return self._next(path)
            case ("COUNTER", "GET", path):
                return self.numbers.get(path, 0)
            case ("LOCK", "RELEASE", path):
                return self._release(session, path)
            case ("LOCK", "WRITE", path, "TOKEN", *more):
                return self._lock(session, path, waits=not more)
            case ("QUEUE", function, path, *more):
                return self._queue(session, function, path, more)
            case ("PUT", path, value, *more):
                return self._put(path, value, more)
            case ("GET", path, "CAS"):
                return [*self.values.get(path, ("0:0:0", ""))]
            case ("CHECK", path, "CAS", version):
                if self.values.get(path, ("0:0:0", ""))[0] != version:
                    raise Refusal("CHECK_FAILED it has another version")
                return "OK"
        raise Refusal("BADARG not understood")

    def end(self, session: str) -> None:
        """Give back what a session has."""
        self.holders = {path: one for path, one in self.holders.items() if one[0] != session}
        for item in (item for items in self.items.values() for item in items):
            item[3] = "" if item[3] == session else item[3]

    def listen(self, path: str, listener: Callable[[Any], None]) -> None:
        """Have this one told of what is put; of what was before it hears nothing."""
        self.listeners.setdefault(path, []).append(listener)
        listener(["subscribe", path, 1])
        listener(self._message(path, "start", ""))

    def _message(self, path: str, op: str, value: str) -> list[Any]:
        data = b64encode(value.encode()).decode()
        return ["message", path, json.dumps({"op": op, "lsn": self.version, "data": data})]

    def _tells(self, lie: str) -> bool:
        return self.lie == lie and self.lies()

    @property
    def _now(self) -> str:
        return f"0:1:{self.version}"

    def _next(self, path: str) -> int:
        self.numbers[path] = self.numbers.get(path, 0) + 1 + self._tells("counted twice")
        return self.numbers[path]

    def _lock(self, session: str, path: str, *, waits: bool) -> Any:
        holder = self.holders.get(path)
        if holder and holder[0] != session and not self._tells("two holders"):
            if waits:
                return ["PENDING", path]
            raise Refusal("LOCKED")
        if holder is None or holder[0] != session:
            self.holders[path] = session, self._now
        return ["OK", self.holders[path][1]]

    def _release(self, session: str, path: str) -> str:
        if self.holders.get(path, ("", ""))[0] != session:
            raise Refusal("NOTHELD")
        del self.holders[path]
        return "OK"

    def _put(self, path: str, value: str, more: list[str]) -> str:
        is_current = not more or self.holders.get(path, ("", ""))[1] == more[1]
        if self.lie == "lock lost":
            self.holders.pop(path, None)
        if not is_current and self.lie != "lock lost":
            raise Refusal("FENCED")
        if not self._tells("torn"):
            self.values[path] = self._now, value
        for listener in () if self._tells("missed") else self.listeners.get(path, ()):
            listener(self._message(path, "put", value))
        return "OK"

    def _queue(self, session: str, function: str, path: str, more: list[str]) -> Any:
        items = self.items.setdefault(path, [])
        mine = [item for item in items if item[3] == session and item[0] in more]
        match function:
            case "PUSH":
                if not self._tells("lost item"):
                    items.append([f"{self._now}:0", more[0], 0, ""])
                return [f"{self._now}:0"]
            case "TAKE":
                is_free = [item for item in items if not item[3] or self._tells("item for two")]
                for item in is_free[: int(more[0])]:
                    item[2:] = item[2] + (not item[3]), session
                return [item[:3] for item in is_free[: int(more[0])]]
            case "ACK":
                items[:] = [item for item in items if item not in mine]
            case "NACK":
                for item in mine:
                    item[3] = ""
            case "LEN":
                taken = sum(bool(item[3]) for item in items)
                return [len(items) - taken, taken]
            case "PEEK":
                return [item[1] for item in items]
        return len(mine)
