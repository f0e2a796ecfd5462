"""`cli.coordination.shell_requests`: which connection is asked, over false ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millstream.cli.connect import Who
from millstream.cli.coordination import shell_requests as shell_asking
from millstream.cli.coordination.shell_requests import Asking
from millstream.coordination.core.shell.replies import Reply
from millstream.errors import AccessError

OK, PENDING = Reply(b"+", b"OK"), Reply(b"+", b"PENDING")
SESSION = Reply(b"%", b"", (Reply(b"$", b"csn"), Reply(b":", b"4")))


class FalseLink:
    """Answers as `script` says for its port."""

    made: list[FalseLink]
    script: Callable[[int, tuple[bytes, ...]], Reply]

    def __init__(self, host: str, port: int, *_: Any) -> None:
        self.port, self.pending, self.is_lost = port, dict[Any, int](), False
        self.asked: list[tuple[bytes, ...]] = []
        FalseLink.made.append(self)

    def ask(self, words: Sequence[bytes], has_all: Callable[[list[Reply]], bool]) -> list[Reply]:
        self.asked.append(tuple(words))
        found = [FalseLink.script(self.port, tuple(words))]
        while not has_all(found) and len(found) < 9:
            found.append(FalseLink.script(self.port, tuple(words)))
        return found

    def close(self) -> None:
        self.is_lost = True


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asking]:
    monkeypatch.setattr(shell_asking, "Link", FalseLink)
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
        is_here = words[0] == b"HELLO" or port == (2 if words[1].startswith(b"/b") else 1)
        return OK if is_here else Reply(b"-", b"NOTPRIMARY 2 0:1 h:2")

    asking = ask(script)
    for line in ("PUT /a x", "PUT /b/c x", "PUT /b y", "PUT /a y"):
        assert asking.ask(line.encode().split()) == [OK]
    assert asked(1) == [b"HELLO 3", b"PUT /a x", b"PUT /b/c x", b"PUT /a y"]
    assert asked(2) == [b"HELLO 3", b"PUT /b/c x", b"PUT /b y"]
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
    assert asked(1) == [b"HELLO 3", b"MULTI", b"LOCK /a", b"EXEC"]


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
    assert asked(1)[1:3] == [b"SESSION INFO NAMESPACE /a", b"SESSION OPEN NAMESPACE /a"]
    assert asked(1)[3:] == [b"CSN 5 LOCK /a/b"] * 4


def test_confirmations_of_subscriptions_are_counted(ask: Callable[..., Asking]) -> None:
    confirmed = Reply(
        b">", b"", (Reply(b"$", b"subscribe"), Reply(b"$", b"/a"), Reply(b":", b"1"))
    )
    asking = ask(lambda _, words: confirmed if words[0] == b"SUBSCRIBE" else OK)
    assert len(asking.ask(b"SUBSCRIBE /a /b TREE MODE DATA".split())) == 2


def test_who_logs_in(ask: Callable[..., Asking]) -> None:
    asking = ask(lambda *_: OK, Who("ada", "x y"))
    assert FalseLink.made[0].asked == [(b"HELLO", b"3", b"AUTH", b"ada", b"x y")]
    asking.ask(b"AUTH bob z".split())
    asking.ask([b"RESET"])
    asking.ask([b"PING"])
    assert FalseLink.made[1].asked[0] == (b"HELLO", b"3", b"AUTH", b"bob", b"z")
    with pytest.raises(AccessError):
        ask(lambda *_: Reply(b"-", b"NOAUTH no"))
