"""Queries of a view: the parameters, and what they refuse.

A query is made of JSON values by parameter name; `url_options` makes them of a URL's texts,
`body_options` of a request's body.

Invariants:
1. `parse_query(query_options(query)) == query`: so a query goes from process to process.
2. A body that is too long, too deep or no JSON is refused and costs no more than its length.

Elsewhere: queries over the trees of an index (`views.core.query.executor`), loading of documents.
Source: the query parameters of CouchDB 3.4 and its refusals.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from millstream.errors import UsageError
from millstream.views.core.collation import KEY_DEPTH_MAX, encode_key
from millstream.views.core.query.wait_for import Wanted, vector_from_json, vector_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "KNOWN_NAMES",
    "MISSING",
    "QUERIES_MAX",
    "QUERY_BODY_BYTES_MAX",
    "QUERY_TIMEOUT_MS_DEFAULT",
    "QUERY_TIMEOUT_MS_MAX",
    "Query",
    "body_options",
    "multi_options",
    "parse_query",
    "query_options",
    "url_options",
]

QUERY_BODY_BYTES_MAX: Final = 1024 * 1024
QUERIES_MAX: Final = 100
"""Queries in one request to `queries`."""
QUERY_TIMEOUT_MS_DEFAULT: Final = 60_000
"""How long a query waits for its index."""
QUERY_TIMEOUT_MS_MAX: Final = 600_000


class _Missing:
    """The value of a key that was not given; None is a key."""

    __slots__ = ()

    def __reduce__(self) -> str:
        return "MISSING"  # in each process the one that is there


MISSING: Final = _Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A checked query; keys are decoded JSON, MISSING where not given."""

    key: Any = MISSING
    keys: Sequence[Any] | None = None
    startkey: Any = MISSING
    endkey: Any = MISSING
    startkey_docid: str | None = None
    endkey_docid: str | None = None
    inclusive_end: bool = True
    descending: bool = False
    skip: int = 0
    limit: int | None = None
    reduce: bool | None = None
    group: bool | None = None
    group_level: int | None = None
    include_docs: bool = False
    conflicts: bool = False
    attachments: bool = False
    att_encoding_info: bool = False
    update: Literal["true", "false", "lazy"] = "true"
    """Whether the index is brought up to date before the answer, not at all, or after it."""
    stable: bool = False
    sorted: bool = True
    update_seq: bool = False
    at: Mapping[int, Wanted] | None = None
    """What the index must have reached, by partition."""
    timeout: int = QUERY_TIMEOUT_MS_DEFAULT
    """Milliseconds."""
    on_error: Literal["stop", "continue"] = "stop"
    """Whether a node that does not answer fails the query, or is named beside the others' rows."""

    @property
    def level(self) -> int | None:
        """Elements of array keys that make a group: 0 one group for all, None exact keys."""
        if self.group_level is not None:
            return self.group_level
        return None if self.group else 0

    def is_reduced(self, has_reduce: bool) -> bool:
        """Whether a view with or without reduce function answers groups rather than rows."""
        return has_reduce if self.reduce is None else self.reduce

    def check(
        self,
        has_reduce: bool,
        encode: Callable[[Any], bytes] = encode_key,
        *,
        may_be_empty: bool = False,
    ) -> None:
        """Refuse what contradicts itself or the view.

        Args:
            has_reduce: whether the view has a reduce function.
            encode: the order of the view's keys.
            may_be_empty: whether a range that nothing is in is good, as it is in `_all_docs`.

        Raises:
            UsageError: `query_parse_error`.
        """
        reduced = self.is_reduced(has_reduce)
        if reduced and not has_reduce:
            raise _refused("reduce is requested, but the view has no reduce function")
        if not reduced and (self.group or self.group_level):
            raise _refused("grouping needs a reduce function and reduce not false")
        if self.group is False and self.group_level:
            raise _refused("group=false contradicts group_level above 0")
        if reduced and (self.include_docs or self.conflicts):
            raise _refused("include_docs and conflicts need rows: add reduce=false")
        self._check_keys(reduced, encode)
        if not may_be_empty:
            self._check_range(encode)

    def _check_keys(self, reduced: bool, encode: Callable[[Any], bytes]) -> None:
        if self.keys is not None:
            if reduced and self.level is not None:
                raise _refused("keys with a reduce function needs group=true")
            one: Sequence[Any] = self.keys
            bounds = [self.key, self.startkey, self.endkey]
            message = "keys cannot be combined with key, startkey or endkey"
        elif self.key is not MISSING:
            one, bounds = (self.key,), [self.startkey, self.endkey]
            message = "key cannot be combined with another startkey or endkey"
        else:
            return
        given = [bound for bound in bounds if bound is not MISSING]
        if given and (len(one) != 1 or any(encode(bound) != encode(one[0]) for bound in given)):
            raise _refused(message)

    def _check_range(self, encode: Callable[[Any], bytes]) -> None:
        if self.startkey is MISSING or self.endkey is MISSING:
            return
        start, end = encode(self.startkey), encode(self.endkey)
        if (start < end) if self.descending else (start > end):
            raise _refused(
                "No rows can match your key range: reverse startkey and endkey or the value "
                "of descending"
            )


