"""The console: `/_console/`, the page that shows the node and its cluster in a browser.

    GET /_console/                 the page; asked for again each time, so that an update is seen
    GET /_console/DIGEST/PATH      its files; DIGEST is of all of them, so they are kept for ever

Invariants:
1. Anybody may have the files: they say nothing of the node. What they show is asked for by pages
   that check rights.
2. The page runs scripts and styles of these files only, and no other site can frame it.
3. Files are read and compressed once, in a thread.

Elsewhere: the files (`millstream.console`), which hosts are believed (`gateway.core.origins`).
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import mimetypes
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from aiohttp import web

__all__ = ["CONSOLE", "CONSOLE_PATH", "Console", "routes"]

CONSOLE_PATH: Final = "/_console/"
_FOREVER: Final = "public, max-age=31536000, immutable"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES: Final = {".js": "text/javascript", ".svg": "image/svg+xml", ".css": "text/css"}
_PRELOADED: Final = ("lib/", "parts/states.js", "parts/form.js", "vendor/preact", "vendor/htm")
"""Modules that the first page needs: asked for before they are found by their imports."""


class _File(NamedTuple):
    content: bytes
    """Compressed by gzip."""
    kind: str


class Console:
    """The files of the console."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._files: dict[str, _File] = {}
        self.digest = ""
        """Of all files; empty until they were read."""

    async def read(self) -> None:
        """Read the files, unless that was done."""
        async with self._lock:
            if not self.digest:
                self._files, self.digest = await asyncio.to_thread(_read)

    def file(self, path: str) -> _File | None:
        """Return a file by its path, None if there is none."""
        return self._files.get(path)


def _read() -> tuple[dict[str, _File], str]:
    """Return the files by path, and the digest of all."""
    found = dict(_walk(files("millstream.console").joinpath("static"), ""))
    digest = hashlib.sha256()
    for path, content in sorted(found.items()):
        digest.update(f"{path} {len(content)}\0".encode() + content)
    name = digest.hexdigest()[:16]
    base = f"{CONSOLE_PATH}{name}/"
    preloads = "\n".join(
        f'<link rel="modulepreload" href="{base}{path}">'
        for path in sorted(found)
        if path.endswith(".js") and path.startswith(_PRELOADED)
    )
    page = found["index.html"].decode().replace("{base}", base).replace("{preloads}", preloads)
    found["index.html"] = page.encode()
    return {path: _File(gzip.compress(text, 6), _kind(path)) for path, text in found.items()}, name


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for one in folder.iterdir():
        if one.is_dir():
            found += _walk(one, f"{prefix}{one.name}/")
        else:
            found.append((prefix + one.name, one.read_bytes()))
    return found


def _kind(path: str) -> str:
    _, dot, ending = path.rpartition(".")
    return _TYPES.get(dot + ending) or mimetypes.guess_type(path)[0] or "text/plain"


CONSOLE: Final = web.AppKey("console", Console)


async def _sent(request: web.Request, file: _File, headers: dict[str, str]) -> web.Response:
    content, more = file.content, {"Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        more["Content-Encoding"] = "gzip"
    else:
        content = await asyncio.to_thread(gzip.decompress, content)
    return web.Response(
        body=content, content_type=file.kind, charset="utf-8", headers=headers | more
    )


async def _page(request: web.Request) -> web.Response:
    console = request.app[CONSOLE]
    await console.read()
    tag = f'"{console.digest}"'
    headers = _PAGE_HEADERS | {"ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    page = console.file("index.html")
    assert page is not None, "the console has a page"
    return await _sent(request, page, headers)


async def _file(request: web.Request) -> web.Response:
    console = request.app[CONSOLE]
    await console.read()
    found = console.file(request.match_info["path"])
    if found is None or request.match_info["digest"] != console.digest:
        raise web.HTTPNotFound
    return await _sent(request, found, {"Cache-Control": _FOREVER})


async def _redirect(_: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": CONSOLE_PATH})


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get(CONSOLE_PATH.rstrip("/"), _redirect),
        web.get(CONSOLE_PATH, _page),
        web.get(CONSOLE_PATH + "{digest:[0-9a-f]{16}}/{path:.+}", _file),
        web.get("/_utils", _redirect),
        web.get("/_utils/{rest:.*}", _redirect),
    ]
