"""Regular expressions that take time in proportion to the text, whatever they say.

    compile_pattern("^(a+)+$")("aaaaaaaaaaaaaaaaaaaaaaaaaaaaab")     # False, at once

All ways through the graph of a pattern are followed at the same time, one character after the
other; the sets of nodes that are met are remembered, so that mostly a character costs one look
into a table.

Invariants:
1. Nothing is tried twice: the work on a text is at most its length times the nodes of the graph.
2. A long text for which more than `WORK_MAX` steps have to be worked out does not match. Before
   such a text everything is forgotten: the same text always gives the same answer.
3. What is remembered is bounded by `REMEMBERED_MAX`.

Elsewhere: what can be written (`views.core.mango.pattern_syntax`).
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

from millstream.views.core.mango.pattern_syntax import LAST_LINE_END, is_word, read_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.views.core.mango.pattern_syntax import Graph, Node

__all__ = ["REMEMBERED_MAX", "UNCOUNTED_MAX", "WORK_MAX", "compile_pattern"]

WORK_MAX: Final = 400_000
"""Nodes passed in one text, each step counted once that is remembered; half a second."""
UNCOUNTED_MAX: Final = 200_000
"""Characters times nodes of the graph, at which a text is so short that nothing is counted."""
REMEMBERED_MAX: Final = 100_000
"""Of one pattern: nodes in sets, and ways from one set to the next; some megabytes."""


class _State:
    """The nodes that a part of a text may have led to, and the kind of its last character."""

    __slots__ = ("before", "cost", "following", "nodes")

    def __init__(self, nodes: frozenset[Node], before: str, cost: int) -> None:
        self.nodes = nodes
        self.before = before
        self.cost = cost
        self.following: dict[str, _State | bool] = {}
        """By the next character, "" at the end; True: it matches, False: it never will."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return whether a pattern is somewhere in a text, as a function.

    Raises:
        PatternError: it is none, or too large, or has what is not supported.
    """
    return _Search(read_pattern(pattern)).is_in


class _Search:
    """One pattern, and what was learned about it; one thread at a time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._is_anchored = _is_anchored(graph)
        self._states: dict[tuple[frozenset[Node], str], _State] = {}
        self._remembered = 0
        self._work = 0

    def is_in(self, text: str) -> bool:
        """Return whether some part of a text matches. Hot path."""
        is_long = len(text) * len(self._graph.nodes) > UNCOUNTED_MAX
        if is_long:
            self._forget()
            self._work = 0
        state = self._state(frozenset((self._graph.start,)), "")
        characters: Iterable[str] = text
        if text.endswith("\n"):
            characters = [*text[:-1], LAST_LINE_END]
        for character in characters:
            following = state.following.get(character)
            if following is None:
                following = self._follow(state, character)
                if is_long and self._work > WORK_MAX:
                    return False
            if following is True or following is False:
                return following
            state = following
        end = state.following.get("")
        return (self._follow(state, "") if end is None else end) is True

    def _state(self, nodes: frozenset[Node], before: str) -> _State:
        known = self._states.get((nodes, before))
        if known is None:
            known = _State(nodes, before, len(_reachable(nodes)))
            self._states[nodes, before] = known
            self._remembered += len(nodes)
        return known

    def _forget(self) -> None:
        self._states.clear()
        self._remembered = 0

    def _follow(self, state: _State, character: str) -> _State | bool:
        """Return what a character, or the end, leads to; remember it."""
        if self._remembered >= REMEMBERED_MAX:
            self._forget()
            state.following.clear()
        self._work += state.cost
        found = state.following[character] = self._followed(state, character)
        self._remembered += 1
        return found

    def _followed(self, state: _State, character: str) -> _State | bool:
        there = _closure(state.nodes, state.before, character)
        if self._graph.end in there:
            return True
        if not character:
            return False
        one = character[0]
        taken = {node.then[0] for node in there if node.takes is not None and node.takes(one)}
        if not self._is_anchored:
            taken.add(self._graph.start)
        elif not taken:
            return False
        return self._state(frozenset(taken), _kind(one))


def _kind(character: str) -> str:
    """Return a character that conditions judge alike."""
    if character == "\n":
        return character
    return "a" if is_word(character) else " "


def _reachable(nodes: Iterable[Node]) -> set[Node]:
    """Return all nodes at no cost, whatever is before and behind."""
    found, open_ = set(nodes), list(nodes)
    while open_:
        node = open_.pop()
        if node.takes is None:
            new = [other for other in node.then if other not in found]
            found.update(new)
            open_ += new
    return found


def _closure(nodes: Iterable[Node], before: str, behind: str) -> set[Node]:
    """Return the nodes at no cost between two characters."""
    found, open_ = set(nodes), list(nodes)
    while open_:
        node = open_.pop()
        if node.takes is not None or (node.needs is not None and not node.needs(before, behind)):
            continue
        new = [other for other in node.then if other not in found]
        found.update(new)
        open_ += new
    return found


def _is_anchored(graph: Graph) -> bool:
    """Return whether every way begins at the beginning of the text."""
    for before, behind in product(("a", " ", "\n"), ("a", " ", "\n", LAST_LINE_END, "")):
        there = _closure([graph.start], before, behind)
        if any(node is graph.end or node.takes is not None for node in there):
            return False
    return True
