"""Asks nodes for the rows of a view.

Invariants:
1. The rows of some partitions are of one commit of the index of their node, and of exactly these
   partitions.
2. If a node refuses because partitions move, the query is repeated by a new map, for
   `reconnectTimeout`. An answer that has begun is never repeated: it is an error if it breaks off.
3. Memory holds one piece of the answer.

Elsewhere: Spark's side (`source`), cutting answers (`answer`), parameters
(`views.core.query.parameters`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

import msgspec

from millstream.client.databases import Database
from millstream.client.http import http_of
from millstream.client.kv import Client
from millstream.errors import ConditionError, MillstreamError, RoutingError, UsageError
from millstream.pipelines.change_stream.connection_options import split_options
from millstream.pipelines.change_stream.control import open_again, open_client
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.patience import Wait
from millstream.pipelines.views.answer import ViewRow, ViewRows
from millstream.views.core.design.design_documents import DESIGN_PREFIX, parse_design
from millstream.views.core.query.parameters import (
    QUERY_TIMEOUT_MS_DEFAULT,
    parse_query,
    query_options,
    url_options,
)

__all__ = ["ViewOptions", "shares_of", "view_options", "view_rows_of"]

ANSWER_S: Final = 60.0
"""How long anything of an answer may take beyond the wait for the index."""
_PARAMETERS: Final = {
    "key": "rows of this key, as JSON",
    "keys": "rows of these keys, a JSON array",
    "startkey": "first key of a range, as JSON",
    "endkey": "last key of a range, as JSON",
    "startkey_docid": "document id where the range begins within startkey",
    "endkey_docid": "document id where the range ends within endkey",
    "inclusive_end": "false: without the rows of endkey",
    "descending": "true: from the high end",
    "skip": "rows or groups to leave out first",
    "limit": "rows or groups at most",
    "reduce": "false: rows, though the view has a reduce",
    "group": "true: a group per key",
    "group_level": "a group per first N elements of array keys",
    "timeout": f"milliseconds to wait for the index; default {QUERY_TIMEOUT_MS_DEFAULT}",
}
_OWN: Final = (
    ("ddoc", "name of the design document; must be given"),
    ("view", "name of the view; must be given"),
    ("stale", "update: the index first takes in all there is (default); ok: as it is; "
     "wait:VECTOR: once it has reached positions, tokens, or an update_seq"),
    ("numPartitions", "1: one task asks one node, which needs no admin role on several nodes"),
    *_PARAMETERS.items(),
)  # fmt: skip
_GATHERED: Final = ("keys", "skip", "limit")
_PASSING: Final = frozenset(
    {"not_my_partition", "design_differs", "index_unavailable", "unreachable"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewOptions:
    """Checked options; travels to the executors with the reader."""

    source: SourceOptions
    ddoc: str
    view: str
    query: dict[str, Any]
    """JSON values by parameter name."""
    is_one_task: bool


def view_options(
    given: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> ViewOptions:
    """Check the options of a view.

    Raises:
        UsageError: `unknown_option`, `bad_option`, `query_parse_error`, `bad_request`.
    """
    source, own = split_options(given, _OWN, "millstream.view", environ)
    for name in ("ddoc", "view"):
        if not own.get(name):
            raise UsageError(f"option {name} must be given", code="bad_option")
    if own.get("numPartitions", "1") != "1":
        raise UsageError(
            "option numPartitions of millstream.view: 1, or leave it out: a task per node",
            code="bad_option",
        )
    options = url_options([(n, text) for n, text in own.items() if n in _PARAMETERS and text])
    query = parse_query(options | _freshness(own.get("stale", "")))
    return ViewOptions(
        source=source,
        ddoc=own["ddoc"].removeprefix("_design/"),
        view=own["view"],
        query=query_options(query),
        is_one_task="numPartitions" in own or any(name in options for name in _GATHERED),
    )


def _freshness(text: str) -> dict[str, Any]:
    """Return what `stale` comes to as parameters of the query."""
    if text in ("", "update"):
        return {}
    if text == "ok":
        return {"update": "false"}
    if text.startswith("wait:"):
        vector = url_options([("at", text.removeprefix("wait:"))])
        return {"update": "false", **vector}
    raise UsageError(
        f"option stale {text!r:.80}: write ok, update, or wait: and a vector", code="bad_option"
    )


def shares_of(options: ViewOptions) -> list[Sequence[int] | None]:
    """Return the partitions of each task; None for all, put together by the node that is asked.

    Raises:
        RoutingError: no node serves some partition.
        MillstreamError: the node cannot be asked.
    """
    with open_again(options.source) as client:
        owners = client.cluster_map.owners
        if options.is_one_task or len(set(owners)) < 2 or _is_reduced(options, client):
            return [None]
    if min(owners) < 0:
        at = owners.index(-1)
        raise RoutingError(f"no node serves partition {at} now; try again later")
    return [[p for p, of in enumerate(owners) if of == owner] for owner in sorted(set(owners))]


def _is_reduced(options: ViewOptions, client: Client) -> bool:
    """Whether the answer has groups; in most cases the query alone tells."""
    query = parse_query(options.query)
    if query.reduce is not None or query.group or query.group_level is not None:
        return query.is_reduced(has_reduce=True)
    found = client.get(DESIGN_PREFIX + options.ddoc)
    if found is None:
        message = f"bucket {client.bucket!r} has no design document {options.ddoc!r}"
        raise ConditionError(message, code="missing")
    views = {view.name: view for view in parse_design(found.value, options.ddoc).views}
    if options.view not in views:
        message = f"design document {options.ddoc!r} has no view {options.view!r}"
        raise UsageError(message, code="missing_named_view")
    return query.is_reduced(has_reduce=bool(views[options.view].reduce))


def view_rows_of(
    options: ViewOptions, partition_ids: Sequence[int] | None
) -> Iterator[list[ViewRow]]:
    """Yield the rows of one task as they arrive.

    Args:
        options: of the view.
        partition_ids: whose rows; None for the whole answer.

    Raises:
        MillstreamError: what the nodes answer, or `cut_off`, `bad_answer`.
    """
    left = partition_ids
    while True:
        answered, pieces = _begun(options, left)
        rows = ViewRows()
        for piece in pieces:
            yield rows.feed(piece)
        rows.close()
        left = None if left is None else [p for p in left if p not in answered]
        if not left:
            return


def _begun(
    options: ViewOptions, wanted: Sequence[int] | None
) -> tuple[frozenset[int], Iterator[bytes]]:
    """Return an answer that has begun, and for which of the partitions it is."""
    wait = Wait(options.source.reconnect_s)
    while True:
        try:
            answered, pieces = _asked(options, wanted)
            first = next(pieces, b"")
            wait.end()
            return answered, chain((first,), pieces)
        except MillstreamError as error:
            if error.code not in _PASSING:
                raise
            wait.pause(error)


def _asked(
    options: ViewOptions, wanted: Sequence[int] | None
) -> tuple[frozenset[int], Iterator[bytes]]:
    """Ask any node for everything, or the node of the first partition for those it has."""
    wait_s = ANSWER_S + int(options.query.get("timeout", QUERY_TIMEOUT_MS_DEFAULT)) / 1000
    with open_client(options.source) as client:
        map_ = client.cluster_map
        if wanted is None:
            database = _database(options, client)
            path = f"{database.design_path(options.ddoc)}/_view/{quote(options.view, safe='')}"
            body = msgspec.json.encode(options.query)
            return frozenset(), database.http.pieces("POST", path, body, timeout_s=wait_s)
    owner = map_.owners[wanted[0]]
    if owner < 0:
        raise RoutingError(f"no node serves partition {wanted[0]} now; try again later")
    mine = [p for p in wanted if map_.owners[p] == owner]
    node = map_.nodes[owner]
    with open_client(replace(options.source, hosts=f"[{node.host}]:{node.port}")) as client:
        http = _database(options, client).http
    query = dict(options.query)
    if "at" in query:  # a node knows only what it has
        query["at"] = {p: query["at"][p] for p in map(str, mine) if p in query["at"]}
    asked = {
        "design": options.ddoc, "view": options.view, "options": query,
        "partitions": mine, "form": "json",
    }  # fmt: skip
    path = f"/_millstream/buckets/{quote(options.source.bucket, safe='')}/part"
    pieces = http.pieces("POST", path, msgspec.json.encode(asked), timeout_s=wait_s)
    return frozenset(mine), pieces


def _database(options: ViewOptions, client: Client) -> Database:
    source = options.source
    http = http_of(
        client, user=source.user, password=source.password or "", tls=source.tls(),
        timeout_s=ANSWER_S,
    )  # fmt: skip
    return Database(http, source.bucket)
