"""Replications over HTTP: `/_replicate`, `/_scheduler`.

    POST /_replicate                            run a job once, or begin or cancel one
    GET  /_scheduler/jobs[/ID]                  what runs, or waits for its turn
    GET  /_scheduler/docs[/_replicator[/ID]]    documents that are jobs, and how each is

Invariants:
1. Where there are users only administrators replicate, and look at jobs and their database: jobs
   have the passwords of others.
2. The database of jobs is made when something is first written into it.

Elsewhere: what a job may ask for (`replication.core.jobs`), who runs it
(`databases.jobs.replications`).
Source: CouchDB's replicator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import DATABASE, NODE_API, answer, read_object, require
from millstream.model.bucket_names import REPLICATOR
from millstream.replication.core.jobs import JOB_BYTES_MAX, parse_job
from millstream.replication.core.reports import job_name

__all__ = ["PAGE_ROWS_DEFAULT", "guard_replicator", "routes"]

PAGE_ROWS_DEFAULT: Final = 100
"""Jobs or documents in an answer unless `limit` says another number."""
_NUMBER_DIGITS_MAX: Final = 9
_WRITING: Final = ("PUT", "POST")


@web.middleware
async def guard_replicator(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keep the database of jobs for administrators, and make it for who writes the first one."""
    if request.match_info.get(DATABASE) == REPLICATOR:
        require(request, "admin")
        is_itself = request.path.strip("/") == REPLICATOR and request.method == "PUT"
        if request.method in _WRITING and not is_itself:
            await request.app[NODE_API].replications.prepare()
    return await handler(request)


async def _replicate(request: web.Request) -> web.Response:
    require(request, "admin")
    form = await read_object(request, JOB_BYTES_MAX)
    api = request.app[NODE_API].replications
    if form.get("cancel") is True:
        name = _named(form)
        await api.cancel(name)
        return answer({"ok": True, "_local_id": name})
    job = parse_job(form)
    if job.continuous:
        return answer({"ok": True, "_local_id": await api.begin(job)}, status=202)
    return answer(await api.run(job))


def _named(form: dict[str, Any]) -> str:
    for member in ("_local_id", "replication_id", "id"):
        name = form.get(member)
        if isinstance(name, str):
            return name
    return job_name(parse_job(form))


async def _jobs(request: web.Request) -> web.Response:
    require(request, "admin")
    found = request.app[NODE_API].replications.jobs()
    return answer(_page(request, "jobs", found))


async def _job(request: web.Request) -> web.Response:
    require(request, "admin")
    found = request.app[NODE_API].replications.jobs()
    return answer(_one(found, "id", request.match_info["id"]))


async def _docs(request: web.Request) -> web.Response:
    require(request, "admin")
    found = request.app[NODE_API].replications.documents()
    return answer(_page(request, "docs", found))


async def _doc(request: web.Request) -> web.Response:
    require(request, "admin")
    found = request.app[NODE_API].replications.documents()
    return answer(_one(found, "doc_id", request.match_info["id"]))


def _page(request: web.Request, name: str, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    skip = _number(request, "skip", 0)
    limit = _number(request, "limit", PAGE_ROWS_DEFAULT)
    return {"total_rows": len(found), "offset": skip, name: found[skip : skip + limit]}


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > _NUMBER_DIGITS_MAX:
        raise UsageError(f"Invalid value for {name}: {text[:40]!r}", code="query_parse_error")
    return int(text)


def _one(found: Sequence[dict[str, Any]], key: str, name: str) -> dict[str, Any]:
    for one in found:
        if one[key] == name:
            return one
    raise ConditionError("missing", code="not_found")


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.post("/_replicate", _replicate),
        web.get("/_scheduler/jobs", _jobs),
        web.get("/_scheduler/jobs/{id}", _job),
        web.get("/_scheduler/docs", _docs),
        web.get(f"/_scheduler/docs/{REPLICATOR}", _docs),
        web.get(f"/_scheduler/docs/{REPLICATOR}/{{id:.+}}", _doc),
    ]
