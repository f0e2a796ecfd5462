"""Parameters of `_changes` and their validation.

Invariants:
1. An invalid value is rejected with the reason. Unknown parameters are ignored, since functions
   see them.
2. A heartbeat replaces the timeout.

Elsewhere: rows (`changes_rows`), the pages (`gateway.aio.documents.changes_pages`), tokens
(`documents.tokens`).
Source: CouchDB's `_changes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec

from millstream.documents.asked import PackedIds
from millstream.documents.json_text import parse_object
from millstream.documents.tokens import Vector, parse_token
from millstream.errors import UsageError
from millstream.gateway.core.api.coverage import Puller
from millstream.views.core.mango.selectors import parse_selector

__all__ = [
    "ALL",
    "CHANGES_BODY_BYTES_MAX",
    "ChangesQuery",
    "FilterAsked",
    "parse_changes",
    "parse_large_changes",
]

CHANGES_BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Body with a list of ids, or a selector."""
HEARTBEAT_MS_DEFAULT: Final = 60_000
HEARTBEAT_MS_MIN: Final = 100
"""Smallest interval of heartbeats: each costs the node as much as a change."""
TIMEOUT_MS_MAX: Final = 60_000
"""How long a feed waits for the next change: maximum and default."""
"""Kinds of filters that look at a document's content, not only at its id."""
_FEEDS: Final = {"normal": "normal", "longpoll": "longpoll", "continuous": "continuous",
                 "live": "continuous", "eventsource": "eventsource"}  # fmt: skip
_COUNT_DIGITS_MAX: Final = 15

Feed = Literal["normal", "longpoll", "continuous", "eventsource"]


class FilterAsked(NamedTuple):
    """The requested filter."""

    kind: Literal["all", "ids", "design", "selector", "view", "function"] = "all"
    ids: Collection[str] = frozenset()
    selector: Any = None
    text: bytes = b""
    """Of a large selector, which is None here: the checked body of the request that has it."""
    design: str = ""
    """Without `_design/`."""
    name: str = ""
    parameters: Mapping[str, str] = {}
    """Parameters of the request, for a function."""


ALL: Final = FilterAsked()


@dataclass(frozen=True, slots=True)
class ChangesQuery:
    """A validated request to `_changes`."""

    feed: Feed = "normal"
    since: Vector | int | None = 0
    """The start. None: now. A descending feed begins at the end whatever is given, as in CouchDB.
    """
    limit: int | None = None
    descending: bool = False
    all_docs: bool = False
    include_docs: bool = False
    attachments: bool = False
    encoding_info: bool = field(default=False, kw_only=True)
    """Include the encoding of stored attachments."""
    conflicts: bool = False
    heartbeat_s: float | None = None
    timeout_s: float = TIMEOUT_MS_MAX / 1000
    seq_interval: int = 1
    filter: FilterAsked = ALL
    puller: Puller | None = None
    """Set if the client accepts records of coverage, too."""


def parse_changes(
    options: Mapping[str, str], body: Mapping[str, Any], last_event_id: str | None = None
) -> ChangesQuery:
    """Validate a request.

    Args:
        options: of the address.
        body: the object of a POST, else empty.
        last_event_id: header of a reconnecting event source; it has precedence.

    Raises:
        UsageError: `bad_request`, `query_parse_error`.
    """
    feed = _FEEDS.get(options.get("feed") or "normal")
    if feed is None:
        raise UsageError(
            "Supported `feed` types: normal, continuous, live, longpoll, eventsource",
            code="bad_request",
        )
    style = options.get("style", "main_only")
    if style not in ("main_only", "all_docs"):
        raise UsageError("Supported `style` values: main_only, all_docs", code="bad_request")
    since = options.get("since", options.get("last-event-id", "0"))
    if feed == "eventsource" and last_event_id:
        since = last_event_id
    limit, is_descending = options.get("limit"), _flag(options, "descending")
    return ChangesQuery(
        feed=feed,  # type: ignore[arg-type] # one of the values above
        since=0 if is_descending else _since(since),
        limit=None if limit is None else _count("limit", limit),
        descending=is_descending,
        all_docs=style == "all_docs",
        include_docs=_flag(options, "include_docs"),
        attachments=_flag(options, "attachments"),
        encoding_info=_flag(options, "att_encoding_info"),
        conflicts=_flag(options, "conflicts"),
        heartbeat_s=_heartbeat(options.get("heartbeat")),
        timeout_s=_timeout(options.get("timeout")),
        seq_interval=max(1, _count("seq_interval", options.get("seq_interval", "1"))),
        filter=_filter(options, body),
        puller=_puller(options),
    )


