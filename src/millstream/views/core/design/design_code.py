"""The functions of design documents that are no views: where they are, and what they said.

    validate_doc_update   (new document, old one or null, user, security object): throws to refuse
    filters.NAME          (document, request): whether it is in a feed
    views.NAME.map        as a filter: whether it emits anything
    updates.NAME          (document or null, request): [document or null, answer]

Invariants:
1. A refusal is an `AccessError` with the code `forbidden` or `unauthorized`; whatever else a
   function ends with is its own fault and no `AccessError`.
2. Every stored design document can be read, also one that another database judged good. What
   cannot be run in it is a fault of its member and of no other one.

Elsewhere: running them (`views.aio.sandbox.functions`), which of them are asked
(`databases.design_functions`). Source: CouchDB's query server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import AccessError, ConditionError, MillstreamError
from millstream.views.core.design.design_documents import DESIGN_PREFIX, read_design

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BROKEN",
    "CODE_BYTES_MAX",
    "VALIDATE",
    "DesignCode",
    "DocumentChange",
    "Updated",
    "missing",
    "read_code",
    "reason_of",
    "refusal",
]

VALIDATE: Final = "validate_doc_update"
CODE_BYTES_MAX: Final = 1024 * 1024
"""Size of a design document whose functions other than views are run. A larger one is stored."""
BROKEN: Final = {
    "time": "it has no end within the time limit",
    "memory": "it needs more memory than it may have",
    "died": "its process ended",
    "output": "its answer is too large, or none",
    "parse": "what it was given is nested too deeply",
}
"""Failures of the child, and what they say of the function."""


class DocumentChange(NamedTuple):
    """A change that is to be validated: JSON texts, `old` None for a new document."""

    new: bytes
    old: bytes | None


class Updated(NamedTuple):
    """What an update function wants: a document to be stored, and what is answered."""

    document: dict[str, Any] | None
    answer: dict[str, Any]
    """Has `code`, `headers`, and one of `body`, `base64` and `json`, if the function returned
    them."""


@dataclass(frozen=True, slots=True)
class DesignCode:
    """The functions of one revision of a design document."""

    key: tuple[str, str, str]
    """Bucket, name without `_design/`, revision: what tells it from all others."""
    text: str
    """The whole document as JSON."""
    validates: bool
    """Whether it has `validate_doc_update`, of whatever form."""
    filters: frozenset[str]
    updates: frozenset[str]
    views: frozenset[str]
    faults: Mapping[str, str]
    """Why the functions of a member cannot be run, by member."""

    @property
    def has_functions(self) -> bool:
        """Whether any function of it is run, but for `validate_doc_update`."""
        return bool(self.filters or self.updates or self.views)

    @property
    def id(self) -> str:
        """The document's id."""
        return DESIGN_PREFIX + self.key[1]


def read_code(
    bucket: str, name: str, rev: str, body: bytes, content: Mapping[str, Any] | None = None
) -> DesignCode:
    """Return the functions of a design document, whatever stands in it.

    Filters, updates and views are those that are text, in a document of the language JavaScript.

    Args:
        bucket: its name, or uuid.
        name: without `_design/`.
        rev: its revision.
        body: a JSON object without `_id` and `_rev`.
        content: its members, if they are known.
    """
    content = read_design(body) if content is None else content
    language = content.get("language", "javascript")
    faults: dict[str, str] = {}
    validate = content.get(VALIDATE)
    if validate is not None:
        if not isinstance(validate, str):
            faults[VALIDATE] = f"`{VALIDATE}` must be a string"
        elif language != "javascript":
            faults[VALIDATE] = f"`{VALIDATE}` is not run in the language {language!r}"
    if language != "javascript":
        content = {}
    members = {member: content.get(member) or {} for member in ("filters", "updates", "views")}
    if len(body) > CODE_BYTES_MAX:
        large = (
            f"the document has {len(body)} bytes; functions of one are run up to {CODE_BYTES_MAX}"
        )
        faults |= {member: large for member, value in members.items() if value}
        if validate is not None:
            faults.setdefault(VALIDATE, large)
        content, body = {}, b"{}"
    head = msgspec.json.encode({"_id": DESIGN_PREFIX + name, "_rev": rev})
    text = head[:-1] + (b"}" if body == b"{}" else b"," + body.lstrip()[1:])
    views = content.get("views")
    maps = views.items() if isinstance(views, dict) else ()
    return DesignCode(
        (bucket, name, rev), text.decode(), validate is not None,
        _named(content, "filters", faults), _named(content, "updates", faults),
        frozenset(
            view for view, member in maps
            if isinstance(member, dict) and isinstance(member.get("map"), str)
        ),
        faults,
    )  # fmt: skip


def _named(content: Mapping[str, Any], member: str, faults: dict[str, str]) -> frozenset[str]:
    functions = content.get(member) or {}
    if not isinstance(functions, dict):
        functions, faults[member] = {}, f"`{member}` must be an object of functions"
    found = frozenset(name for name, source in functions.items() if isinstance(source, str))
    if len(found) < len(functions):
        faults[member] = f"`{member}` must be an object of functions"
    return found


def missing(what: str, name: str, code: DesignCode) -> MillstreamError:
    """Return the error that there is no function of a name, or that none of its kind is run."""
    fault = code.faults.get(f"{what}s")
    if fault is not None and not code.has_functions:
        return MillstreamError(f"{code.id}: {fault}", code="invalid_design_doc")
    return ConditionError(f"{code.id} has no {what} {name!r}", code="not_found")


def reason_of(result: Any) -> str:
    """Return the sentence in a failure."""
    return str(result.get("reason", "")) if isinstance(result, dict) else ""


def refusal(result: Any, code: DesignCode, what: str) -> MillstreamError:
    """Return the error that a call ended with."""
    thrown = result.get("thrown") if isinstance(result, dict) else None
    if isinstance(thrown, dict):
        for name in ("forbidden", "unauthorized"):
            if name in thrown:
                return AccessError(_text(thrown[name]), code=name)
        if isinstance(thrown.get("error"), str):
            return MillstreamError(_text(thrown.get("reason", "")), code=thrown["error"])
    name, where = _error_name(result), f"{what} of {code.id}"
    if name == "compile":
        return MillstreamError(
            f"{where} does not compile: {reason_of(result)}", code="compilation_error"
        )
    if name in BROKEN:
        return MillstreamError(f"{where} failed: {BROKEN[name]}", code="function_failed")
    return MillstreamError(f"{where}: {reason_of(result) or _text(thrown)}", code=name)


def _error_name(result: Any) -> str:
    name = result.get("error") if isinstance(result, dict) else None
    return name if isinstance(name, str) and name else "unknown_error"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