def _refused(message: str) -> UsageError:
    return UsageError(message, code="query_parse_error")


_ALIASES: Final = {
    "start_key": "startkey",
    "end_key": "endkey",
    "start_key_doc_id": "startkey_docid",
    "end_key_doc_id": "endkey_docid",
}
_JSON_NAMES: Final = frozenset({"key", "startkey", "endkey"})
_BOOL_NAMES: Final = frozenset({
    "inclusive_end", "descending", "reduce", "group", "include_docs", "conflicts", "attachments",
    "att_encoding_info", "stable", "sorted", "update_seq",
})  # fmt: skip
_COUNT_NAMES: Final = frozenset({"skip", "limit", "group_level", "timeout"})
_COUNT_MAX: Final = 2**53 - 1
_TEXT_NAMES: Final = frozenset({"startkey_docid", "endkey_docid"})
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "update": ("true", "false", "lazy"),
    "stale": ("ok", "update_after", "false"),
    "on_error": ("stop", "continue"),
}
KNOWN_NAMES: Final = frozenset({
    "keys", "at", "partition", *_JSON_NAMES, *_BOOL_NAMES, *_COUNT_NAMES, *_TEXT_NAMES, *_CHOICES,
})  # fmt: skip
_STALE: Final[dict[str, dict[str, Any]]] = {
    "ok": {"update": "false", "stable": True},
    "update_after": {"update": "lazy", "stable": True},
    "false": {"update": "true"},
}


def url_options(parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the JSON values of a URL's parameters, for `parse_query`.

    Of a parameter given twice the last one counts.

    Raises:
        UsageError: `query_parse_error`; `bad_request` for a text that is no JSON.
    """
    options: dict[str, Any] = {}
    for given, text in parameters:
        name = _ALIASES.get(given, given)
        value: Any = text
        if name in _JSON_NAMES or name == "keys" or (name == "at" and text.startswith("{")):
            value = _decoded(given, text)
        elif name in _BOOL_NAMES:
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif name in _COUNT_NAMES:
            value = _number(text)
        options[name] = value
    return options


def _number(text: str) -> int | str:
    """Return the integer that a short text is, else the text, which is refused later."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        return int(text)
    return text


def _decoded(name: str, text: str | bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}", code="bad_request") from error


def body_options(body: bytes) -> dict[str, Any]:
    """Return the JSON values in a request's body, for `parse_query`; nothing if it is empty.

    A URL's win over these: `parse_query(body_options(body) | url_options(parameters))`.

    Raises:
        UsageError: `query_parse_error`; `bad_request`: too long, no JSON, no object.
    """
    if not body.strip():
        return {}
    return _named(_body(body))


def multi_options(body: bytes) -> list[dict[str, Any]]:
    """Return the JSON values of each query in the body `{"queries": [{..}, ..]}`.

    They win over a URL's: `parse_query(url_options(parameters) | options)`.

    Raises:
        UsageError: as `body_options`.
    """
    queries = _body(body).get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, dict) for query in queries):
        raise _refused('the body must be {"queries": [{..}, ..]}')
    if len(queries) > QUERIES_MAX:
        raise _refused(f"{len(queries)} queries are more than {QUERIES_MAX}")
    return [_named(query) for query in queries]


