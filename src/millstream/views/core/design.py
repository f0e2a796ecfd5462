"""Design documents: which views a bucket has, checked once and then trusted.

    {"language": "javascript" | "python",
     "views": {"<view>": {"map": source, "reduce": source or built-in or absent}, ...}}

In the language `python` a map is "registered:<name>": a callable which the operator registered
under that name; Python source that came over the network is never run.

Invariants:
1. The signature is a function of what decides the rows (views, language) and of nothing else.
2. A parsed design document has at least one view; view numbers are positions in `views`.

Elsewhere: whether a source compiles (`views.aio.sandbox`), the registered callables
(`views.core.registered`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from millstream.errors import UsageError
from millstream.views.core.reduce import BUILTIN_REDUCES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DESIGN_PREFIX",
    "REGISTERED",
    "VIEWS_MAX",
    "DesignDocument",
    "View",
    "design_name",
    "parse_design",
]

DESIGN_PREFIX: Final = "_design/"
REGISTERED: Final = "registered:"
VIEWS_MAX: Final = 100
_NAME_BYTES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class View:
    """One view: `map` and `reduce` are sources, `registered:` names or, for reduce, built-ins."""

    name: str
    map: str
    reduce: str = ""

    @property
    def has_builtin_reduce(self) -> bool:
        """Whether the reduce is one of `_count`, `_sum`, `_stats`."""
        return self.reduce in BUILTIN_REDUCES

    @property
    def has_own_reduce(self) -> bool:
        """Whether the reduce is a function of the design document's own."""
        return bool(self.reduce) and not self.has_builtin_reduce


@dataclass(frozen=True, slots=True)
class DesignDocument:
    """A checked design document."""

    name: str
    language: Literal["javascript", "python"]
    views: tuple[View, ...]
    include_design: bool
    signature: str

    def number_of(self, view_name: str) -> int:
        """Return the position of a view.

        Raises:
            UsageError: `missing_named_view`.
        """
        for number, view in enumerate(self.views):
            if view.name == view_name:
                return number
        names = ", ".join(view.name for view in self.views)
        raise UsageError(
            f"design document {self.name!r} has no view {view_name!r}; it has: {names}",
            code="missing_named_view",
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document from which this one can be parsed again."""
        views = {
            view.name: {"map": view.map} | ({"reduce": view.reduce} if view.reduce else {})
            for view in self.views
        }
        options = {"options": {"include_design": True}} if self.include_design else {}
        return {"_id": DESIGN_PREFIX + self.name, "language": self.language, "views": views,
                **options}  # fmt: skip


def design_name(text: str) -> str:
    """Return the name of a design document given as `name` or `_design/name`.

    Raises:
        UsageError: `invalid_design_doc`: empty, too long, or with a slash.
    """
    name = text.removeprefix(DESIGN_PREFIX)
    if not name or "/" in name or len(name.encode()) > _NAME_BYTES_MAX:
        raise _invalid(
            f"design document name {name!r} must have 1 to {_NAME_BYTES_MAX} bytes and no slash"
        )
    return name


def parse_design(document: Mapping[str, Any], name: str = "") -> DesignDocument:
    """Check a design document.

    Args:
        document: the decoded JSON object; its `_id` is used where `name` is not given.
        name: with or without `_design/`.

    Raises:
        UsageError: `invalid_design_doc`, with the member at fault named.
    """
    if not isinstance(document, dict):
        raise _invalid("a design document is a JSON object")
    name = design_name(name or str(document.get("_id", "")))
    language = document.get("language", "javascript")
    if language not in ("javascript", "python"):
        raise _invalid(f"language {language!r} is not known; javascript and python are")
    members = document.get("views")
    if not isinstance(members, dict) or not members:
        raise _invalid("`views` must be an object with at least one view")
    if len(members) > VIEWS_MAX:
        raise _invalid(f"{len(members)} views are more than {VIEWS_MAX}")
    if "lib" in members or "lib" in document:
        raise _invalid("`lib` modules are not supported yet")
    views = tuple(_parse_view(view, members[view], language) for view in sorted(members))
    include_design = _parse_options(document.get("options", {}))
    return DesignDocument(
        name, language, views, include_design, _signature(views, language, include_design)
    )


def _parse_view(name: str, member: Any, language: str) -> View:
    if not name or "/" in name or len(name.encode()) > _NAME_BYTES_MAX:
        raise _invalid(f"view name {name!r} must have 1 to {_NAME_BYTES_MAX} bytes and no slash")
    if not isinstance(member, dict) or not isinstance(member.get("map"), str):
        raise _invalid(f"view {name!r} needs a `map` that is a string")
    reduce = member.get("reduce") or ""
    if not isinstance(reduce, str):
        raise _invalid(f"`reduce` of view {name!r} must be a string")
    reduce = reduce.strip()
    if reduce.startswith("_") and reduce not in BUILTIN_REDUCES:
        known = ", ".join(BUILTIN_REDUCES)
        raise _invalid(f"view {name!r}: no built-in reduce {reduce!r}; there are: {known}")
    if member.get("options"):
        raise _invalid(f"view {name!r}: view options are not supported yet")
    view = View(name, member["map"].strip(), reduce)
    if language == "python":
        for source in (view.map, "" if view.has_builtin_reduce else view.reduce):
            if source and not source.startswith(REGISTERED):
                raise _invalid(
                    f"view {name!r}: in the language python, functions are given as "
                    f"{REGISTERED}<name>; Python source in a document is never run"
                )
    return view


def _parse_options(options: Any) -> bool:
    if not isinstance(options, dict):
        raise _invalid("`options` must be an object")
    for option, value in options.items():
        if option != "include_design" and value:
            raise _invalid(f"option {option!r} is not supported")
    return bool(options.get("include_design", False))


def _signature(views: tuple[View, ...], language: str, include_design: bool) -> str:
    decides = [[[view.name, view.map, view.reduce] for view in views], language, include_design]
    return sha256(msgspec.json.encode(decides)).hexdigest()[:32]


def _invalid(message: str) -> UsageError:
    return UsageError(message, code="invalid_design_doc")
