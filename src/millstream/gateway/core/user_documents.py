"""Users as documents of CouchDB's `_users`, and their roles in CouchDB's form.

    {"_id": "org.couchdb.user:bob", "_rev": "1-...", "name": "bob", "type": "user", "roles": [..]}
    role of a record     shown
    admin                _admin
    RIGHT:BUCKET         the same: read:shop
    group:NAME           NAME, or the same where it could be taken for one of the others

Invariants:
1. A document contains nothing of a password, and its revision does not reveal one.
2. Every change of a record changes its revision, so a change that names a revision applies to what
   was read.
3. A shown document that is sent back has the same meaning.
4. A group is never shown as `_admin`, or as a right.

Elsewhere: the records (`access.records`), the pages (`gateway.aio.node.user_document_pages`).
Source: CouchDB's authentication database, and its validation function.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from millstream.access.records import ADMIN, User
from millstream.access.scram import prepared
from millstream.documents.sent import Sent, parse_sent
from millstream.errors import AccessError, UsageError
from millstream.gateway.core.listing import Listed

__all__ = [
    "USER_PREFIX", "SentUser", "gone_rev", "groups_of", "listed", "parse_user", "rev_of",
    "rights_of", "said_roles", "shown_roles", "user_name",
]  # fmt: skip

USER_PREFIX: Final = "org.couchdb.user:"
_ADMIN_SHOWN: Final = "_admin"
_GROUP: Final = "group:"
_MEMBERS: Final = frozenset({"name", "type", "roles", "password"})
_DIGEST_BYTES: Final = 16


class SentUser(NamedTuple):
    """A document as a client sends it."""

    rev: str | None
    is_deleted: bool
    password: str | None
    """The new password. None: it stays unchanged."""
    roles: list[str]
    """The roles in the form of records, sorted."""


# -- roles


def shown_roles(roles: Sequence[str]) -> list[str]:
    """Return the roles of a record as CouchDB's clients and functions know them."""
    return sorted(_shown(role) for role in roles)


def _shown(role: str) -> str:
    if role == ADMIN:
        return _ADMIN_SHOWN
    group = role.removeprefix(_GROUP)
    is_plain = group != role and ":" not in group and not group.startswith("_")
    return group if is_plain else role


def said_roles(roles: Sequence[str]) -> list[str]:
    """Reverse `shown_roles`.

    Raises:
        AccessError: `forbidden`: an unknown system role.
    """
    return sorted({_said(role) for role in roles})


def _said(role: str) -> str:
    if role == _ADMIN_SHOWN:
        return ADMIN
    if role.startswith("_"):
        raise _forbidden(
            f"No system roles (starting with underscore) in users db, but {_ADMIN_SHOWN}."
        )
    return role if ":" in role else _GROUP + role


def rights_of(roles: Sequence[str]) -> list[str]:
    """Return the roles of a record that are not groups."""
    return [role for role in roles if not role.startswith(_GROUP)]


def groups_of(roles: Sequence[str]) -> list[str]:
    """Return the names of the groups among the roles of a record."""
    return [role.removeprefix(_GROUP) for role in roles if role.startswith(_GROUP)]


# -- documents


def rev_of(user: User) -> str:
    """Return the revision of a record: its salts change with each password, and are not secret."""
    salts = [(mechanism, one.salt) for mechanism, one in sorted(user.verifiers.items())]
    return "1-" + _digest((user.name, user.roles, salts))


def gone_rev(rev: str) -> str:
    """Return the revision of a removal, from the revision before; nobody can request it."""
    return "2-" + _digest(rev)


def _digest(value: object) -> str:
    return blake2b(msgspec.msgpack.encode(value), digest_size=_DIGEST_BYTES).hexdigest()


def listed(user: User) -> Listed:
    """Return the document of a user."""
    body = {"name": user.name, "type": "user", "roles": shown_roles(user.roles)}
    return Listed(USER_PREFIX + user.name, rev_of(user), msgspec.json.encode(body))


def user_name(doc_id: str) -> str | None:
    """Return the name of the user with this document id; None if no user can have it."""
    name = doc_id.removeprefix(USER_PREFIX)
    return name if name and name != doc_id else None


def parse_user(data: bytes, doc_id: str | None) -> tuple[str, SentUser]:
    """Return the name and the content of a sent user document.

    Args:
        data: the document.
        doc_id: of the address; None: the document has it.

    Raises:
        UsageError: `bad_json`, `bad_request`, `doc_validation`.
        AccessError: `forbidden`, in CouchDB's words; `bad_characters`.
    """
    sent = parse_sent(data)
    if doc_id is None:
        doc_id = sent.id or ""
    elif sent.id not in (None, doc_id):
        raise UsageError("Document ID must match the address", code="bad_request")
    name = user_name(doc_id)
    if sent.is_deleted and name is not None:
        return name, SentUser(sent.rev, True, None, [])
    _check(sent, name)
    assert name is not None, "it is the document's"
    password = sent.content.get("password")
    if password is not None and not isinstance(password, str):
        raise _forbidden("doc.password must be a string")
    return name, SentUser(sent.rev, False, password, said_roles(sent.content["roles"]))


def _check(sent: Sent, name: str | None) -> None:
    content = sent.content
    roles: Any = content.get("roles")
    if content.get("type") != "user":
        raise _forbidden("doc.type must be user")
    if not content.get("name"):
        raise _forbidden("doc.name is required")
    if not isinstance(roles, list):
        raise _forbidden("doc.roles must be an array")
    if not all(isinstance(role, str) and role for role in roles):
        raise _forbidden("doc.roles can only contain strings")
    if name is None or content["name"] != name:
        raise _forbidden(f"Document id must be of the form {USER_PREFIX}name")
    if prepared(name) != name:
        raise _forbidden(f"doc.name is kept as {prepared(name)!r}: say it so")
    others = sorted(content.keys() - _MEMBERS)
    if others or sent.attachments:
        what = ", ".join(map(repr, others)) or "attachments"
        raise UsageError(
            f"a user has {', '.join(sorted(_MEMBERS))}, and nothing else is kept: {what[:200]} "
            "belongs into a database of yours",
            code="doc_validation",
        )


def _forbidden(reason: str) -> AccessError:
    return AccessError(reason, code="forbidden")
