"""JSON indexes: which fields, of which documents, and how they stand in a design document.

    {"language": "query", "views": {NAME: {
        "map": {"fields": {"a": "asc", "b.c": "asc"}, "partial_filter_selector": {..}},
        "reduce": "_count", "options": {"def": {"fields": ["a", "b.c"]}}}}}

A document that has all the fields, and matches the selector, has one row: the values of the
fields as an array, and null. Design documents have none.

Invariants:
1. The key of a document is a function of the definition and the document alone.
2. `parse_definition(definition.as_json()) == definition`.

Elsewhere: design documents as a whole (`views.core.design.design_documents`), the rows
(`views.aio.sandbox.mapping`), which index serves a query (`views.core.mango.planning`).
Source: CouchDB's Mango.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import UsageError
from millstream.views.core.mango.paths import Unfound, at_path, parse_path
from millstream.views.core.mango.selectors import parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FIELDS_MAX", "Definition", "Sort", "key_maker", "parse_definition", "parse_sort"]

FIELDS_MAX: Final = 50
"""Most fields of one index."""
_PARTIAL: Final = "partial_filter_selector"
_OLD_PARTIAL: Final = "selector"
"""The name of the same in design documents of older CouchDB servers."""
_DESIGN: Final = "_design/"
_DIRECTIONS: Final = ("asc", "desc")

Sort = tuple[tuple[str, str], ...]
"""Fields and directions, all of them the same."""


class Definition(NamedTuple):
    """What an index holds."""

    fields: Sort
    partial: dict[str, Any]
    """The selector of what is in it, as it was written; empty: everything."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields without directions."""
        return tuple(name for name, _ in self.fields)

    def as_json(self) -> dict[str, Any]:
        """Return it as a design document has it."""
        content: dict[str, Any] = {"fields": dict(self.fields)}
        return content | ({_PARTIAL: self.partial} if self.partial else {})

    def as_listed(self) -> dict[str, Any]:
        """Return it as lists of indexes show it."""
        content: dict[str, Any] = {"fields": [{name: order} for name, order in self.fields]}
        return content | ({_PARTIAL: self.partial} if self.partial else {})


def parse_definition(content: Any, *, is_request: bool = False) -> Definition:
    """Check a definition, from a design document or a request.

    Raises:
        UsageError: `invalid_index`, `invalid_key`, `missing_required_key`, as `parse_sort` and
            `parse_selector`.
    """
    if not isinstance(content, dict):
        raise UsageError(
            f"JSON indexes must be an object, not: {_shown(content)}", code="invalid_index"
        )
    for name in content:
        if name not in ("fields", _PARTIAL) and (is_request or name != _OLD_PARTIAL):
            raise UsageError(f"Invalid key {name} for this request.", code="invalid_key")
    if "fields" not in content:
        raise UsageError("Missing required key: fields", code="missing_required_key")
    written = content["fields"]
    if isinstance(written, dict):
        written = [{name: order} for name, order in written.items()]
    fields = parse_sort(written)
    names = [name for name, _ in fields]
    if not names or len(names) > FIELDS_MAX or len(set(names)) < len(names):
        raise UsageError(f"an index has 1 to {FIELDS_MAX} fields, each once", code="invalid_index")
    for name in names:
        parse_path(name)
    partial = content.get(_PARTIAL) or content.get(_OLD_PARTIAL) or {}
    parse_selector(partial)
    return Definition(fields, partial)


def parse_sort(content: Any) -> Sort:
    """Check what to sort by.

    Raises:
        UsageError: `invalid_sort_json`, `invalid_sort_field`, `invalid_sort_dir`,
            `unsupported_mixed_sort`.
    """
    if not isinstance(content, list):
        raise UsageError(
            f"Sort must be an array of sort specs, not: {_shown(content)}",
            code="invalid_sort_json",
        )
    fields = tuple(map(_sort_field, content))
    if len({order for _, order in fields}) > 1:
        raise UsageError(
            "Sorts currently only support a single direction for all fields.",
            code="unsupported_mixed_sort",
        )
    return fields


def _sort_field(content: Any) -> tuple[str, str]:
    if isinstance(content, str) and content:
        return content, "asc"
    if isinstance(content, dict) and len(content) == 1:
        ((name, order),) = content.items()
        if order not in _DIRECTIONS:
            raise UsageError(f"Invalid sort direction: {_shown(order)}", code="invalid_sort_dir")
        if name:
            return name, order
    raise UsageError(f"Invalid sort field: {_shown(content)}", code="invalid_sort_field")


def _shown(content: Any) -> str:
    return msgspec.json.encode(content).decode()[:200]


def key_maker(definition: Definition) -> Callable[[dict[str, Any]], list[Any] | None]:
    """Return what gives the key of a document, None for one that is not in the index."""
    paths = [parse_path(name) for name in definition.columns]
    matches = parse_selector(definition.partial).matches

    def key(document: dict[str, Any]) -> list[Any] | None:
        if str(document.get("_id", "")).startswith(_DESIGN):
            return None
        values = [at_path(document, path) for path in paths]
        if any(isinstance(value, Unfound) for value in values) or not matches(document):
            return None
        return values

    return key
