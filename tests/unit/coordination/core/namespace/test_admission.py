"""What clients write becomes a request, or an error at once."""

from millstream.coordination.core.namespace.admission import (
    NAMESPACE_COMMANDS,
    ClientRequest,
    admit,
    begin_transaction,
    forced,
)
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.coordination.core.registers import REGISTER_COMMANDS


def test_changes_carry_the_client_s_time() -> None:
    assert admit([b"put", b"/ns/a", b"x"], 17) == ClientRequest(
        True, (b"17", b"PUT", b"/ns/a", b"x"), b"/ns/a"
    )


def test_reads_say_whether_any_state_will_do() -> None:
    asked = admit([b"get", b"/ns/a", b"STALEREAD"], 0)
    assert asked == ClientRequest(False, (b"GET", b"/ns/a", b"STALEREAD"), b"/ns/a", True)


def test_forced_commands_have_force_before_their_name() -> None:
    put = admit([b"put", b"/ns/a", b"x"], 17)
    assert forced(put) == ClientRequest(True, (b"17", b"FORCE", b"PUT", b"/ns/a", b"x"), b"/ns/a")
    look = admit([b"get", b"/ns/a", b"STALEREAD"], 0)
    assert forced(look) == ClientRequest(
        False, (b"FORCE", b"GET", b"/ns/a", b"STALEREAD"), b"/ns/a", True
    )


def test_where_no_locks_are_nothing_is_forced() -> None:
    requests = [
        admit([b"CREATENAMESPACE", b"/ns"], 0), admit([b"PUT", b"ns"], 0),
        REGISTER_COMMANDS[b"SET"]([b"SET", b"7", b"v"], 0),
        REGISTER_COMMANDS[b"GET"]([b"GET", b"k"], 0),
    ]  # fmt: skip
    for request in requests:
        assert request is not None
        assert forced(request) == request


def test_commands_of_sessions_need_one() -> None:
    asked = admit([b"CREATE", b"BINARY", b"EPHEMERAL", b"/ns/a"], 0)
    assert isinstance(asked, ClientRequest)
    assert asked.needs_session


def test_invalid_commands_get_an_error() -> None:
    asked = admit([b"PUT", b"ns"], 0)
    assert isinstance(asked, bytes)
    assert asked.startswith(b"-BADPATH")


def test_commands_that_may_wait_need_a_session() -> None:
    for words in ([b"LOCK", b"/ns/a"], [b"SEMAPHORE", b"ACQUIRE", b"/ns/a"]):
        asked = NAMESPACE_COMMANDS[words[0]](words, 0)
        assert isinstance(asked, ClientRequest)
        assert asked.needs_session
        assert begin_transaction().queue(words) == b"+QUEUED"


def test_configuration_of_no_element_is_none_of_ours() -> None:
    assert NAMESPACE_COMMANDS[b"CONFIG"]([b"CONFIG", b"GET", b"save"], 0) is None
    assert isinstance(
        NAMESPACE_COMMANDS[b"CONFIG"]([b"CONFIG", b"GET", b"/ns", b"*"], 0), ClientRequest
    )
    of_node = [b"CONFIG", b"GET", b"NODE", b"NODE.DATA"]
    assert NAMESPACE_COMMANDS[b"CONFIG"](of_node, 0) is None
    refused = NAMESPACE_COMMANDS[b"CONFIG"]([b"CONFIG", b"SET", b"NODE", b"NODE.DATA", b"/x"], 0)
    assert isinstance(refused, bytes)
    assert refused.startswith(b"-BADARG a node takes its keys from its file")


def test_a_transaction_looks_at_its_commands() -> None:
    transaction = begin_transaction()
    assert transaction.queue([b"PUT", b"/ns/a", b"x"]) == b"+QUEUED"
    assert transaction.words() == (b"EXEC", pack_command([b"PUT", b"/ns/a", b"x"]))
    assert transaction.queue([b"PING"]) == b"-UNKNOWN_COMMAND a transaction has no command PING"
    assert transaction.queue([b"PUT"]).startswith(b"-BADARG")
    words = transaction.words()
    assert isinstance(words, bytes)
    assert words.startswith(b"-EXECABORT 1 UNKNOWN_COMMAND")
