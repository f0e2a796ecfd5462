"""The answer of a Mango query: which rows pass, and what follows the last of them.

Invariants:
1. A document is returned only if its current version matches, whatever its row says.
2. The bookmark names the last row that was returned or skipped; that row is not returned again.

Elsewhere: the source of rows (`gateway.aio.queries.mango_pages`), queries
(`views.core.mango.finding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.json_text import parse, parse_object
from millstream.errors import UsageError
from millstream.views.core.mango.finding import (
    Find,
    Place,
    bookmark_of,
    explained,
    parse_find,
    scan_warning,
)
from millstream.views.core.mango.matching import matcher
from millstream.views.core.mango.paths import Path, project
from millstream.views.core.mango.planning import Index, Plan, plan_query
from millstream.views.core.mango.selectors import Selector, parse_selector

__all__ = [
    "BOUNDS_BYTES_MAX", "FoundRow", "LargeSelector", "Selection", "explained_by", "judged",
    "judged_by", "judged_large", "pass_of", "planned", "planned_by", "rows_in",
]  # fmt: skip

BOUNDS_BYTES_MAX: Final = 256 * 1024
"""Size of the values that bound what a large query looks for in an index, with its bookmark."""
_LINE_END: Final = b"\r\n"
_ROW: Final = b'{"id":'


class FoundRow(msgspec.Struct):
    """A row of an index, with the document beside it."""

    id: str
    key: Any
    doc: msgspec.Raw

    @property
    def place(self) -> Place:
        """Return its position."""
        return Place(self.key, self.id)


_row: Final = msgspec.json.Decoder(FoundRow).decode


def rows_in(piece: bytes) -> Iterator[FoundRow]:
    """Yield the rows in a piece of a view's answer, in which each row is a line."""
    for line in piece.split(_LINE_END):
        if line.startswith(_ROW):
            yield _row(line.removesuffix(b","))


def judged(matches: Callable[[Any], bool], paths: Sequence[Path], text: bytes) -> bytes | None:
    """Return the text to show of a document; None: it does not match.

    Args:
        matches: of the selector.
        paths: of the members to show; none: all.
        text: of the document; `null` if it no longer exists.
    """
    try:
        document = parse(text)
    except UsageError:  # kv wrote it, deeper than documents are
        return None
    if not isinstance(document, dict) or not matches(document):
        return None
    return msgspec.json.encode(project(document, paths)) if paths else text


def judged_large(normal: Any, paths: Sequence[Path], text: bytes) -> bytes | None:
    """Do what `judged` does, in a helper process; b"": the whole text is shown."""
    shown = judged(matcher(normal), paths, text)
    return b"" if shown is text else shown


class LargeSelector(NamedTuple):
    """A selector that is known by its text alone: what is made of it is in a helper process."""

    text: bytes
    """Body of a request that was found good, with the member `selector`."""
    has_fields: bool
    """Whether the body says which members of a document are to be shown."""


@lru_cache(maxsize=2)
def _made_of(text: bytes, has_fields: bool) -> tuple[Callable[[Any], bool], Sequence[Path]]:
    if has_fields:
        find = _find_of(text)
        return find.selector.matches, find.paths
    return parse_selector(parse(text)["selector"]).matches, ()


@lru_cache(maxsize=2)
def _find_of(text: bytes) -> Find:
    return parse_find(parse_object(text))


def judged_by(selector: LargeSelector, text: bytes) -> bytes | None:
    """Do what `judged_large` does for a selector that is known by its text."""
    shown = judged(*_made_of(*selector), text)
    return b"" if shown is text else shown


def pass_of(selector: LargeSelector | Any, documents: Sequence[Sequence[bytes]]) -> list[bool]:
    """Return which documents match, in a helper process.

    Args:
        selector: known by its text, or its normal form.
        documents: pieces of the text of each.
    """
    matches = _made_of(*selector)[0] if isinstance(selector, LargeSelector) else matcher(selector)
    return [judged(matches, (), b"".join(pieces)) is not None for pieces in documents]


def planned(find: Find, indexes: Sequence[Index]) -> Plan:
    """Return how a query is served; raises as `plan_query`."""
    return plan_query(
        indexes, find.selector.normal, find.sort_fields, find.use_index,
        allow_fallback=find.allow_fallback,
    )  # fmt: skip


def planned_by(text: bytes, indexes: Sequence[Index]) -> tuple[Find, Plan]:
    """Return the query in a large body, without what is large in it, and how it is served.

    Raises:
        UsageError: as `parse_find` and `plan_query`; `too_large`.
    """
    find, plan = _bounded(text, indexes)
    return find._replace(selector=Selector({}, bool), fields=(), paths=()), plan


def _bounded(text: bytes, indexes: Sequence[Index]) -> tuple[Find, Plan]:
    find = _find_of(text)
    plan = planned(find, indexes)
    size = len(msgspec.json.encode([find.bookmark, find.after, plan.ranges]))
    if size > BOUNDS_BYTES_MAX:
        raise UsageError(
            f"bookmark and values to look for in the index have {size} bytes; at most "
            f"{BOUNDS_BYTES_MAX} are taken",
            code="too_large",
        )
    return find, plan


def explained_by(text: bytes, bucket: str, indexes: Sequence[Index]) -> bytes:
    """Return the answer of `_explain` to a body; raises as `planned_by`."""
    return msgspec.json.encode(explained(bucket, *_bounded(text, indexes)))


class Selection:
    """Takes documents one by one; returns the text to send for each."""

    def __init__(self, find: Find, plan: Plan) -> None:
        self._find = find
        self._plan = plan
        self._to_skip = find.skip
        self._bookmark = find.bookmark
        self.examined = 0
        self.answered = 0

    @property
    def is_full(self) -> bool:
        """Return whether no more documents are needed."""
        return self.answered >= self._find.limit

    def take(self, place: Place, shown: bytes | None) -> bytes | None:
        """Return the JSON text to send for a document; None if it is not returned.

        Args:
            place: of its row.
            shown: what `judged` says of the document.
        """
        if place == self._find.after:
            return None
        self.examined += 1
        if shown is None:
            return None
        self._bookmark = bookmark_of(place)
        if self._to_skip:
            self._to_skip -= 1
            return None
        self.answered += 1
        return shown

    def tail(self, seconds: float) -> bytes:
        """Return the text after the documents.

        Args:
            seconds: duration of the answer.
        """
        content: dict[str, Any] = {"bookmark": self._bookmark}
        warnings = [*self._plan.warnings, *scan_warning(self.examined, self.answered)]
        if self._find.execution_stats:
            content["execution_stats"] = {
                "total_keys_examined": 0 if self._plan.index.is_all_docs else self.examined,
                "total_docs_examined": self.examined,
                "total_quorum_docs_examined": 0,
                "results_returned": self.answered,
                "execution_time_ms": round(seconds * 1000, 3),
            }
        if warnings:
            content["warning"] = "\n".join(warnings)
        return b"\r\n]," + msgspec.json.encode(content)[1:] + b"\n"
