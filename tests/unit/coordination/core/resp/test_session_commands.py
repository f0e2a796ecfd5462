"""Sessions are opened, moved by who knows the secret, shown and closed."""

import pytest

from millstream.coordination.core.resp.session import RespSession
from millstream.vsr.core.effects import Code
from support.coordination.coordination_backend import FakeGuard, FrontClient, RegisterBackend

INSTANCE = "ab" * 16
SECRET = "ab" * 16


def two_clients() -> tuple[FrontClient, FrontClient]:
    backend = RegisterBackend()
    attached: dict[tuple[int, int], RespSession] = {}
    return FrontClient(backend, attached=attached), FrontClient(backend, attached=attached)


def fields(shown: str) -> dict[str, str]:
    lines = [line for line in shown.split("\r\n")[1:] if line and not line.startswith("$")]
    return dict(zip(lines[::2], lines[1::2], strict=True))


def test_opening_shows_what_is_needed_to_go_on_elsewhere() -> None:
    client = FrontClient()
    opened = fields(client.say(f"SESSION OPEN INSTANCE {'cd' * 16} TTL 3000"))
    assert opened == {
        "client_id": f"{'cd' * 16}-1", "secret": SECRET, "ttl": ":3000", "csn": ":0"
    }  # fmt: skip
    client.say("SET k v")
    assert fields(client.say("SESSION INFO"))["csn"] == ":1"
    assert fields(client.say("session open"))["client_id"] == f"{INSTANCE}-3"


@pytest.mark.parametrize(("asked", "given"), [("1", ":500"), ("9999999", ":10000")])
def test_a_time_out_has_bounds(asked: str, given: str) -> None:
    assert fields(FrontClient().say(f"SESSION OPEN TTL {asked}"))["ttl"] == given


@pytest.mark.parametrize(
    "line",
    [
        "SESSION", "SESSION START", "SESSION OPEN TTL", "SESSION OPEN TTL x", "SESSION INFO x",
        "SESSION OPEN INSTANCE abc", "SESSION OPEN COLOUR red", "SESSION RESUME a b",
        "SESSION RESUME a", "SESSION LIST x", f"SESSION RESUME {INSTANCE}-x {SECRET}",
    ],
)  # fmt: skip
def test_other_words_are_refused(line: str) -> None:
    assert FrontClient().say(line).startswith("-BADARG")


@pytest.mark.parametrize("word", ["PING", "INFO", "CLOSE"])
def test_without_a_session_there_is_none(word: str) -> None:
    assert FrontClient().say(f"SESSION {word}").startswith("-SESSIONEXPIRED")


def test_a_session_moves_and_goes_on_counting() -> None:
    old, new = two_clients()
    old.say("SESSION OPEN", "SET k 1", "CSN 9 SET k 2")
    resumed = fields(new.say(f"SESSION RESUME {INSTANCE}-1 {SECRET}"))
    assert resumed == {"client_id": f"{INSTANCE}-1", "ttl": ":10000", "csn": ":9"}
    new.say("SET k 3")
    assert new.backend.asked[-1][3:] == (1, 10)
    for line in ("SET k v", "GET k", "SESSION PING", "CSN 1 SET k v"):
        assert old.say(line).startswith("-SESSIONMOVED")
    assert new.say("SESSION PING") == "+PONG\r\n"


def test_it_moves_when_that_is_asked_for_and_not_when_it_is_answered() -> None:
    old, new = two_clients()
    old.say("SESSION OPEN")
    old.backend.holds = True
    new.say(f"SESSION RESUME {INSTANCE}-1 {SECRET}", "SET k v")
    assert old.say("SET k v").startswith("-SESSIONMOVED")
    old.backend.holds = False
    old.backend.release(0)
    new.resp.advance()
    assert new.heard().endswith("+OK\r\n")


def test_who_does_not_know_the_secret_moves_nothing() -> None:
    old, new = two_clients()
    old.say("SESSION OPEN")
    assert new.say(f"SESSION RESUME {INSTANCE}-1 {'00' * 16}").startswith("-NOPERM")
    assert old.say("SET k v") == "+OK\r\n"


