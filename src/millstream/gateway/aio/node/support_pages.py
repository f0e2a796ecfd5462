"""An archive for those who help: `GET /_millstream/support`.

Invariants:
1. Only administrators get it.
2. It holds no documents, ids, keys of TLS, passwords or other secrets: only what
   is listed in `contents.txt`. Lines of logs name buckets, nodes and addresses.

Elsewhere: the command that fetches it (`cli.serving.support`).
"""

from __future__ import annotations

import asyncio
import io
import platform
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import distributions
from typing import Any, Final

import msgspec
from aiohttp import web

from millstream.errors import MillstreamError
from millstream.gateway.aio.answers import NODE_API, read_metrics, require
from millstream.gateway.aio.node.observing_pages import OBSERVER
from millstream.gateway.core.health import state_of
from millstream.gateway.core.samples import LEVELS, Samples
from millstream.kv.core.statistics import as_text
from millstream.runtime.logs import RECENT
from millstream.runtime.pace import Turns
from millstream.version import __version__

__all__ = ["CONTENTS", "routes"]

CONTENTS: Final[Mapping[str, str]] = {
    "contents.txt": "what is in this archive",
    "versions.json": "versions of Millstream, Python, packages and the system",
    "settings.json": "settings of the node, without users, secrets and the names of key files",
    "node.json": "identity, addresses and buckets of the node",
    "health.json": "why the node is not healthy",
    "statistics.txt": "all statistics of the node and of its buckets",
    "partitions.json": "state, seqnos and failover log of each copy of a partition",
    "cluster.json": "status of the cluster; null without one",
    "samples.json": "figures of the last day, a minute each",
    "logs.txt": "the last lines of each process of the node",
}
"""Files of the archive, and what each has."""


async def _support(request: web.Request) -> web.Response:
    """Make the archive.

    Right: admin.
    """
    require(request, "admin")
    api, observer = request.app[NODE_API], request.app[OBSERVER]
    reasons = await observer.health()
    cluster, error = await observer.cluster()
    found: dict[str, Any] = {
        "settings.json": api.shown_settings(),
        "node.json": {
            "uuid": api.uuid,
            "listeners": api.addresses(),
            "buckets": [asdict(status) for status in api.bucket_statuses()],
        },
        "health.json": {"state": state_of(reasons), "reasons": [one.shown() for one in reasons]},
        "cluster.json": cluster if not error else {"error": error},
        "partitions.json": await _partitions(api),
        "samples.json": await _sampled(observer.samples),
    }
    metrics = await read_metrics(api)
    figures = [f"{name} {text}" for name, text in as_text(metrics.node)]
    for bucket, values in metrics.buckets.items():
        figures += [f"{bucket} {name} {text}" for name, text in as_text(values)]
    texts = {
        "statistics.txt": "\n".join(figures),
        "logs.txt": "\n".join(
            f"{line.at_ms} {line.process} {line.level} {line.logger} {line.text}"
            for line in RECENT.after(0)
        ),
        "contents.txt": "\n".join(f"{name}: {what}" for name, what in CONTENTS.items()),
    }
    body = await asyncio.to_thread(_archive, found, texts)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return web.Response(
        body=body,
        content_type="application/zip",
        headers={
            "Content-Disposition": f'attachment; filename="millstream-support-{stamp}.zip"',
            "Cache-Control": "no-store",
        },
    )


async def _partitions(api: Any) -> dict[str, Any]:
    """Return the copies of each bucket; a node without data has none."""
    found, turns = dict[str, Any](), Turns()
    if not hasattr(api, "partition_statuses"):
        return found
    for status in api.bucket_statuses():
        await turns.give()
        try:
            copies = found[status.name] = list[Any]()
            for one in await api.partition_statuses(status.name):
                await turns.give()
                copies.append(asdict(one))
        except MillstreamError as error:
            found[status.name] = {"error": str(error)}
    return found


async def _sampled(samples: Samples) -> dict[str, Any]:
    window = samples.window(LEVELS[-1].interval_s * LEVELS[-1].size)
    turns, series = Turns(), dict[str, Any]()
    for key in samples.keys():  # noqa: SIM118 - it is no mapping
        await turns.give()
        series["/".join(key)] = samples.series(window, key)
    return {"times_s": window.times_s, "series": series}


def _archive(found: Mapping[str, Any], texts: Mapping[str, str]) -> bytes:
    """Return the archive; runs in a thread."""
    versions = {
        "millstream": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "packages": {one.name: one.version for one in distributions() if one.name},
    }
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text + "\n")
        for name, content in {**found, "versions.json": versions}.items():
            archive.writestr(name, msgspec.json.format(msgspec.json.encode(content)))
    return kept.getvalue()


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.get("/_millstream/support", _support)]
