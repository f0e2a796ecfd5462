"""What is a regular expression here, and what is refused."""

import pytest

from millstream.views.core.mango.pattern_syntax import (
    DEPTH_MAX,
    NODES_MAX,
    PATTERN_CHARACTERS_MAX,
    PatternError,
    read_pattern,
)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[", "[a", "*", "a**", "a++", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)",
        "(?>a)", r"(a)\1", r"\k<a>", "(?R)", "(?#x)", "(?x)a", "(*ACCEPT)", "a{3,2}", "a{2000}",
        "[b-a]",
        "[[:nothing:]]", r"\p{L}", "\\", r"\x{110000}", r"\x{zz}", "(?<a",
        r"[\d-a", "[a-[:alpha:]]",
        "a" * (PATTERN_CHARACTERS_MAX + 1), "(" * (DEPTH_MAX + 1) + ")" * (DEPTH_MAX + 1),
        "((a{100}){100}){100}", "((?:){1000}){1000}",
    ],
)  # fmt: skip
def test_what_is_refused(pattern):
    with pytest.raises(PatternError):
        read_pattern(pattern)


def test_repetitions_are_written_out_and_bounded():
    assert len(read_pattern("(a|b){100}").nodes) < NODES_MAX
    assert len(read_pattern("a{0}").nodes) < 5
