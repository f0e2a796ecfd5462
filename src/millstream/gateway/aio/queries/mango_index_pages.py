"""JSON indexes over HTTP: `/DB/_index`, each of them a view in a design document.

Invariants:
1. Whoever makes or removes an index needs the right `design`, who lists them `read`.
2. Only design documents of the language `query` are changed; one that has no index left is
   removed.
3. An index that is there already, exactly so, is not made again.

Elsewhere: definitions (`views.core.mango.definitions`), queries (`mango_pages`), design documents
as such (`design_pages`).
Source: CouchDB's `_index`.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Any, Final

import msgspec
from aiohttp import web

from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.gateway.aio.answers import (
    DATABASE,
    DATABASE_PATH,
    NODE_API,
    answer,
    read_object,
    require,
)
from millstream.gateway.aio.parsing import decoded, understood
from millstream.gateway.core.api.node import CommonNodeApi
from millstream.gateway.core.documents import DESIGN_BYTES_MAX
from millstream.views.core.design.design_documents import DESIGN_PREFIX, design_name
from millstream.views.core.mango.definitions import parse_definition
from millstream.views.core.mango.planning import ALL_DOCS, Index, indexes_of
from millstream.views.core.mango.selectors import parse_selector

__all__ = ["DELETED_AT_ONCE_MAX", "INDEX_BYTES_MAX", "indexes_of_bucket", "routes"]

DELETED_AT_ONCE_MAX: Final = 100
"""Design documents in one request to `_bulk_delete`."""
INDEX_BYTES_MAX: Final = 128 * 1024
"""Body of a request that makes an index."""
_OPTIONS: Final = frozenset({"index", "type", "name", "ddoc", "w", "partitioned"})
_LANGUAGE: Final = "query"


async def indexes_of_bucket(api: CommonNodeApi, bucket: str) -> list[Index]:
    """Return the JSON indexes of a bucket, by design document and name.

    Raises:
        MillstreamError: as `DesignApi.all`.
    """
    return [
        index
        for design in await api.designs.all(bucket)
        for index in (await api.designs.known(bucket, design)).indexes
    ]


async def _list(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "read", bucket, instead="design")
    found = [ALL_DOCS, *await indexes_of_bucket(request.app[NODE_API], bucket)]
    limit, skip = _parameter(request, "limit", len(found), 1), _parameter(request, "skip", 0, 0)
    shown = [index.as_json() for index in found[skip : skip + limit]]
    return answer({"total_rows": len(found), "indexes": shown})


def _parameter(request: web.Request, name: str, default: int, least: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) < least:
        raise UsageError(
            "Index parameter ranges: limit > 1, skip > 0", code="invalid_list_index_params"
        )
    return int(text)


async def _make(request: web.Request) -> web.Response:
    bucket = request.match_info[DATABASE]
    require(request, "design", bucket)
    content = await read_object(request, INDEX_BYTES_MAX)
    design, name, view = await understood(request, _asked, content)
    rev, stored = await _read(request, design)
    views = stored.setdefault("views", {})
    state = "exists" if views.get(name) == view else "created"
    if state == "created":
        views[name] = view
        await _write(request, design, rev, stored)
    return answer({"result": state, "id": DESIGN_PREFIX + design, "name": name})


def _asked(content: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the names of design document and view, and the view, that a request asks for."""
    for option in content:
        if option not in _OPTIONS:
            raise UsageError(f"Invalid key {option} for this request.", code="invalid_key")
    if "index" not in content:
        raise UsageError("Index is missing its definition.", code="invalid_index")
    if content.get("type", "json") != "json":
        raise UsageError(f"Invalid type for index: {content['type']}", code="invalid_index")
    if content.get("partitioned"):
        raise UsageError(
            "there are no partitioned databases here: leave partitioned out",
            code="invalid_partitioned_option",
        )
    definition = parse_definition(content["index"], is_request=True)
    if definition.partial:  # stored with all its operators, as CouchDB has it
        definition = definition._replace(partial=parse_selector(definition.partial).normal)
    view = {
        "map": definition.as_json(), "reduce": "_count", "options": {"def": content["index"]},
    }  # fmt: skip
    name = _name(content.get("name", _hash(view)))
    # Two indexes that differ in their names alone are in documents of their own.
    design = content.get("ddoc", _hash([view, name] if "name" in content else view))
    return design_name(_name(design)), name, view


