r"""Regular expressions as graphs: what is written, read once, to nodes that `patterns` runs.

    .  [a-z]  [^..]  [[:alpha:]]  \d \w \s \h (and \D \W \S \H)  \n \t \r \f \v \e \a \0
    \xhh  \x{hhhh}  \Q..\E  a|b  (..)  (?:..)  (?<name>..)  (?P<name>..)  (?i) (?m) (?s)  (?i:..)
    x*  x+  x?  x{n}  x{n,}  x{n,m}  and the lazy forms  ^  $  \A  \z  \Z  \b  \B

What cannot be done in one pass is refused: references to groups, looking around, possessive and
atomic parts, recursion, conditions.

Invariants:
1. A graph has at most `NODES_MAX` nodes, however the repetitions multiply.
2. A node leads to others at no cost (`then`), or takes one character (`takes`) and leads to
   `then[0]`; `needs` is a condition on the characters on both sides.

Elsewhere: running them (`views.core.mango.patterns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "DEPTH_MAX",
    "LAST_LINE_END",
    "NODES_MAX",
    "PATTERN_CHARACTERS_MAX",
    "Condition",
    "Graph",
    "Node",
    "PatternError",
    "is_word",
    "read_pattern",
]

PATTERN_CHARACTERS_MAX: Final = 1000
NODES_MAX: Final = 2000
DEPTH_MAX: Final = 50
"""Groups inside each other."""
_REPEATS_MAX: Final = 1000
LAST_LINE_END: Final = "\n\n"
"""Stands for a line end that is the last character of a text."""

Test = Callable[[str], bool]
Condition = Callable[[str, str], bool]
"""Of the character before and the one behind: empty at the ends, perhaps `LAST_LINE_END`."""


class PatternError(ValueError):
    """A text is no regular expression, or one that is not supported here."""


class Node:
    """One place in a graph."""

    __slots__ = ("needs", "number", "takes", "then")

    def __init__(self, number: int) -> None:
        self.number = number
        self.takes: Test | None = None
        self.needs: Condition | None = None
        self.then: list[Node] = []


class Graph(NamedTuple):
    """All nodes; a text matches that leads from `start` to `end`."""

    nodes: Sequence[Node]
    start: Node
    end: Node


class _Flags(NamedTuple):
    ignores_case: bool = False
    is_multiline: bool = False
    dot_takes_line_end: bool = False


def is_word(character: str) -> bool:
    """Whether a character belongs to a word; the empty one at the ends does not."""
    return character == "_" or character.isalnum()


def _is_space(character: str) -> bool:
    return character in " \t\n\v\f\r\x85\xa0"


_LETTERS: Final[dict[str, Test]] = {
    "d": lambda c: "0" <= c <= "9",
    "w": is_word,
    "s": _is_space,
    "h": lambda c: c in " \t\xa0",
}


def _not(test: Test) -> Test:
    return lambda c: not test(c)


_LETTERS.update({name.upper(): _not(test) for name, test in _LETTERS.items()})
_CONTROLS: Final = {
    "n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "e": "\x1b", "a": "\a", "0": "\0",
}  # fmt: skip
_POSIX: Final[dict[str, Test]] = {
    "alpha": str.isalpha,
    "digit": _LETTERS["d"],
    "alnum": str.isalnum,
    "upper": str.isupper,
    "lower": str.islower,
    "space": _is_space,
    "blank": lambda c: c in " \t",
    "punct": lambda c: c.isascii() and c.isprintable() and not c.isalnum() and c != " ",
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
    "word": is_word,
    "cntrl": lambda c: c < " " or c == "\x7f",
    "print": str.isprintable,
    "graph": lambda c: c.isprintable() and c != " ",
}
_CONDITIONS: Final[dict[str, Condition]] = {
    "A": lambda before, _: not before,
    "z": lambda _, behind: not behind,
    "Z": lambda _, behind: behind in ("", LAST_LINE_END),
    "b": lambda before, behind: is_word(before) != is_word(behind),
    "B": lambda before, behind: is_word(before) == is_word(behind),
}
_LINE_BEGIN: Final[Condition] = lambda before, _: before in ("", "\n")  # noqa: E731
_LINE_END: Final[Condition] = lambda _, behind: behind in ("", "\n", LAST_LINE_END)  # noqa: E731


def read_pattern(pattern: str) -> Graph:
    """Return the graph of a regular expression.

    Raises:
        PatternError: it is none, or too large, or has what is not supported.
    """
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise PatternError(f"more than {PATTERN_CHARACTERS_MAX} characters")
    reader = _Reader(pattern)
    first, last = reader.alternatives(_Flags(), DEPTH_MAX)
    if not reader.is_at_end:
        raise PatternError(f"a ) too many at {reader.at}")
    return Graph(reader.nodes, first, last)


_Part = tuple[Node, Node]
"""A piece of a graph: where it begins and ends."""


class _Reader:
    """Reads one pattern by recursive descent."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self.at = 0
        self.nodes: list[Node] = []
        self._flags = _Flags()

    @property
    def is_at_end(self) -> bool:
        return self.at >= len(self._text)

    # -- the text

    def _peek(self) -> str:
        return self._text[self.at : self.at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise PatternError("it ends too early")
        self.at += 1
        return character

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _until(self, end: str) -> str:
        close = self._text.find(end, self.at)
        if close < 0:
            raise PatternError(f"there is no {end} behind {self.at}")
        found, self.at = self._text[self.at : close], close + len(end)
        return found

    # -- nodes

    def _node(self) -> Node:
        if len(self.nodes) >= NODES_MAX:
            raise PatternError("it is too large: its repetitions multiply")
        self.nodes.append(Node(len(self.nodes)))
        return self.nodes[-1]

    def _one(self, takes: Test) -> _Part:
        node, end = self._node(), self._node()
        node.takes, node.then = takes, [end]
        return node, end

    def _condition(self, needs: Condition) -> _Part:
        node, end = self._node(), self._node()
        node.needs, node.then = needs, [end]
        return node, end

    def _literal(self, character: str) -> _Part:
        return self._one(_caseless(lambda c: c == character, self._flags))

    def _empty(self) -> _Part:
        node = self._node()
        return node, node

    # -- grammar

    def alternatives(self, flags: _Flags, depth: int) -> _Part:
        if not depth:
            raise PatternError(f"groups are more than {DEPTH_MAX} deep")
        before, self._flags = self._flags, flags
        parts = [self._sequence(depth)]
        while self._skip("|"):
            parts.append(self._sequence(depth))
        self._flags = before
        if len(parts) == 1:
            return parts[0]
        first, last = self._node(), self._node()
        for begin, end in parts:
            first.then.append(begin)
            end.then.append(last)
        return first, last

    def _sequence(self, depth: int) -> _Part:
        if self._peek() in ("", "|", ")"):
            return self._empty()
        first, last = self._repeated(depth)
        while self._peek() not in ("", "|", ")"):
            begin, end = self._repeated(depth)
            last.then.append(begin)
            last = end
        return first, last

    def _repeated(self, depth: int) -> _Part:
        """Read an atom and its quantifiers; repetitions read its text anew for more nodes."""
        start, flags = self.at, self._flags
        part = self._atom(depth)
        end_of_atom = self.at
        bounds = self._quantifier()
        if bounds is None:
            return part
        self._skip("?")  # lazy: the same texts match
        if self._peek() == "+":
            raise PatternError("possessive repetition is not supported")
        if self._is_quantifier():
            raise PatternError(f"nothing to repeat at {self.at}")
        after = self.at

        def again() -> _Part:
            self.at, self._flags = start, flags
            found = self._atom(depth)
            assert self.at == end_of_atom
            return found

        found = self._repeat(part, again, *bounds)
        self.at = after
        return found

    def _repeat(
        self, part: _Part, again: Callable[[], _Part], low: int, high: int | None
    ) -> _Part:
        first, last = self._empty()
        if high == 0:
            return first, last
        end = self._node()
        count = max(low, 1) if high is None else high
        for number in range(count):
            begin, close = part if number == 0 else again()
            if number >= low:
                last.then.append(end)
            last.then.append(begin)
            if high is None and number == count - 1:
                close.then.append(begin)
            last = close
        last.then.append(end)
        return first, end

    def _is_quantifier(self) -> bool:
        at = self.at
        found = self._quantifier() is not None
        self.at = at
        return found

    def _quantifier(self) -> tuple[int, int | None] | None:
        for mark, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._skip(mark):
                return low, high
        close = self._text.find("}", self.at)
        if self._peek() != "{" or close < 0:
            return None
        least, comma, most = self._text[self.at + 1 : close].partition(",")
        if not _is_number(least) or not (most == "" or _is_number(most)):
            return None  # as it is written
        self.at = close + 1
        bounds = int(least), (int(most) if most else None if comma else int(least))
        if max(bounds[0], bounds[1] or 0) > _REPEATS_MAX:
            raise PatternError(f"more than {_REPEATS_MAX} repetitions")
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise PatternError("a repetition's end is before its beginning")
        return bounds

    def _atom(self, depth: int) -> _Part:
        character = self._take()
        if character == "(":
            return self._group(depth)
        if character == "[":
            return self._one(self._class())
        if character == ".":
            takes_all = self._flags.dot_takes_line_end
            return self._one(lambda c: takes_all or c != "\n")
        if character == "^":
            return self._condition(_LINE_BEGIN if self._flags.is_multiline else _CONDITIONS["A"])
        if character == "$":
            return self._condition(_LINE_END if self._flags.is_multiline else _CONDITIONS["Z"])
        if character == "\\":
            return self._escape()
        if character in "*+?":
            raise PatternError(f"nothing to repeat at {self.at - 1}")
        return self._literal(character)

    def _escape(self) -> _Part:
        if self._skip("Q"):
            return self._quoted()
        character = self._take()
        if character in _CONDITIONS:
            return self._condition(_CONDITIONS[character])
        if character in _LETTERS:
            return self._one(_LETTERS[character])
        return self._literal(self._character(character))

    def _quoted(self) -> _Part:
        close = self._text.find("\\E", self.at)
        end = len(self._text) if close < 0 else close
        first, last = self._empty()
        for character in self._text[self.at : end]:
            begin, finish = self._literal(character)
            last.then.append(begin)
            last = finish
        self.at = end if close < 0 else end + 2
        return first, last

    def _character(self, escaped: str) -> str:
        """Return the character that an escape stands for."""
        if escaped in _CONTROLS:
            return _CONTROLS[escaped]
        if escaped == "x":
            digits = self._until("}") if self._skip("{") else self._hex_digits()
            return _of_code(digits)
        if escaped.isalnum():
            raise PatternError(f"\\{escaped} is not supported")
        return escaped

    def _hex_digits(self) -> str:
        digits = self._text[self.at : self.at + 2]
        self.at += len(digits)
        return digits

    # -- groups and classes

    def _group(self, depth: int) -> _Part:
        flags = self._flags
        if self._skip("?"):
            if self._skip("<") or self._skip("P<"):
                if self._peek() in ("=", "!"):
                    raise PatternError("looking around is not supported")
                self._until(">")
            elif not self._skip(":"):
                flags, is_open = self._inline_flags()
                if not is_open:
                    self._flags = flags
                    return self._empty()
        elif self._peek() == "*":
            raise PatternError("(* is not supported")
        part = self.alternatives(flags, depth - 1)
        if not self._skip(")"):
            raise PatternError("a ( is not closed")
        return part

    def _inline_flags(self) -> tuple[_Flags, bool]:
        """Read `i-s)` or `i-s:`; say whether a group follows."""
        flags, is_set = self._flags, True
        names = {"i": "ignores_case", "m": "is_multiline", "s": "dot_takes_line_end"}
        while True:
            character = self._take()
            if character in ":)":
                return flags, character == ":"
            if character == "-":
                is_set = False
            elif character in names:
                flags = flags._replace(**{names[character]: is_set})
            else:
                raise PatternError(f"(?{character} is not supported")

    def _class(self) -> Test:
        is_negated = self._skip("^")
        tests: list[Test] = []
        singles: set[str] = set()
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            low = self._member(tests)
            if low is None:
                continue
            if self._peek() == "-" and self._text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member(tests)
                if high is None or high < low:
                    raise PatternError("a range in [..] that is none")
                tests.append(_range(low, high))
            else:
                singles.add(low)
        self.at += 1
        takes = _caseless(_any_of(singles, tests), self._flags)
        return _not(takes) if is_negated else takes

    def _member(self, tests: list[Test]) -> str | None:
        """Return a character of a class; None where it was several, added to the tests."""
        character = self._take()
        if character == "[" and self._peek() == ":" and ":]" in self._text[self.at :]:
            self.at += 1
            name = self._until(":]")
            is_negated = name.startswith("^")
            test = _POSIX.get(name.removeprefix("^"))
            if test is None:
                raise PatternError(f"[:{name}:] is not known")
            tests.append(_not(test) if is_negated else test)
            return None
        if character != "\\":
            return character
        escaped = self._take()
        if escaped in _LETTERS:
            tests.append(_LETTERS[escaped])
            return None
        return "\b" if escaped == "b" else self._character(escaped)


def _range(low: str, high: str) -> Test:
    return lambda c: low <= c <= high


def _any_of(singles: Iterable[str], tests: Sequence[Test]) -> Test:
    known = frozenset(singles)
    return lambda c: c in known or any(test(c) for test in tests)


def _caseless(test: Test, flags: _Flags) -> Test:
    if not flags.ignores_case:
        return test
    return lambda c: test(c) or test(c.lower()) or test(c.upper())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _of_code(digits: str) -> str:
    try:
        return chr(int(digits or "0", 16))
    except (ValueError, OverflowError) as error:
        raise PatternError(f"\\x{digits} is no character") from error