def test_closing_ends_it() -> None:
    old, new = two_clients()
    old.say("SESSION OPEN")
    assert old.say("SESSION CLOSE") == "+OK\r\n"
    assert old.say("SESSION PING").startswith("-SESSIONEXPIRED")
    assert new.say(f"SESSION RESUME {INSTANCE}-1 {SECRET}").startswith("-SESSIONEXPIRED")
    assert (old.backend.sessions, old.resp.attached) == ({}, {})


def test_what_cannot_be_done_leaves_the_session() -> None:
    client = FrontClient()
    client.say("SESSION OPEN")
    client.backend.code = Code.NOQUORUM
    assert client.say("SESSION CLOSE").startswith("-NOQUORUM")
    assert client.say("SESSION OPEN").startswith("-NOQUORUM")
    client.backend.code = Code.OK
    assert client.say("SESSION PING") == "+PONG\r\n"


def test_a_session_that_ended_is_not_replaced_by_itself() -> None:
    client = FrontClient()
    client.say("SESSION OPEN")
    client.backend.sessions.clear()
    assert client.say("CSN 3 SET k v").startswith("-SESSIONEXPIRED")
    assert client.say("CSN 3 SET k v").startswith("-SESSIONEXPIRED")
    client.say("SESSION OPEN")
    assert client.say("CSN 3 SET k v") == "+OK\r\n"


@pytest.mark.parametrize("line", ["SESSION CLOSE", f"SESSION RESUME {INSTANCE}-1 {SECRET}"])
def test_a_connection_that_is_gone_takes_no_session(line: str) -> None:
    client = FrontClient()
    client.say("SESSION OPEN")
    client.backend.holds = True
    client.say(line)
    client.resp.close()
    client.backend.release(0)
    assert (client.resp.sessions, client.resp.attached, client.heard()) == ({}, {}, "")


def test_a_connection_at_another_node_learns_that_its_session_moved() -> None:
    backend = RegisterBackend()
    old, new = FrontClient(backend, attached={}), FrontClient(backend, attached={})
    old.say("SESSION OPEN", "SET k 1")
    new.say(f"SESSION RESUME {INSTANCE}-1 {SECRET}", "SET x 2")
    assert old.say("SET k 3").startswith("-SESSIONMOVED")
    assert old.say("GET k").startswith("-SESSIONMOVED")
    assert new.say("GET k").endswith("1\r\n")
    old.say(f"SESSION RESUME {INSTANCE}-1 {SECRET}")
    assert old.say("SET k 3") == "+OK\r\n"


def test_only_administrators_list_sessions() -> None:
    guard = FakeGuard({"ada": ("pw", True), "plain": ("pw", False)})
    client = FrontClient(guard=guard)
    client.say("AUTH plain pw")
    assert client.say("SESSION LIST").startswith("-NOPERM")
    assert client.backend.asked == []
    assert client.say("SESSION OPEN").startswith("*8")
    assert client.say("AUTH ada pw", "SESSION LIST").startswith("+OK\r\n*")


def test_sessions_are_listed_from_any_one_on() -> None:
    client = FrontClient()
    client.say("SESSION OPEN", "SESSION OPEN", "SESSION OPEN")
    assert client.say("SESSION LIST") == "*3\r\n:1\r\n:2\r\n:3\r\n"
    assert client.say(f"session list {INSTANCE}-2") == "*1\r\n:3\r\n"
    client.backend.code = Code.NOTPRIMARY
    assert client.say("SESSION LIST").startswith("-NOTPRIMARY")


def test_a_sign_of_life_finds_out_the_time_out_and_it_is_shown() -> None:
    client = FrontClient()
    client.say("SESSION OPEN")
    instance, _, secret = client.backend.sessions[1]
    client.backend.sessions[1] = instance, b"700", secret
    assert fields(client.say("SESSION INFO"))["ttl"] == ":10000"
    assert client.say("SESSION PING") == "+PONG\r\n"
    assert fields(client.say("SESSION INFO"))["ttl"] == ":700"
