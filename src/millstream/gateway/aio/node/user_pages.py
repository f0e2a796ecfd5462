"""Users over HTTP: `/_millstream/users`. Names and roles are shown, verifiers never.

Invariants:
1. Only administrators see and change users; with no users yet, anybody on loopback makes the first
   one, which must be an administrator.

Elsewhere: the store (`access.users`).
"""

from __future__ import annotations

import asyncio
from typing import TypedDict

from aiohttp import web

from millstream.access.users import User
from millstream.errors import ConditionError, UsageError
from millstream.gateway.aio.answers import NODE_API, answer, read_object, require
from millstream.gateway.aio.describing import gives

__all__ = ["routes"]


class UserTold(TypedDict):
    """A user."""

    name: str
    roles: list[str]


class UsersTold(TypedDict):
    """All users."""

    users: list[UserTold]


def _shown(user: User) -> UserTold:
    return {"name": user.name, "roles": list(user.roles)}


def _found(request: web.Request) -> User:
    name = request.match_info["name"]
    user = request.app[NODE_API].users.get(name)
    if user is None:
        raise ConditionError(f"no user {name!r}", code="user_not_found")
    return user


@gives(UsersTold)
async def _list(request: web.Request) -> web.Response:
    """Tell the users.

    Right: admin.
    """
    require(request, "admin")
    users = request.app[NODE_API].users
    found = [user for name in users.names if (user := users.get(name)) is not None]
    return answer({"users": [_shown(user) for user in found]})


@gives(UserTold)
async def _one(request: web.Request) -> web.Response:
    """Tell of one user.

    Right: admin.
    """
    require(request, "admin")
    return answer(_shown(_found(request)))


async def _put(request: web.Request) -> web.Response:
    """Create or replace a user.

    Right: admin.
    """
    require(request, "admin")
    content = await read_object(request)
    name = request.match_info.get("name", content.get("name"))
    password, roles = content.get("password"), content.get("roles", [])
    if not isinstance(name, str) or not isinstance(password, str):
        raise UsageError('the body must hold "name" and "password"')
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise UsageError('"roles" must be a list of texts', code="bad_role")
    api = request.app[NODE_API]
    user = await asyncio.to_thread(api.users.put, name, password, roles)
    api.drop_user(name)
    return answer(_shown(user), status=201)


async def _delete(request: web.Request) -> web.Response:
    """Remove a user.

    Right: admin.
    """
    require(request, "admin")
    user = _found(request)
    api = request.app[NODE_API]
    await asyncio.to_thread(api.users.delete, user.name)
    api.drop_user(user.name)
    return answer({"ok": True})


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get("/_millstream/users", _list),
        web.post("/_millstream/users", _put),
        web.get("/_millstream/users/{name}", _one),
        web.put("/_millstream/users/{name}", _put),
        web.delete("/_millstream/users/{name}", _delete),
    ]