def _body(body: bytes) -> dict[str, Any]:
    if len(body) > QUERY_BODY_BYTES_MAX:
        raise UsageError(
            f"a query of {len(body)} bytes is longer than {QUERY_BODY_BYTES_MAX}",
            code="bad_request",
        )
    content = _decoded("the body", body)
    if not isinstance(content, dict):
        raise UsageError("the body of a query must be a JSON object", code="bad_request")
    return content


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    return {_ALIASES.get(name, name): value for name, value in options.items()}


def parse_query(options: Mapping[str, Any]) -> Query:
    """Return the query that `options` (decoded JSON values by parameter name) ask for.

    Parameters that nobody knows are ignored, as in CouchDB.

    Raises:
        UsageError: `query_parse_error`: a value of the wrong type or out of range; `bad_key`.
    """
    members: dict[str, Any] = {}
    for given, value in options.items():
        name = _ALIASES.get(given, given)
        if name not in KNOWN_NAMES:
            continue
        checked = _checked(name, given, value)
        if name == "stale":
            members |= _STALE[checked]
        else:
            members[name] = checked
    if "stale" in options and "update" in options:
        raise _refused("use either stale or update")
    if members.get("timeout", 0) > QUERY_TIMEOUT_MS_MAX:
        raise _refused(f"timeout: at most {QUERY_TIMEOUT_MS_MAX} milliseconds")
    return Query(**members)


def _checked(name: str, given: str, value: Any) -> Any:
    """Return the value of one parameter as `Query` has it."""
    if name in _JSON_NAMES:
        return _key(value)
    if name == "keys":
        if not isinstance(value, list | tuple):
            raise _refused("keys must be an array")
        return tuple(map(_key, value))
    if name == "at":
        return vector_from_json(value)
    if name in _BOOL_NAMES:
        if not isinstance(value, bool):
            raise _refused(f"Invalid value for boolean: {_shown(value)} ({given})")
    elif name in _COUNT_NAMES:
        _check_count(given, value)
    elif name in _TEXT_NAMES:
        if not isinstance(value, str):
            raise _refused(f"{given} must be a string")
    elif name in _CHOICES:
        if isinstance(value, bool):
            value = "true" if value else "false"
        if value not in _CHOICES[name]:
            raise _refused(f"{given} must be one of {', '.join(_CHOICES[name])}")
    else:
        assert name == "partition", "all others are known"
        raise _refused("partitioned databases are not supported: leave partition out")
    return value


def _check_count(given: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refused(f"Invalid value for integer: {_shown(value)} ({given})")
    if not 0 <= value <= _COUNT_MAX:
        raise _refused(f"Invalid value for positive integer: {_shown(value)} ({given})")


def _shown(value: Any) -> str:
    shown = repr(value) if not isinstance(value, str) else f'"{value}"'
    return shown if len(shown) <= 40 else shown[:37] + "..."


def _key(value: Any) -> Any:
    """Return a key that can be encoded; only nested ones need a look."""
    if isinstance(value, list | dict):
        _check_depth(value, KEY_DEPTH_MAX)
    elif isinstance(value, float):
        encode_key(value)
    return value


def _check_depth(value: Any, depth: int) -> None:
    if not depth:
        raise _refused(f"a key nested deeper than {KEY_DEPTH_MAX}")
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, list | dict):
            _check_depth(inner, depth - 1)


def query_options(query: Query) -> dict[str, Any]:
    """Return the JSON values that `parse_query` makes the same query of."""
    options: dict[str, Any] = {}
    for field in fields(query):
        value = getattr(query, field.name)
        if value != field.default:
            options[field.name] = value
    if query.at is not None:
        options["at"] = vector_to_json(query.at)
    if query.keys is not None:
        options["keys"] = list(query.keys)
    return options
