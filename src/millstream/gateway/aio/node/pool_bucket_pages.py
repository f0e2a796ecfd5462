"""Buckets made, changed and dropped by Couchbase SDKs: `/pools/default/buckets`.

SDKs send forms with Couchbase's names. Members that mean nothing here are passed over.

Invariants:
1. Only administrators make, change and drop buckets.
2. A refusal has the form in which SDKs look for the reason.

Elsewhere: the buckets (`gateway.aio.databases.making`), what SDKs read of them (`pool_pages`).
Source: the REST API of Couchbase Server, "Buckets".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from aiohttp import web

from millstream.errors import MillstreamError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, asker, read_body, require
from millstream.gateway.aio.databases.making import change_bucket, create_bucket, drop_bucket
from millstream.gateway.aio.parsing import understood
from millstream.model.limits import PARTITIONS_DEFAULT

__all__ = ["FORM_BYTES_MAX", "read_form", "refusal", "routes"]

FORM_BYTES_MAX: Final = 64 * 1024
"""Body of a form about a bucket or a user."""
_EXISTS: Final = "Bucket with given name already exists"
"""By these words SDKs know why."""
_MEGABYTE: Final = 1024 * 1024


async def _create(request: web.Request) -> web.Response:
    require(request, "admin")
    host = request.app[NODE_API]
    try:
        form = await read_form(request)
        partitions = _number(form, "numVBuckets", PARTITIONS_DEFAULT)
        quota = _number(form, "ramQuotaMB")
        assert partitions is not None, "it has a default"
        await create_bucket(
            host, form.get("name", ""), partitions, None if quota is None else quota * _MEGABYTE,
            by=asker(request), copies=_copies(form) if _is_managed(request) else None,
        )  # fmt: skip
    except MillstreamError as error:
        return refusal(error)
    return web.Response(status=202)


async def _change(request: web.Request) -> web.Response:
    require(request, "admin")
    try:
        form = await read_form(request)
        changes = _copies(form)
        quota = _number(form, "ramQuotaMB")
        if quota is not None:
            changes["settings"] = {"memory_quota_bytes": quota * _MEGABYTE}
        name = request.match_info["name"]
        await change_bucket(request.app[NODE_API], name, changes, by=asker(request))
    except MillstreamError as error:
        return refusal(error)
    return web.Response()


async def _drop(request: web.Request) -> web.Response:
    require(request, "admin")
    try:
        await drop_bucket(request.app[NODE_API], request.match_info["name"], by=asker(request))
    except MillstreamError as error:
        return refusal(error)
    return web.Response()


def _is_managed(request: web.Request) -> bool:
    cluster = request.app[NODE_API].cluster
    return cluster is not None and cluster.is_managed


async def read_form(request: web.Request) -> dict[str, str]:
    """Return the members of a form; of one that is there twice the last.

    Raises:
        UsageError: `bad_request`, it is not UTF-8; else as `read_body`.
        UnavailableError: as `read_body`.
    """
    try:
        text = (await read_body(request, FORM_BYTES_MAX)).decode()
        values = await understood(request, partial(parse_qs, text, errors="strict"))
    except UnicodeDecodeError:
        raise UsageError("the form is not UTF-8", code="bad_request") from None
    return {name: those[-1] for name, those in values.items()}


def _number(form: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    text = form.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{name} must be a number, not {text!r}", code="bad_request")
    return int(text)


def _copies(form: Mapping[str, str]) -> dict[str, Any]:
    replicas, index = _number(form, "replicaNumber"), _number(form, "replicaIndex")
    found = {"replicas": replicas, "index_replicas": None if index is None else min(index, 1)}
    return {name: value for name, value in found.items() if value is not None}


def refusal(error: MillstreamError) -> web.Response:
    """Return a refusal as Couchbase Server has it; others are answered as everywhere.

    Raises:
        MillstreamError: it is not the caller's mistake.
    """
    if error.code == "bucket_not_found":
        return web.Response(status=404, text="Requested resource not found.\r\n")
    if error.code == "bucket_exists":
        return answer({"errors": {"name": _EXISTS}, "summaries": {}}, status=400)
    if isinstance(error, UsageError):
        return answer({"errors": {error.code: str(error)}, "summaries": {}}, status=400)
    raise error


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    path = "/pools/default/buckets"
    return [
        web.post(path, _create),
        web.post(f"{path}/", _create),  # as Couchbase's Java SDK asks
        web.post(f"{path}/{{name}}", _change),
        web.delete(f"{path}/{{name}}", _drop),
    ]
