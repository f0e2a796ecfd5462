"""Regular expressions: the same as Python's where both know the syntax, in bounded time."""

import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.mango import patterns
from millstream.views.core.mango.patterns import compile_pattern

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
    ours, theirs = compile_pattern(pattern), re.compile(pattern)
    for text in texts:
        if not text and r"\B" in pattern:
            continue  # Python says no there, and has changed its mind since
        assert ours(text) == bool(theirs.search(text)), (pattern, text)


@given(PATTERNS, st.lists(st.text("abc\n", max_size=8), max_size=4))
def test_what_is_remembered_changes_no_answer(pattern, texts):
    forgetful, other = compile_pattern(pattern), compile_pattern(pattern)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "REMEMBERED_MAX", 3)
        found = [forgetful(text) for text in texts]
    assert found == [other(text) for text in texts]


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
        (r"a$\n\z", "a\n", "a"),
        (r"a{,3}b", "a{,3}b", "aab"),
        (r"[]a]x", "]x", "bx"),
        (r"\h\S", "\ta", " \t"),
        ("", "", None),
    ],
)
def test_syntax(pattern, good, bad):
    is_in = compile_pattern(pattern)
    assert is_in(good)
    assert bad is None or not is_in(bad)


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(a|aa)+$", r"(a|a)*b$", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(.*a){12}$"]
)
def test_no_pattern_is_slow(pattern):
    start = time.process_time()
    assert not compile_pattern(pattern)("a" * 5000 + "!")
    assert time.process_time() - start < 5


def test_a_text_that_costs_too_much_does_not_match():
    is_in = compile_pattern("[ab]*a[ab]{299}$")
    chosen = random.Random(1)
    text = "".join(chosen.choice("ab") for _ in range(20_000)) + "a" * 300
    assert is_in(text[-700:])
    assert not is_in(text)
    assert is_in(text[-700:])
    assert is_in("a" * 20_000)


def test_long_texts_are_no_matter_where_steps_repeat():
    assert compile_pattern("^abc.*z$")("abc" + "x" * 500_000 + "z")
    assert not compile_pattern("foo|bar")("x" * 500_000)
