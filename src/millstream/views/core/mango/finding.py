"""What is asked of `_find` and `_explain`, and the bookmark with which one page follows another.

Invariants:
1. A name that is not known, and a value of another form, is refused.
2. A bookmark names the row behind which to go on: `parse_bookmark(bookmark_of(place)) == place`.

Elsewhere: choosing an index (`views.core.mango.planning`).
Source: CouchDB's Mango, its codes and reasons.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import UsageError
from millstream.views.core.mango.definitions import Sort, parse_sort
from millstream.views.core.mango.paths import Path, parse_path
from millstream.views.core.mango.planning import MAXIMUM, Plan
from millstream.views.core.mango.selectors import Selector, parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "LIMIT_DEFAULT",
    "NO_BOOKMARK",
    "SCAN_RATIO_MAX",
    "Find",
    "Place",
    "bookmark_of",
    "explained",
    "parse_find",
    "scan_warning",
]

LIMIT_DEFAULT: Final = 25
NO_BOOKMARK: Final = "nil"
SCAN_RATIO_MAX: Final = 10
"""Documents looked at for each that is answered, from which on that is worth a warning."""


class Place(NamedTuple):
    """A row: its key, null in the list of all documents, and the id of its document."""

    key: Any
    id: str


class Find(NamedTuple):
    """A checked query."""

    selector: Selector
    use_index: tuple[str, ...]
    allow_fallback: bool
    bookmark: str
    after: Place | None
    """What the bookmark says."""
    limit: int
    skip: int
    sort: Sort
    fields: tuple[str, ...]
    """Empty: all."""
    paths: tuple[Path, ...]
    conflicts: bool
    update: bool
    stable: bool
    execution_stats: bool

    @property
    def sort_fields(self) -> tuple[str, ...]:
        """What to sort by, without directions."""
        return tuple(name for name, _ in self.sort)

    @property
    def descending(self) -> bool:
        """Whether the order is reversed."""
        return bool(self.sort) and self.sort[0][1] == "desc"


def parse_find(content: Mapping[str, Any]) -> Find:
    """Check a request's body.

    Raises:
        UsageError: with CouchDB's codes, also those of selector and sort.
    """
    for name in content:
        if name not in _FORMS and name != "selector":
            raise UsageError(f"Invalid key {name} for this request.", code="invalid_key")
    if "selector" not in content:
        raise UsageError("Missing required key: selector", code="missing_required_key")
    given = {
        name: form(content[name]) if name in content else default
        for name, (form, default) in _FORMS.items()
    }
    is_stale = given.pop("stale")
    given.pop("partition"), given.pop("r")
    bookmark, after = given.pop("bookmark")
    return Find(
        selector=parse_selector(content["selector"]),
        bookmark=bookmark,
        after=after,
        paths=tuple(map(parse_path, given["fields"])),
        update=given.pop("update") and not is_stale,
        stable=given.pop("stable") or is_stale,
        **given,
    )


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:200]


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"Invalid boolean value: {_shown(value)}", code="invalid_boolean")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(
            f"{_shown(value)} is not an integer greater than or equal to zero",
            code="invalid_non_neg_integer",
        )
    return value


def _quorum(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(
            f"{_shown(value)} is not an integer greater than zero", code="invalid_pos_integer"
        )
    return value


def _is_stale(value: Any) -> bool:
    if value not in ("ok", "false", False):
        raise UsageError(f"Invalid value for stale: {_shown(value)}", code="invalid_value")
    return bool(value == "ok")


def _partition(value: Any) -> str:
    if value != "":
        raise UsageError("partitioned databases are not supported: leave partition out")
    return ""


def _fields(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UsageError(
            f"Fields must be an array of strings, not: {_shown(value)}", code="invalid_fields"
        )
    for field in value:
        if not isinstance(field, str):
            raise UsageError(f"Invalid JSON for field spec: {_shown(field)}", code="invalid_field")
    return tuple(value)


def _use_index(value: Any) -> tuple[str, ...]:
    names = value.removeprefix("_design/").split("/") if isinstance(value, str) else value
    if names is None:
        return ()
    if not isinstance(names, list) or len(names) > 2 or not all(isinstance(n, str) for n in names):
        raise UsageError(f"Invalid index name: {_shown(value)}", code="invalid_index_name")
    return tuple(
        name.removeprefix("_design/") if not at else name for at, name in enumerate(names)
    )


def _bookmark(value: Any) -> tuple[str, Place | None]:
    if value in (None, "", NO_BOOKMARK):
        return NO_BOOKMARK, None
    try:
        place = msgspec.json.decode(urlsafe_b64decode(value), type=Place)
    except (ValueError, TypeError, AttributeError, msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"Invalid bookmark value: {_shown(value)}", code="invalid_bookmark"
        ) from error
    return value, place


def bookmark_of(place: Place) -> str:
    """Return the text that names a row."""
    return urlsafe_b64encode(msgspec.json.encode(place)).decode()


_FORMS: Final[dict[str, tuple[Callable[[Any], Any], Any]]] = {
    "use_index": (_use_index, ()),
    "allow_fallback": (_boolean, True),
    "bookmark": (_bookmark, (NO_BOOKMARK, None)),
    "limit": (_count, LIMIT_DEFAULT),
    "skip": (_count, 0),
    "sort": (parse_sort, ()),
    "fields": (_fields, ()),
    "partition": (_partition, ""),
    "r": (_quorum, 1),
    "conflicts": (_boolean, False),
    "stale": (_is_stale, False),
    "update": (_boolean, True),
    "stable": (_boolean, False),
    "execution_stats": (_boolean, False),
}
"""Option -> how it is checked, and what stands where it is not given."""


def scan_warning(examined: int, answered: int) -> list[str]:
    """Return what is said of a query that looked at many documents for each that it answered."""
    if examined <= SCAN_RATIO_MAX * max(answered, 1):
        return []
    return [
        "The number of documents examined is high in proportion to the number of results "
        "returned. Consider adding a more specific index to improve this."
    ]


def explained(database: str, find: Find, plan: Plan) -> dict[str, Any]:
    """Return the answer of `_explain`."""
    start, end = _shown_keys(find, plan)
    return {
        "dbname": database,
        "index": plan.index.as_json(),
        "partitioned": False,
        "selector": find.selector.normal,
        "opts": {
            "use_index": list(find.use_index), "allow_fallback": find.allow_fallback,
            "bookmark": find.bookmark, "limit": find.limit, "skip": find.skip,
            "sort": dict(find.sort), "fields": list(find.fields), "partition": "", "r": 1,
            "conflicts": find.conflicts, "stale": False,
            "update": find.update, "stable": find.stable,
            "execution_stats": find.execution_stats,
        },
        "limit": find.limit,
        "skip": find.skip,
        "fields": list(find.fields),
        "mrargs": {
            "include_docs": True, "view_type": "map", "reduce": False, "partition": None,
            "start_key": start, "end_key": end,
            "direction": "rev" if find.descending else "fwd", "stable": find.stable,
            "update": find.update, "conflicts": find.conflicts or "undefined",
        },
    }  # fmt: skip


def _shown_keys(find: Find, plan: Plan) -> tuple[Any, Any]:
    if plan.is_empty:
        return None, None
    if plan.index.is_all_docs:
        low, high = plan.ids
        keys: tuple[Any, Any] = low or "", "<MAX>" if high is None else high
    else:
        shown = ["<MAX>" if part is MAXIMUM else part for part in plan.end_key]
        keys = plan.start_key, shown
    return keys[::-1] if find.descending else keys
