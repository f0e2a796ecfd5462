"""ADMIN USER: what is understood, who may, and that no password is ever said."""

import pytest

from millstream.coordination.core.backend import UserChange
from support.coordination.coordination_backend import FakeGuard, FrontClient


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("bob PASSWORD pw", UserChange("bob", "pw")),
        ("bob password roles", UserChange("bob", "roles")),
        ("bob ROLES read:b write:b", UserChange("bob", None, ("read:b", "write:b"))),
        ("bob GROUPS ROLES", UserChange("bob", None, (), ())),
        ("bob GROUPS a b PASSWORD x", UserChange("bob", "x", None, ("a", "b"))),
        ("bob", UserChange("bob")),
    ],
)
def test_what_is_said_of_a_user(words: str, change: UserChange) -> None:
    client = FrontClient()
    assert client.say(f"ADMIN USER SET {words}") == "+OK\r\n"
    assert client.guard.changes == [change]


@pytest.mark.parametrize(
    "words",
    [
        "", "SET", "SET bob x", "SET bob PASSWORD", "SET bob PASSWORD s3cret more",
        "SET bob PASSWORD s3cret PASSWORD s3cret", "SET bob ROLES a ROLES b", "DEL", "DEL a b",
        "LIST x", "GET x",
    ],
)  # fmt: skip
def test_what_makes_no_sense(words: str) -> None:
    client = FrontClient()
    said = client.say(f"ADMIN USER {words}")
    assert said.startswith("-BADARG")
    assert "s3cret" not in said
    assert client.guard.changes == []


def test_others_than_administrators_may_not() -> None:
    client = FrontClient(guard=FakeGuard({"ada": ("pw", True), "bob": ("pw", False)}))
    for words in ("SET bob ROLES admin", "DEL ada", "LIST"):
        client.say("RESET")
        assert client.say(f"ADMIN USER {words}").startswith("-NOAUTH")
        assert client.say("AUTH bob pw", f"ADMIN USER {words}").startswith("+OK\r\n-NOPERM")
    assert client.say("AUTH ada pw", "ADMIN USER DEL bob", "ADMIN USER LIST").endswith("*0\r\n")
    assert client.guard.changes == ["bob"]


def test_no_password_is_said_in_a_transaction() -> None:
    client = FrontClient()
    client.say("MULTI")
    for words in (
        "ADMIN USER SET bob PASSWORD s3cret",
        "AUTH bob s3cret",
        "HELLO 3 AUTH a s3cret",
    ):
        assert "s3cret" not in client.say(words)
    assert "s3cret" not in client.say("EXEC")
    assert client.guard.changes == []