def _hash(content: object) -> str:
    return sha1(msgspec.json.encode(content), usedforsecurity=False).hexdigest()


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(
            f"Invalid index name: {msgspec.json.encode(value).decode()}", code="invalid_index_name"
        )
    return value


async def _remove(request: web.Request) -> web.Response:
    require(request, "design", request.match_info[DATABASE])
    design = request.match_info["design"].removeprefix(DESIGN_PREFIX)
    await _remove_views(request, design, request.match_info["name"])
    return answer({"ok": True})


async def _remove_views(request: web.Request, design: str, name: str | None) -> None:
    """Remove an index, or with None all of a design document.

    Raises:
        ConditionError: `not_found`.
    """
    rev, content = await _read(request, design)
    views = {index.name for index in indexes_of(design, content)}
    gone = views if name is None else views & {name}
    if not gone:
        raise ConditionError("missing", code="not_found")
    content["views"] = {n: view for n, view in content["views"].items() if n not in gone}
    if not content["views"]:
        del content["views"]
    is_empty = content == {"language": _LANGUAGE}
    await _write(request, design, rev, None if is_empty else content)


async def _remove_many(request: web.Request) -> web.Response:
    require(request, "design", request.match_info[DATABASE])
    content = await read_object(request)
    ids = content.get("docids")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise UsageError(
            "Bulk Delete requires an array of non-null docids.", code="invalid_bulk_docs"
        )
    if len(ids) > DELETED_AT_ONCE_MAX:
        raise UsageError(f"at most {DELETED_AT_ONCE_MAX} docids", code="invalid_bulk_docs")
    done: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for one in ids:
        design = one.removeprefix(DESIGN_PREFIX)
        try:
            await _remove_views(request, design, None)
        except MillstreamError as error:
            failed.append({"id": DESIGN_PREFIX + design, "error": error.code})
        else:
            done.append({"id": DESIGN_PREFIX + design, "ok": True})
    return answer({"success": done, "fail": failed})


async def _read(request: web.Request, design: str) -> tuple[str | None, dict[str, Any]]:
    """Return revision and members of a design document; of one that is not there what it would be.

    Raises:
        UsageError: `invalid_ddoc_lang`: it has views of another language.
    """
    found = await request.app[NODE_API].designs.read(request.match_info[DATABASE], design)
    if found is None or found.is_deleted:
        return None, {"language": _LANGUAGE}
    if len(found.body) > DESIGN_BYTES_MAX:
        raise UsageError(
            f"_design/{design} has {len(found.body)} bytes: indexes are changed in documents of "
            f"at most {DESIGN_BYTES_MAX}; name another one with `ddoc`",
            code="too_large",
        )
    content: dict[str, Any] = await decoded(found.body)
    if content.get("language") != _LANGUAGE:
        raise UsageError(
            "Existing design doc has an invalid language: "
            f"{msgspec.json.encode(content.get('language')).decode()}",
            code="invalid_ddoc_lang",
        )
    return found.rev, content


async def _write(
    request: web.Request, design: str, rev: str | None, content: dict[str, Any] | None
) -> None:
    bucket, designs = request.match_info[DATABASE], request.app[NODE_API].designs
    body = None if content is None else msgspec.json.encode(content)
    if body is not None:
        await designs.check(bucket, design, body)
    await designs.write(bucket, design, body, rev, is_durable=True)


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    path = DATABASE_PATH + "/_index"
    return [
        web.get(path, _list),
        web.post(path, _make),
        web.post(path + "/_bulk_delete", _remove_many),
        web.delete(path + "/{design:(?:_design(?:/|%2F))?[^/]+}/json/{name}", _remove),
    ]
