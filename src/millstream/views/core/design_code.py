"""The functions of design documents that are no views: where they are, and what they said.

    validate_doc_update   (new document, old one or null, user, security object): throws to refuse
    filters.NAME          (document, request): whether it is in a feed
    views.NAME.map        as a filter: whether it emits anything
    updates.NAME          (document or null, request): [document or null, answer]

Invariants:
1. A refusal is an `AccessError` with the code `forbidden` or `unauthorized`; whatever else a
   function ends with is its own fault and no `AccessError`.

Elsewhere: running them (`views.aio.functions`), which of them are asked (`node.design_functions`).
Source: CouchDB's query server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millstream.errors import AccessError, ConditionError, MillstreamError, UsageError
from millstream.views.core.design import DESIGN_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BROKEN",
    "VALIDATE",
    "DesignCode",
    "Revised",
    "Updated",
    "missing",
    "read_code",
    "reason_of",
    "refusal",
]

VALIDATE: Final = "validate_doc_update"
BROKEN: Final = {
    "time": "it has no end within the time limit",
    "memory": "it needs more memory than it may have",
    "died": "its process ended",
    "output": "its answer is too large, or none",
    "parse": "what it was given is nested too deeply",
}
"""Failures of the child, and what they say of the function."""


class Revised(NamedTuple):
    """A change that is to be validated: JSON texts, `old` None for a new document."""

    new: bytes
    old: bytes | None


class Updated(NamedTuple):
    """What an update function wants: a document to be stored, and what is answered."""

    document: dict[str, Any] | None
    answer: dict[str, Any]
    """With `code`, `headers`, and one of `body`, `base64` and `json`, as far as it says."""


@dataclass(frozen=True, slots=True)
class DesignCode:
    """The functions of one revision of a design document."""

    key: tuple[str, str, str]
    """Bucket, name without `_design/`, revision: what tells it from all others."""
    text: str
    """The whole document as JSON."""
    validates: bool
    filters: frozenset[str]
    updates: frozenset[str]
    views: frozenset[str]

    @property
    def id(self) -> str:
        """Of the document."""
        return DESIGN_PREFIX + self.key[1]


def read_code(bucket: str, name: str, rev: str, body: bytes) -> DesignCode:
    """Return the functions of a design document; none where its language is not JavaScript.

    Args:
        bucket: its name, or uuid.
        name: without `_design/`.
        rev: its revision.
        body: a JSON object without `_id` and `_rev`.

    Raises:
        UsageError: `invalid_design_doc`: a member that has functions is of another form.
    """
    content = msgspec.json.decode(body)
    if content.get("language", "javascript") != "javascript":
        content = {}
    validate = content.get(VALIDATE)
    if validate is not None and not isinstance(validate, str):
        raise UsageError(f"`{VALIDATE}` must be a string", code="invalid_design_doc")
    views = content.get("views")
    maps = views.items() if isinstance(views, dict) else ()
    text = msgspec.json.encode({"_id": DESIGN_PREFIX + name, "_rev": rev, **content}).decode()
    return DesignCode(
        (bucket, name, rev), text, validate is not None, _named(content, "filters"),
        _named(content, "updates"),
        frozenset(
            view for view, member in maps
            if isinstance(member, dict) and isinstance(member.get("map"), str)
        ),
    )  # fmt: skip


def _named(content: Mapping[str, Any], member: str) -> frozenset[str]:
    functions = content.get(member) or {}
    if not isinstance(functions, dict) or not all(isinstance(f, str) for f in functions.values()):
        raise UsageError(f"`{member}` must be an object of functions", code="invalid_design_doc")
    return frozenset(functions)


def missing(what: str, name: str, code: DesignCode) -> ConditionError:
    """Return the error that there is no function of a name."""
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
