"""CouchDB's pages about nodes, to be read: `/_membership`, `/_node/NAME/_stats` and `_config`.

A node is called `millstream@HOST:PORT`, by the address of its pages; `_local` is the one asked.

Invariants:
1. Only administrators are told, and they are told no secret.
2. What is shown as a setting is what the node goes by. It is given when the node is started.

Elsewhere: health and metrics (`node_pages`), the nodes as SDKs are told of them (`pool_pages`).
Source: CouchDB's server API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from millstream.documents.sent import DOCUMENT_ID_BYTES_MAX
from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, read_metrics, require
from millstream.gateway.aio.databases.database_pages import DATABASE_PARTITIONS
from millstream.gateway.aio.documents.bulk_pages import BULK_BYTES_MAX
from millstream.gateway.core.attachments import ATTACHMENT_BYTES_MAX
from millstream.gateway.core.cookies import SESSION_SECONDS
from millstream.kv.core.statistics import BUCKET_FIGURES, NODE_FIGURES, Figure, Histogram
from millstream.model.limits import VALUE_BYTES_MAX
from millstream.version import __version__

__all__ = ["routes"]

_NODE: Final = "/_node/{node}"
_LOCAL: Final = "_local"
_AS_COUCHDB: Final = {
    ("couchdb", "open_databases"): "buckets_ready",
    ("couch_replicator", "jobs", "pending"): "replicator_jobs_pending",
    ("couch_replicator", "jobs", "running"): "replicator_jobs_running",
    ("couch_replicator", "jobs", "crashed"): "replicator_jobs_crashing",
}
"""CouchDB's names of figures that are the same here."""


def _nodes(request: web.Request) -> dict[str, bool]:
    """Return whether a node answers, by its name; the one that is asked first."""
    config = request.app[NODE_API].cluster_config(None)
    assert config is not None, "a node knows itself"
    silent = request.app[NODE_API].silent_nodes()
    nodes = msgspec.json.decode(config)["nodesExt"]
    found: dict[str, bool] = {}
    for node in sorted(nodes, key=lambda node: not node.get("thisNode", False)):
        host = node["hostname"]
        if host in ("0.0.0.0", "::", ""):
            host = request.url.host
        bracketed = f"[{host}]" if ":" in host else host
        address = f"{bracketed}:{node['services']['mgmt']}"
        found[f"millstream@{address}"] = address not in silent
    return found


async def _membership(request: web.Request) -> web.Response:
    require(request, "admin")
    nodes = _nodes(request)
    heard = sorted(name for name, is_heard in nodes.items() if is_heard)
    return answer({"all_nodes": heard, "cluster_nodes": sorted(nodes)})


def _require_this(request: web.Request) -> str:
    """Return the name of this node.

    Raises:
        ConditionError: `not_found`: another one is asked for.
    """
    require(request, "admin")
    this, asked = next(iter(_nodes(request))), request.match_info["node"]
    if asked not in (_LOCAL, this):
        raise ConditionError(
            f"this node is {this} and tells of itself alone: ask {asked!r} for its own",
            code="not_found",
        )
    return this


async def _name(request: web.Request) -> web.Response:
    return answer({"name": _require_this(request)})


# -- figures


async def _stats(request: web.Request) -> web.Response:
    _require_this(request)
    metrics = await read_metrics(request.app[NODE_API])
    shown: dict[str, Any] = {
        "millstream": {
            "node": _described(metrics.node, NODE_FIGURES),
            "buckets": {b: _described(f, BUCKET_FIGURES) for b, f in metrics.buckets.items()},
        }
    }
    for path, name in _AS_COUCHDB.items():
        if name in metrics.node:
            at = shown
            for step in path[:-1]:
                at = at.setdefault(step, {})
            at[path[-1]] = _one(name, metrics.node[name], NODE_FIGURES[name])
    for step in request.match_info.get("path", "").split("/"):
        if step and not (isinstance(shown, dict) and step in shown):
            raise ConditionError(f"there is no figure {step!r}", code="not_found")
        shown = shown[step] if step else shown
    return answer(shown)


def _described(figures: Mapping[str, Figure], meanings: Mapping[str, str]) -> dict[str, Any]:
    return {name: _one(name, value, meanings[name]) for name, value in figures.items()}


def _one(name: str, value: Figure, meaning: str) -> dict[str, Any]:
    if isinstance(value, Histogram):
        classes = {"count": value.count, "sum": value.sum, "up_to": dict(value.cumulated())}
        return {"value": classes, "type": "histogram", "desc": meaning}
    kind = "counter" if name.endswith("_total") else "gauge"
    return {"value": value, "type": kind, "desc": meaning}


# -- settings


def _settings(request: web.Request) -> dict[str, dict[str, str]]:
    """Return settings by section and name, with CouchDB's names."""
    host = request.app[NODE_API]
    address, _, port = (host.addresses().get("http") or "").rpartition(":")
    return {
        "chttpd": {
            "bind_address": address.strip("[]"),
            "port": port,
            "require_valid_user": "false" if host.users.is_empty else "true",
            "enable_cors": "true" if host.origins else "false",
            "max_http_request_size": str(BULK_BYTES_MAX),
        },
        "chttpd_auth": {"timeout": str(SESSION_SECONDS)},
        "cluster": {"q": str(DATABASE_PARTITIONS), "n": "1"},
        "cors": {"origins": ",".join(sorted(host.origins))},
        "couchdb": {
            "uuid": host.uuid,
            "max_document_size": str(VALUE_BYTES_MAX),
            "max_document_id_length": str(DOCUMENT_ID_BYTES_MAX),
            "max_attachment_size": str(ATTACHMENT_BYTES_MAX),
        },
        "vendor": {"name": "Millstream", "version": __version__},
    }


async def _config(request: web.Request) -> web.Response:
    _require_this(request)
    settings = _settings(request)
    section, name = request.match_info.get("section"), request.match_info.get("name")
    if section is None:
        return answer(settings)
    if name is None:
        return answer(settings.get(section, {}))
    if name not in settings.get(section, {}):
        raise ConditionError("unknown_config_value", code="not_found")
    return answer(settings[section][name])


async def _no_setting(request: web.Request) -> web.Response:
    _require_this(request)
    raise UsageError(
        "settings are given when the node is started: see millstream serve --help",
        code="not_supported",
    )


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    config = _NODE + "/_config"
    setting = config + "/{section}/{name}"
    return [
        web.get("/_membership", _membership),
        web.get(_NODE, _name),
        web.get(_NODE + "/_stats", _stats),
        web.get(_NODE + "/_stats/{path:.+}", _stats),
        web.get(config, _config),
        web.get(config + "/{section}", _config),
        web.get(setting, _config),
        web.put(setting, _no_setting),
        web.delete(setting, _no_setting),
    ]
