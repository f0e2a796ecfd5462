"""Users in the form of Couchbase Server, and what its SDKs send of them.

    right     admin   read          write         stream            design
    role      admin   data_reader   data_writer   data_dcp_reader   views_admin

Invariants:
1. What is shown and sent back has the same meaning. Nothing of a password is shown.
2. A role that has no right here is refused: nobody gets less than was asked for, or more.

Elsewhere: the records (`access.records`), the pages (`gateway.aio.node.pool_user_pages`).
Source: the REST API of Couchbase Server, "Role-Based Access Control".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from millstream.access.records import User
from millstream.errors import UsageError

__all__ = ["LOCAL", "parse_groups", "parse_rights", "shown_group", "shown_roles", "shown_user"]

LOCAL: Final = "local"
"""Where users are kept that log in with a password."""
_ROLES: Final = {
    "admin": ("admin", "Full Admin", "May do everything."),
    "read": ("data_reader", "Data Reader", "May read documents."),
    "write": ("data_writer", "Data Writer", "May write documents."),
    "stream": ("data_dcp_reader", "Data DCP Reader", "May read the change stream."),
    "design": ("views_admin", "Views Admin", "May change design documents."),
}
"""Right -> role, its name for people, what it allows."""
_RIGHTS: Final = {role: right for right, (role, _, _) in _ROLES.items()}
_ROLE: Final = re.compile(r"([a-z_]+)(?:\[([^\[\]:,]+)(?::\*){0,2}\])?")


def shown_user(user: User) -> dict[str, Any]:
    """Return a user as Couchbase Server shows it."""
    origins = {"origins": [{"type": "user"}]}
    rights = [role.partition(":") for role in user.roles]
    roles = [
        {"role": _ROLES[right][0]} | ({"bucket_name": bucket} if bucket else {}) | origins
        for right, _, bucket in rights
        if right in _ROLES
    ]
    return {
        "id": user.name, "domain": LOCAL, "name": "", "roles": roles,
        "groups": list(user.groups), "external_groups": [],
    }  # fmt: skip


def shown_group(name: str) -> dict[str, Any]:
    """Return a group: a name that users have in common, and no right."""
    return {"id": name, "description": "", "roles": []}


def shown_roles() -> list[dict[str, Any]]:
    """Return the roles that users may have."""
    return [
        {"role": role, "name": name, "desc": text}
        | ({} if right == "admin" else {"bucket_name": "*"})
        for right, (role, name, text) in _ROLES.items()
    ]


def parse_rights(form: Mapping[str, str]) -> list[str]:
    """Return the rights that a form asks for, those in all buckets with `*`.

    Raises:
        UsageError: `bad_role`.
    """
    rights = []
    for said in filter(None, form.get("roles", "").split(",")):
        found = _ROLE.fullmatch(said)
        right = _RIGHTS.get(found[1]) if found else None
        bucket = found[2] if found else None
        if right is None or (bucket is None) != (right == "admin"):
            raise UsageError(
                f"role {said!r} is neither admin, nor one of data_reader, data_writer, "
                "data_dcp_reader, views_admin with [BUCKET] behind it",
                code="bad_role",
            )
        rights.append(right if bucket is None else f"{right}:{bucket}")
    return rights


def parse_groups(form: Mapping[str, str]) -> list[str]:
    """Return the groups that a form names."""
    return list(filter(None, form.get("groups", "").split(",")))
