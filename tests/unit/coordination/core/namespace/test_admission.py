"""What clients write becomes a wish, or an error at once."""

from millstream.coordination.core.namespace.admission import NAMESPACE_COMMANDS, admit
from millstream.coordination.core.namespace.machine import COMMANDS
from millstream.coordination.core.register_commands import Wish


def test_changes_carry_the_client_s_time() -> None:
    assert admit([b"put", b"/ns/a", b"x"], 17) == Wish(
        True, (b"17", b"PUT", b"/ns/a", b"x"), b"/ns/a"
    )


def test_reads_say_whether_any_state_will_do() -> None:
    asked = admit([b"get", b"/ns/a", b"STALEREAD"], 0)
    assert asked == Wish(False, (b"GET", b"/ns/a", b"STALEREAD"), b"/ns/a", True)


def test_what_belongs_to_a_session_asks_for_one() -> None:
    asked = admit([b"CREATE", b"BINARY", b"EPHEMERAL", b"/ns/a"], 0)
    assert isinstance(asked, Wish)
    assert asked.needs_session


def test_what_makes_no_sense_is_answered() -> None:
    asked = admit([b"PUT", b"ns"], 0)
    assert isinstance(asked, bytes)
    assert asked.startswith(b"-BADPATH")
    assert NAMESPACE_COMMANDS.keys() == COMMANDS.keys()
