"""`cli.coordination.shell_requests`: which connection is asked, over false ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream.cli.connect import Who
from millstream.cli.coordination import shell_requests as shell_asking
from millstream.cli.coordination.shell_requests import Asking
from millstream.coordination.core.shell.replies import Reply

OK, PENDING = Reply(b"+", b"OK"), Reply(b"+", b"PENDING")
SESSION = Reply(b"%", b"", (Reply(b"$", b"csn"), Reply(b":", b"4")))


class FalseLink:
    """Answers as `script` says for its port."""

    made: list[FalseLink]
    script: Callable[[int, tuple[bytes, ...]], Reply]

    def __init__(self, address: str, who: Who, *_: Any) -> None:
        self.port, self.who = int(address.rpartition(":")[2]), who
        self.pending, self.is_lost = dict[Any, int](), False
        self.asked: list[tuple[bytes, ...]] = []
        FalseLink.made.append(self)

    def say(
        self, words: Sequence[bytes], has_all: Callable[[list[Reply]], bool] = bool
    ) -> list[Reply]:
        self.asked.append(tuple(words))
        found = [FalseLink.script(self.port, tuple(words))]
        while not has_all(found) and len(found) < 9:
            found.append(FalseLink.script(self.port, tuple(words)))
        return found

    def close(self) -> None:
        self.is_lost = True


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asking]:
    monkeypatch.setattr(shell_asking, "Coordination", FalseLink)
    monkeypatch.setattr(shell_asking, "_PAUSE_S", 0.0)
    FalseLink.made = []

    def make(script: Callable[[int, tuple[bytes, ...]], Reply], who: Who | None = None) -> Asking:
        FalseLink.script = staticmethod(script)
        return Asking("h:1", who or Who(None, ""), None, lambda _: None)

    return make


def asked(port: int) -> list[bytes]:
    return [
        b" ".join(words) for link in FalseLink.made if link.port == port for words in link.asked
    ]


def test_a_namespace_is_asked_for_where_its_group_is_led(ask: Callable[..., Asking]) -> None:
    def script(port: int, words: tuple[bytes, ...]) -> Reply:
        is_here = port == (2 if words[1].startswith(b"/b") else 1)
        return OK if is_here else Reply(b"-", b"NOTPRIMARY 2 0:1 h:2")

    asking = ask(script)
    for line in ("PUT /a x", "PUT /b/c x", "PUT /b y", "PUT /a y"):
        assert asking.ask(line.encode().split()) == [OK]
    assert asked(1) == [b"PUT /a x", b"PUT /b/c x", b"PUT /a y"]
    assert asked(2) == [b"PUT /b/c x", b"PUT /b y"]
    asking.close()
    assert asked(2)[-1] == b"SESSION CLOSE NAMESPACE /b"
    assert all(link.is_lost for link in FalseLink.made)


def test_a_transaction_stays_on_its_connection(ask: Callable[..., Asking]) -> None:
    def script(_: int, words: tuple[bytes, ...]) -> Reply:
        return Reply(b"-", b"NOTPRIMARY 2 0:1 h:2") if words[0] == b"EXEC" else OK

    asking = ask(script)
    for line in ("MULTI", "LOCK /a", "EXEC"):
        found = asking.ask(line.encode().split())
    assert found[0].is_error
    assert asked(1) == [b"MULTI", b"LOCK /a", b"EXEC"]


def test_what_waits_is_repeated_with_its_number(ask: Callable[..., Asking]) -> None:
    answers = [PENDING, PENDING, OK, OK]

    def script(_: int, words: tuple[bytes, ...]) -> Reply:
        if words[:2] == (b"SESSION", b"INFO"):
            return Reply(b"-", b"SESSIONEXPIRED there is none")
        if words[0] == b"SESSION":
            return SESSION
        return answers.pop(0) if words[0] == b"CSN" else OK

    asking, words = ask(script), (b"LOCK", b"/a/b")
    assert asking.ask(words) == [PENDING]
    assert asking.wait(words)
    assert asking.ask(words) == [OK]
    assert asked(1)[:2] == [b"SESSION INFO NAMESPACE /a", b"SESSION OPEN NAMESPACE /a"]
    assert asked(1)[2:] == [b"CSN 5 LOCK /a/b"] * 4


def test_confirmations_of_subscriptions_are_counted(ask: Callable[..., Asking]) -> None:
    confirmed = Reply(
        b">", b"", (Reply(b"$", b"subscribe"), Reply(b"$", b"/a"), Reply(b":", b"1"))
    )
    asking = ask(lambda _, words: confirmed if words[0] == b"SUBSCRIBE" else OK)
    assert len(asking.ask(b"SUBSCRIBE /a /b TREE MODE DATA".split())) == 2


def test_who_logs_in(ask: Callable[..., Asking]) -> None:
    asking = ask(lambda *_: OK, Who("ada", "x y"))
    assert FalseLink.made[0].who == Who("ada", "x y")
    asking.ask(b"AUTH bob z".split())
    asking.ask([b"RESET"])
    asking.ask([b"PING"])
    assert FalseLink.made[1].who == Who("bob", "z")
