"""Users as Couchbase SDKs ask for them: `/settings/rbac`, to be read only.

    GET /settings/rbac/users, /settings/rbac/users/local          all users
    GET /settings/rbac/users/local/NAME                           one of them
    GET /settings/rbac/users/external                             none
    GET /settings/rbac/roles                                      what rights are called

    right     admin   read          write         stream            design
    role      admin   data_reader   data_writer   data_dcp_reader   views_admin

Invariants:
1. Only administrators are told of users; nothing of a password is shown.
2. What is not here (changes, groups of their own) answers 404 in words by which most SDKs know that
   the feature is not available. They are other words than those about an unknown user.
3. The attachments of the document `rbac` in a bucket `settings` stay what they are.

Elsewhere: users with all that can be done to them (`gateway.aio.node.user_pages`).
Source: the REST API of Couchbase Server, "Role-Based Access Control".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from millstream.access.users import User
from millstream.gateway.aio.answers import NODE_API, answer, require
from millstream.gateway.aio.documents.attachment_pages import answer_attachment

__all__ = ["routes"]

_PATH: Final = "/settings/rbac"
_LOCAL: Final = "local"
_EXTERNAL: Final = "external"
_ROLES: Final = {
    "admin": ("admin", "Full Admin", "May do everything."),
    "read": ("data_reader", "Data Reader", "May read documents."),
    "write": ("data_writer", "Data Writer", "May write documents."),
    "stream": ("data_dcp_reader", "Data DCP Reader", "May read the change stream."),
    "design": ("views_admin", "Views Admin", "May change design documents."),
}
"""Right -> role, its name for people, what it allows."""
_Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _role(role: str) -> dict[str, Any]:
    right, _, bucket = role.partition(":")
    shown = {"role": _ROLES[right][0]}
    return shown | {"bucket_name": bucket} if bucket else shown


def _shown(user: User) -> dict[str, Any]:
    rights = [role for role in user.roles if role.partition(":")[0] in _ROLES]
    return {
        "id": user.name,
        "domain": _LOCAL,
        "name": "",
        "roles": [_role(right) | {"origins": [{"type": "user"}]} for right in rights],
        "groups": list(user.groups),
        "external_groups": [],
    }


async def _users(request: web.Request) -> web.Response:
    if request.match_info.get("domain", _LOCAL) == _EXTERNAL:
        return answer([])
    return answer([_shown(user) for user in request.app[NODE_API].users.all().values()])


async def _user(request: web.Request) -> web.Response:
    user = None
    if request.match_info["domain"] == _LOCAL:
        user = request.app[NODE_API].users.all().get(request.match_info["name"])
    return answer("Unknown user.", status=404) if user is None else answer(_shown(user))


async def _roles(_: web.Request) -> web.Response:
    found = []
    for right, (role, name, text) in _ROLES.items():
        where = {} if right == "admin" else {"bucket_name": "*"}
        found.append({"role": role, "name": name, "desc": text} | where)
    return answer(found)


async def _not_here(_: web.Request) -> web.Response:
    return web.Response(status=404, text="Not found.")


def _for_administrators(page: _Page) -> _Page:
    """Return a page for administrators that gives way to a bucket `settings`."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        api = request.app[NODE_API]
        if any(status.name == "settings" for status in api.bucket_statuses()):
            return await answer_attachment(request, "settings", "rbac")
        require(request, "admin")
        return await page(request)

    return guarded


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    domain = f"{_PATH}/users/{{domain:{_LOCAL}|{_EXTERNAL}}}"
    return [
        web.get(f"{_PATH}/users", _for_administrators(_users)),
        web.get(domain, _for_administrators(_users)),
        web.get(f"{domain}/{{name:.+}}", _for_administrators(_user)),
        web.get(f"{_PATH}/roles", _for_administrators(_roles)),
        web.route("*", f"{_PATH}/{{rest:.+}}", _for_administrators(_not_here)),
    ]