def parse_large_changes(
    text: bytes, options: Mapping[str, str], last_event_id: str | None
) -> ChangesQuery:
    """Return what `parse_changes` returns for a large body; the selector in it is checked, too.

    The text of a selector is for the caller to add.

    Raises:
        UsageError: as `parse_changes` and `parse_selector`; `bad_json`.
    """
    body = parse_object(text)
    query = parse_changes(options, body, last_event_id)
    asked = query.filter
    if asked.kind == "selector":
        parse_selector(asked.selector)
    return replace(query, filter=asked._replace(selector=None, ids=PackedIds(asked.ids)))


def _puller(options: Mapping[str, str]) -> Puller | None:
    text = options.get("coverage", "false")
    if text == "false":
        return None
    return Puller("" if text == "true" else text, _flag(options, "coverage_parts"))


def _since(text: str) -> Vector | int | None:
    return None if text.strip('"') == "now" else parse_token(text or "0")


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _COUNT_DIGITS_MAX:
        raise UsageError(
            f"Invalid value for {name}: {text[:40]!r}; must be a whole number",
            code="query_parse_error",
        )
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false")
    if text not in ("true", "false"):
        raise UsageError(
            f"Invalid boolean parameter {name}: {text[:40]!r}", code="query_parse_error"
        )
    return text == "true"


def _heartbeat(text: str | None) -> float | None:
    if text is None or text == "false":
        return None
    milliseconds = HEARTBEAT_MS_DEFAULT if text == "true" else _count("heartbeat", text)
    if not milliseconds:
        raise UsageError(
            "The heartbeat value should be a positive integer (in milliseconds).",
            code="bad_request",
        )
    return max(milliseconds, HEARTBEAT_MS_MIN) / 1000


def _timeout(text: str | None) -> float:
    milliseconds = TIMEOUT_MS_MAX if text is None else _count("timeout", text)
    return min(milliseconds, TIMEOUT_MS_MAX) / 1000


# -- filters


def _filter(options: Mapping[str, str], body: Mapping[str, Any]) -> FilterAsked:
    name = options.get("filter", "")
    if name == "_doc_ids" or (not name and "doc_ids" in body):
        return FilterAsked("ids", ids=_ids(options, body))
    if name == "_selector" or (not name and "selector" in body):
        if not isinstance(body.get("selector"), dict):
            raise UsageError(
                "the selector in the body of a POST: expected a JSON object", code="bad_request"
            )
        return FilterAsked("selector", selector=body["selector"])
    if name == "_design":
        return FilterAsked("design")
    if name == "_view":
        design, view = _named("view", options.get("view", ""))
        return FilterAsked("view", design=design, name=view)
    if not name:
        return ALL
    design, function = _named("filter", name)
    return FilterAsked("function", design=design, name=function, parameters=dict(options))


def _ids(options: Mapping[str, str], body: Mapping[str, Any]) -> frozenset[str]:
    ids: Any = body.get("doc_ids")
    if ids is None and "doc_ids" in options:
        try:
            ids = msgspec.json.decode(options["doc_ids"])
        except (msgspec.DecodeError, UnicodeEncodeError):
            ids = None
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise UsageError(
            "`doc_ids` filter parameter is not a list of doc ids.", code="bad_request"
        )
    return frozenset(ids)


def _named(parameter: str, text: str) -> tuple[str, str]:
    design, slash, name = text.removeprefix("_design/").partition("/")
    if not slash or not design or not name:
        raise UsageError(
            f"`{parameter}` must be of the form `designname/{parameter}name`", code="bad_request"
        )
    return design, name
