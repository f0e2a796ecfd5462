"""The description of the pages below `/_millstream/`, made of the pages themselves.

A handler's docstring says what it does, and in a line `Right: ..` which right the user needs.
`takes` adds the body, as a struct, and the parameters of the query; `gives` the answer, as a type.

Invariants:
1. Every such page is described, except those that nodes have for one another
   (`gateway.aio.peers`).

Elsewhere: the page that tells the description (`gateway.aio.node.openapi_pages`), the reference
for people (docs/reference/http.md).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from aiohttp import web

from millstream.version import __version__

__all__ = ["OWN", "description_of", "gives", "is_described", "takes"]

OWN: Final = "/_millstream/"
_AMONG_NODES: Final = "millstream.gateway.aio.peers."
_TAKES: Final = "__takes__"
_GIVES: Final = "__gives__"
_RIGHT: Final = re.compile(r"^Right: (.+)\.$", re.MULTILINE)
_STREAMS: Final = {"/_millstream/events", "/_millstream/coordination/watch"}
"""Pages that answer with server-sent events."""
_FILES: Final = {"/_millstream/support": "application/zip"}
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class _Taken(NamedTuple):
    body: type | None
    query: dict[str, str]


def takes(body: type | None = None, **query: str) -> Callable[[_Handler], _Handler]:
    """Say what a page takes: its body, and what each parameter of the query means."""

    def mark(handler: _Handler) -> _Handler:
        setattr(handler, _TAKES, _Taken(body, query))
        return handler

    return mark


def gives(kind: Any) -> Callable[[_Handler], _Handler]:
    """Say what a page answers: the type of its JSON."""

    def mark(handler: _Handler) -> _Handler:
        setattr(handler, _GIVES, kind)
        return handler

    return mark


def is_described(route: web.AbstractRoute) -> bool:
    """Return whether a page has to be in the description."""
    module = route.handler.__module__
    is_own = _path_of(route).startswith(OWN) and route.method not in ("HEAD", "*")
    return is_own and not module.startswith(_AMONG_NODES)


def description_of(application: web.Application) -> dict[str, Any]:
    """Return the description of all pages, as OpenAPI 3.1 has it."""
    routes = [route for route in application.router.routes() if is_described(route)]
    kinds = {kind for route in routes for kind in (_taken(route).body, _given(route)) if kind}
    ordered = sorted(kinds, key=lambda one: one.__name__)
    schemas, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted(routes, key=lambda one: (_path_of(one), one.method)):
        operation = _operation(route, schema_of)
        paths.setdefault(_path_of(route), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millstream", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _error()},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "AuthSession"},
            },
        },
        "security": [{"basic": []}, {"bearer": []}, {"cookie": []}],
    }


def _operation(route: web.AbstractRoute, schema_of: dict[type, Any]) -> dict[str, Any]:
    path, taken = _path_of(route), _taken(route)
    text = inspect.getdoc(route.handler) or ""
    right = _RIGHT.search(text)
    summary, _, more = _RIGHT.sub("", text).strip().partition("\n")
    content = _FILES.get(path, "text/event-stream" if path in _STREAMS else "application/json")
    kind = _given(route)
    answer = {} if kind is None else {"schema": schema_of[kind]}
    found: dict[str, Any] = {
        "summary": summary,
        "description": f"{more.strip()} {right[0] if right else ''}".strip(),
        "parameters": list(_parameters(path, taken)),
        "responses": {
            "2XX": {"description": "Done.", "content": {content: answer}},
            "default": {
                "description": "Refused, or failed.",
                "content": {"application/json": {"schema": {"$ref": _SCHEMA_OF_ERROR}}},
            },
        },
    }
    if route.method in ("POST", "PUT", "PATCH"):
        schema = {"type": "object"} if taken.body is None else schema_of[taken.body]
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return found


_SCHEMA_OF_ERROR: Final = "#/components/schemas/Error"


def _parameters(path: str, taken: _Taken) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name, meaning in taken.query.items():
        yield {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}


def _error() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "required": ["error", "reason"],
        "properties": {"error": text, "reason": text},
    }


def _taken(route: web.AbstractRoute) -> _Taken:
    found: _Taken = getattr(route.handler, _TAKES, _Taken(None, {}))
    return found


def _given(route: web.AbstractRoute) -> Any:
    """Return the type of an answer; None: it was not said."""
    return getattr(route.handler, _GIVES, None)


def _path_of(route: web.AbstractRoute) -> str:
    assert route.resource is not None, "every page has an address"
    return route.resource.canonical
