"""Two states of the same commands are the same, byte for byte."""

from hypothesis import given
from hypothesis import strategies as st

from namespace_machine import Tree

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
