"""Users as Couchbase SDKs ask for them: `/settings/rbac`.

    GET                /settings/rbac/users, /settings/rbac/users/local    all users
    GET, PUT, DELETE   /settings/rbac/users/local/NAME                     one of them
    GET                /settings/rbac/groups, /settings/rbac/groups/NAME   groups of users
    GET                /settings/rbac/roles                                what rights are called

Invariants:
1. Only administrators are told of users and change them.
2. What is not here answers 404 in words by which SDKs that can tell know that the feature is not
   available. They are other words than those about an unknown user or group.
3. The attachments of the document `rbac` in a bucket `settings` stay what they are. A node that
   does not know its buckets yet answers 503 `buckets_unknown`.

Elsewhere: the form of users (`gateway.core.pool_users`), the record (`access.users`), our own
pages about it (`gateway.aio.node.user_pages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from millstream.errors import MillstreamError
from millstream.gateway.aio.answers import NODE_API, answer, require
from millstream.gateway.aio.documents.attachment_pages import answer_attachment
from millstream.gateway.aio.node.pool_bucket_pages import read_form, refusal
from millstream.gateway.aio.node.pool_pages import not_here
from millstream.gateway.aio.parsing import understood
from millstream.gateway.core.pool_users import (
    LOCAL,
    parse_groups,
    parse_rights,
    shown_group,
    shown_roles,
    shown_user,
)

__all__ = ["routes"]

_PATH: Final = "/settings/rbac"
_Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _users(request: web.Request) -> web.Response:
    if request.match_info.get("domain", LOCAL) != LOCAL:
        return answer([])
    return answer([shown_user(user) for user in request.app[NODE_API].users.all().values()])


async def _user(request: web.Request) -> web.Response:
    user = None
    if request.match_info["domain"] == LOCAL:
        user = request.app[NODE_API].users.all().get(request.match_info["name"])
    return _unknown("user") if user is None else answer(shown_user(user))


async def _put(request: web.Request) -> web.Response:
    api, name = request.app[NODE_API], request.match_info["name"]
    try:
        form = await read_form(request)
        rights = await understood(request, parse_rights, form)
        groups = await understood(request, parse_groups, form)
        user = await asyncio.to_thread(
            api.users.change, name, password=form.get("password"), rights=rights, groups=groups
        )
    except MillstreamError as error:
        return refusal(error)
    api.drop_user(user.name)
    return answer("")


async def _delete(request: web.Request) -> web.Response:
    api, name = request.app[NODE_API], request.match_info["name"]
    if not await asyncio.to_thread(api.users.delete, name):
        return _unknown("user")
    api.drop_user(name)
    return answer("")


def _groups_of(request: web.Request) -> list[str]:
    users = request.app[NODE_API].users.all().values()
    return sorted({group for user in users for group in user.groups})


async def _groups(request: web.Request) -> web.Response:
    return answer([shown_group(name) for name in _groups_of(request)])


async def _group(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    return answer(shown_group(name)) if name in _groups_of(request) else _unknown("group")


async def _roles(_: web.Request) -> web.Response:
    return answer(shown_roles())


def _unknown(what: str) -> web.Response:
    return answer(f"Unknown {what}.", status=404)


def _for_administrators(page: _Page) -> _Page:
    """Return a page for administrators that gives way to a bucket `settings`."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        api = request.app[NODE_API]
        if any(status.name == "settings" for status in api.bucket_statuses()):
            return await answer_attachment(request, "settings", "rbac")
        api.check_buckets_known()
        require(request, "admin")
        return await page(request)

    return guarded


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    local, domain = f"{_PATH}/users/{LOCAL}", f"{_PATH}/users/{{domain:{LOCAL}|external}}"
    return [
        web.get(f"{_PATH}/users", _for_administrators(_users)),
        web.get(domain, _for_administrators(_users)),
        web.get(f"{domain}/{{name:.+}}", _for_administrators(_user)),
        web.put(f"{local}/{{name:.+}}", _for_administrators(_put)),
        web.delete(f"{local}/{{name:.+}}", _for_administrators(_delete)),
        web.get(f"{_PATH}/groups", _for_administrators(_groups)),
        web.get(f"{_PATH}/groups/{{name:.+}}", _for_administrators(_group)),
        web.get(f"{_PATH}/roles", _for_administrators(_roles)),
        web.route("*", f"{_PATH}/{{rest:.+}}", _for_administrators(not_here)),
    ]
