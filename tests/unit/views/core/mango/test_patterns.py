"""Regular expressions: the same as Python's where both know the syntax, in bounded time."""

import gc
import re
import time

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.mango.patterns import (
    COMPILED_MAX,
    PATTERN_CHARACTERS_MAX,
    WORK_MAX,
    PatternError,
    compile_pattern,
)

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "[ab]",
        "[^a]",
        r"\w",
        r"\d",
        r"\b",
        r"\B",
        "^",
        "$",
        r"\A",
        r"\n",
        "-",
        "[a-c-]",
    ]
)
QUANTIFIERS = st.sampled_from(
    ["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "??"]
)
CONDITIONS = {r"\b", r"\B", "^", "$", r"\A"}


def repeated(pair):
    atom, quantifier = pair
    return atom if atom in CONDITIONS else atom + quantifier


PIECES = st.tuples(ATOMS, QUANTIFIERS).map(repeated)


def grown(inner):
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        some.map("".join),
        some.map("|".join).map("(?:{})".format),
        st.tuples(some.map("|".join), QUANTIFIERS).map(lambda pair: f"({pair[0]}){pair[1]}"),
        inner.map("(?m:{})".format),
        inner.map("(?s:{})".format),
        inner.map("(?i:{})".format),
    )


PATTERNS = st.recursive(PIECES, grown, max_leaves=6)


@given(PATTERNS, st.lists(st.text("abcA-\n", max_size=8), max_size=6))
def test_the_same_texts_match_as_in_python(pattern, texts):
    ours, theirs = compile_pattern(pattern).is_in, re.compile(pattern)
    for text in texts:
        if not text and r"\B" in pattern:
            continue  # Python says no there, and has changed its mind since
        assert ours(text) == bool(theirs.search(text)), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^[[:alpha:]]+$", "abc", "ab1"),
        (r"[[:^digit:]]", "1a", "11"),
        (r"\Qa.b\E", "xa.bx", "axb"),
        (r"(?<year>\d{4})-", "2024-1", "224-1"),
        (r"(?P<year>\d{4})-", "2024-1", "224-1"),
        (r"(?i)straße", "STRAßE", "strase"),
        (r"a(?i)b|c", "C", "A"),
        (r"\x41\x{e9}", "Aé", "Ae"),
        (r"a\z", "a", "a\n"),
        (r"a$", "a\n", "a\nb"),
        (r"(?m)a$\n\z", "a\n", "a"),
        (r"(?m:a$)\n", "a\n", "a"),
        (r"(?m:b)$", "ab\n", "b\na"),
        (r"(?m)(?-m:b$)", "ab\n", "b\na"),
        (r"\Q$\E[$]\$", "$$$", "$"),
        (r"[\h]\e\Z", " \x1b\n", "\x1b"),
        (r"\p{Lu}", "É", "é"),
        (r"a{,3}b", "a{,3}b", "aab"),
        (r"[]a]x", "]x", "bx"),
        (r"\h\S", "\ta", " \t"),
        (r"^\s[\s]$", "\v\v", "\va"),
        (r"^\S[\Sx]$", "aé", "a\v"),
        ("", "", None),
    ],
)
def test_syntax(pattern, good, bad):
    is_in = compile_pattern(pattern).is_in
    assert is_in(good)
    assert bad is None or not is_in(bad)


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(a|aa)+$", r"(a|a)*b$", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(.*a){12}$"]
)
def test_no_pattern_is_slow(pattern):
    start = time.process_time()
    assert not compile_pattern(pattern).is_in("a" * 5000 + "!")
    assert time.process_time() - start < 5


def test_long_texts_are_no_matter_where_steps_repeat():
    assert compile_pattern("^abc.*z$").is_in("abc" + "x" * 500_000 + "z")
    assert not compile_pattern("foo|bar").is_in("x" * 500_000)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[", "[a", "*", "a**", "a++", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)",
        "(?>a)", r"(a)\1", r"\k<a>", "(?R)", "(?#x)", "(?x)a", "(*ACCEPT)", "a{3,2}", "a{2000}",
        "[b-a]", "[[:nothing:]]", "\\", r"\x{110000}", r"\x{zz}", "(?<a", r"[\d-a",
        "[a-[:alpha:]]",
        "a" * (PATTERN_CHARACTERS_MAX + 1), "((a{100}){100}){100}", "((?:){1000}){1000}",
    ],
)  # fmt: skip
def test_refused_patterns(pattern):
    with pytest.raises(PatternError):
        compile_pattern(pattern)


def test_any_text_can_be_searched():
    assert compile_pattern("b").is_in("\ud800b\0")
    assert not compile_pattern("^b").is_in("\ud800b\0")


def test_a_text_that_could_cost_too_much_does_not_match():
    pattern = compile_pattern("[ab]*a[ab]{900}c")
    text = "a" * 901 + "c"
    assert pattern.is_in(text)
    assert not pattern.is_in(text + "a" * (WORK_MAX // pattern.steps))


def test_a_bounded_number_of_patterns_is_kept_compiled():
    names = [f"kept{number}" for number in range(3 * COMPILED_MAX)]
    patterns = list(map(compile_pattern, names))
    assert all(pattern.is_in(name) for pattern, name in zip(patterns, names, strict=True))
    compiled = [one.pattern for one in gc.get_objects() if isinstance(one, re2._Regexp)]
    assert len({name.encode() for name in names}.intersection(compiled)) == COMPILED_MAX
