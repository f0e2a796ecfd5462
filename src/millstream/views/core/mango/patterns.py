r"""Regular expressions of `$regex`, run by RE2 in a time proportional to the text.

    compile_pattern("^(a+)+$").is_in("aaaaaaaaaaaaaaaaaaaaaaaaaaaaab")     # False, at once

The syntax is PCRE's, as in CouchDB, without what RE2 cannot do: back references, look-around,
possessive and atomic groups, recursion, conditions. `\d`, `\w`, `\s` and `\b` are about ASCII.

Invariants:
1. A pattern has at most `PATTERN_CHARACTERS_MAX` characters; RE2 has `MEMORY_BYTES_MAX` for it.
   At most `COMPILED_MAX` patterns are kept compiled, however many selectors there are.
2. A text whose search could take more than `WORK_MAX` steps does not match.
3. The same text always gives the same answer.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import re2

__all__ = [
    "COMPILED_MAX",
    "MEMORY_BYTES_MAX",
    "PATTERN_CHARACTERS_MAX",
    "WORK_MAX",
    "Pattern",
    "PatternError",
    "compile_pattern",
]

PATTERN_CHARACTERS_MAX: Final = 1000
MEMORY_BYTES_MAX: Final = 2 * 1024 * 1024
"""Memory of one compiled pattern, and of what RE2 remembers while it searches."""
COMPILED_MAX: Final = 128
"""Patterns that a process keeps compiled; the others are compiled anew for each text."""
WORK_MAX: Final = 1_000_000_000
"""Bytes of a text times `Pattern.steps`: at worst ten seconds, mostly some milliseconds."""
_TOKEN: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)"  # literal text
    r"|\\."
    r"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"  # a class of characters
    r"|\(\?(?P<set>[a-zA-Z]*)(?:-(?P<unset>[a-zA-Z]*))?(?P<end>[:)])"  # flags
    r"|.",
    re.DOTALL,
)
_LINE_END: Final = r"(?:\n?\z)"
"""PCRE's `$` is also true in front of a line end that is the last character."""
_ESCAPES: Final = {
    r"\h": r"[ \t\xa0]", r"\H": r"[^ \t\xa0]", r"\e": r"\x1b", r"\Z": _LINE_END,
    r"\s": "[[:space:]]", r"\S": "[[:^space:]]",  # RE2's have no \v
}  # fmt: skip
_ESCAPES_IN_CLASS: Final = {
    r"\h": r" \t\xa0", r"\e": r"\x1b", r"\s": "[:space:]", r"\S": "[:^space:]",
}  # fmt: skip
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)


class PatternError(ValueError):
    """A text is not a regular expression, or RE2 does not support it."""


class Pattern:
    """A regular expression."""

    def __init__(self, syntax: bytes) -> None:
        self._syntax = syntax
        self.steps: int = _compiled(syntax).programsize
        """The most steps that RE2 needs for a byte of a text."""

    def is_in(self, text: str) -> bool:
        """Return whether some part of a text matches. The search does not hold the GIL."""
        data = text.encode(errors="surrogatepass")
        if len(data) * self.steps > WORK_MAX:
            return False
        return _compiled(self._syntax).search(data) is not None


def compile_pattern(pattern: str) -> Pattern:
    """Return a regular expression.

    Raises:
        PatternError: it is none, or too large, or has what is not supported.
    """
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise PatternError(f"more than {PATTERN_CHARACTERS_MAX} characters")
    return Pattern(_in_syntax_of_re2(pattern).encode(errors="surrogatepass"))


@lru_cache(COMPILED_MAX)
def _compiled(syntax: bytes) -> re2._Regexp:
    import re2  # here, so that workers of Spark, which use no selectors, do without it

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True  # finding groups takes much longer
    try:
        return re2.compile(syntax, options)
    except re2.error as error:
        (reason,) = error.args
        raise PatternError(reason.decode(errors="replace")) from error
    finally:
        re2.purge()  # it would keep 128 of them


def _in_syntax_of_re2(pattern: str) -> str:
    """Return a pattern of PCRE as RE2 writes it: `$` and some escapes differ."""
    written: list[str] = []
    is_multiline = False
    outside: list[bool] = []  # of each open group: whether `$` was about lines in front of it
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["end"]:
            if token["end"] == ":":
                outside.append(is_multiline)
            is_multiline |= "m" in token["set"]
            is_multiline &= "m" not in (token["unset"] or "")
        elif text == "(":
            outside.append(is_multiline)
        elif text == ")" and outside:
            is_multiline = outside.pop()
        elif text == "$" and not is_multiline:
            text = _LINE_END
        elif text[0] == "[":
            text = _ESCAPED.sub(lambda one: _ESCAPES_IN_CLASS.get(one[0], one[0]), text)
        else:
            text = _ESCAPES.get(text, text)
        written.append(text)
    return "".join(written)
