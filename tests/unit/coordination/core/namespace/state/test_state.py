"""Two states of the same commands are the same, byte for byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.coordination.core import sorted_map
from millstream.coordination.core.namespace.commands import command as understanding
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.coordination.core.namespace.state import configuration, elements
from support.budget import budget
from support.coordination.namespace_machine import Tree, nothing_understood

pytestmark = pytest.mark.usefixtures("variant")
COMMANDS = st.lists(
    st.sampled_from(
        [
            ("CREATENAMESPACE", "/ns"), ("CREATE", "BINARY", "/ns/a", "x"),
            ("CREATE", "BINARY", "EPHEMERAL", "/ns/e"), ("PUT", "/ns/a", "y"),
            ("CREATE", "BINARY", "SEQUENTIAL", "/ns/s"), ("MOVE", "/ns/a", "/ns/b"),
            ("DELETE", "/ns/b"), ("PUT", "/ns/a", "ATTR", "u.x", "1"),
        ]
    ),
    max_size=20,
)  # fmt: skip


@given(COMMANDS, st.integers(0, 20))
def test_a_member_that_took_a_snapshot_has_what_the_others_have(
    commands: list[tuple[str, ...]], at: int
) -> None:
    one, other = Tree(), Tree()
    for number, words in enumerate(commands):
        if number == at:
            other.again()
        assert one.do(*words) == other.do(*words)
    assert one.bytes == other.bytes


PATHS = st.sampled_from(("/ns/a", "/ns/a/x", "/ns/b", "/ns/b/x", "/ns/e", "/ns/e/x"))
LIMITS = st.sampled_from(("LIMIT.CHILDREN", "LIMIT.DATA", "LIMIT.ELEMENTS", "LIMIT.BYTES"))
SMALL = st.integers(0, 6).map(str)
ONE = st.one_of(
    st.tuples(st.just("CREATE"), st.just("BINARY"), PATHS, st.sampled_from(("", "xx", "xxxx"))),
    st.tuples(st.just("CREATE"), st.just("BINARY"), st.just("SEQUENTIAL"), PATHS, st.just("y")),
    st.tuples(st.just("CREATE"), st.just("BINARY"), st.just("EPHEMERAL"), PATHS),
    st.tuples(st.just("PUT"), PATHS, st.text("z", max_size=5)),
    st.tuples(st.just("MOVE"), PATHS, PATHS),
    st.tuples(st.just("FORCE_MOVE"), PATHS, PATHS),
    st.tuples(st.just("DELETE"), PATHS, st.just("RECURSIVE")),
    st.tuples(st.just("CONFIG"), st.just("SET"), PATHS | st.just("/ns"), LIMITS, SMALL),
    st.tuples(st.just("CONFIG"), st.just("UNSET"), PATHS | st.just("/ns"), LIMITS),
    st.tuples(st.just("LOCK"), PATHS),
    st.tuples(st.just("LOCK"), st.just("RELEASE"), PATHS),
)


@pytest.fixture(params=(1, 3, 8192))
def remembered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So much is remembered of what was looked up."""
    monkeypatch.setattr(elements, "PLACES_MAX", request.param)
    monkeypatch.setattr(configuration, "NUMBERS_MAX", request.param)
    monkeypatch.setattr(sorted_map, "RECENT_MAX", request.param)
    monkeypatch.setattr(understanding, "UNDERSTOOD_MAX", request.param)


@pytest.mark.usefixtures("remembered")
@settings(max_examples=budget(60))
@given(
    st.lists(
        st.tuples(st.integers(1, 2), ONE | st.lists(ONE, min_size=2, max_size=4)), max_size=30
    )
)
def test_earlier_look_ups_change_nothing(
    commands: list[tuple[int, tuple[str, ...] | list[tuple[str, ...]]]],
) -> None:
    """One machine remembers, the other one is made anew of a snapshot before each command.

    Nor is any command known to it.
    """
    one, other = Tree(), Tree()
    for tree in (one, other):
        tree.do("CREATENAMESPACE", "/ns")
        tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/x", "xx")
    for session, command in commands:
        words: list[bytes | str]
        if isinstance(command, tuple):
            words = list(command)
        else:  # a transaction: of one that is refused, all is taken back
            packed = [[word.encode() for word in each] for each in command]
            words = ["EXEC", *(pack_command(each) for each in packed)]
        other.again()
        reply = one.do(*words, session=session)
        with nothing_understood():
            assert reply == other.do(*words, session=session)
        assert one.last.happened == other.last.happened
        assert one.bytes == other.bytes


def test_a_moved_session_is_notified_at_its_new_connection() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/b/x")
    assert tree.do("MOVE", "/ns/a", "/ns/c") == b"+OK"
    assert tree.do("PUT", "/ns/c/b/x", "1") == b"+OK"
    assert [happened.path for happened in tree.last.happened] == [b"/ns/c/b/x"]


def test_a_number_that_was_taken_back_is_elsewhere_the_next_time() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "/ns/a")
    commands = ([b"CREATE", b"BINARY", b"/ns/a/x"], [b"DELETE", b"/ns/none"])
    reply = tree.do("EXEC", *map(pack_command, commands))
    assert b"ERROR_DOES_NOT_EXISTS" in reply
    assert tree.do("CREATE", "BINARY", "/ns/y") == b"+OK"
    assert [happened.path for happened in tree.last.happened] == [b"/ns/y"]


def test_a_limit_that_was_raised_or_set_elsewhere_counts_at_once() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "PARENTS", "/ns/a/x")
    assert tree.do("PUT", "/ns/a/x", "1234") == b"+OK"
    assert tree.do("CONFIG", "SET", "/ns", "LIMIT.DATA", "3") == b"+OK"
    assert tree.do("PUT", "/ns/a/x", "12345").startswith(b"-QUOTA")
    assert tree.do("CONFIG", "SET", "/ns/a", "LIMIT.DATA", "5") == b"+OK"
    assert tree.do("PUT", "/ns/a/x", "12345") == b"+OK"
    assert tree.do("MOVE", "/ns/a/x", "/ns/x") == b"+OK"
    assert tree.do("PUT", "/ns/x", "123456").startswith(b"-QUOTA")
