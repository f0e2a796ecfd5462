"""One user as kept: name, roles, verifiers. No password is ever kept.

Invariants:
1. A role is `admin`, or `RIGHT:BUCKET` with RIGHT one of read, write, stream, design and BUCKET a
   bucket's name or `*` for all, or `group:NAME`: one of those whom access lists call so.
2. `admin` implies every right; no other right implies another.
3. Who shows a token is nobody's record, whatever its name: no password, never an administrator.

Elsewhere: the store (`access.users`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from millstream.access.scram import HASHES, decoded, derive_keys, encoded, prepared
from millstream.errors import UsageError

__all__ = [
    "ADMIN",
    "GROUPS_MAX",
    "ITERATIONS",
    "NAME_BYTES_MAX",
    "Right",
    "User",
    "Verifier",
    "bearer_user",
    "changed_user",
    "checked_name",
    "checked_roles",
    "make_verifiers",
    "user_from_json",
    "user_to_json",
]

Right = Literal["read", "write", "stream", "design", "admin"]

ADMIN: Final = "admin"
ITERATIONS: Final = 15_000
"""PBKDF2 rounds of a new verifier: 3 ms of one core with SHA-256, 8 ms with SHA-512."""
NAME_BYTES_MAX: Final = 128
GROUPS_MAX: Final = 32
"""Most groups of one user: every change of coordination is logged with them."""
_BUCKET_RIGHTS: Final = ("read", "write", "stream", "design")
_GROUP: Final = "group:"
_GROUP_NAME: Final = re.compile(r"[^\x00-\x20\x7f]+")


class Verifier(NamedTuple):
    """What the server keeps of a password under one mechanism (RFC 5802)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True, slots=True)
class User:
    """One user; replaced as a whole when anything of it changes."""

    name: str
    roles: tuple[str, ...]
    verifiers: Mapping[str, Verifier]
    """Verifiers by mechanism name as on the wire; empty for a user who logged in with a token."""

    @property
    def is_admin(self) -> bool:
        """Whether the user may do everything."""
        return ADMIN in self.roles

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups the user is in, as access lists of coordination name them."""
        return tuple(role.removeprefix(_GROUP) for role in self.roles if role.startswith(_GROUP))

    def may(self, right: Right, bucket: str) -> bool:
        """Return whether the user has a right in a bucket (`admin`: anywhere).

        In one whose name begins with `_` only administrators have any.
        """
        roles = self.roles
        if ADMIN in roles:
            return True
        return not bucket.startswith("_") and not {f"{right}:{bucket}", f"{right}:*"}.isdisjoint(
            roles
        )


def bearer_user(name: str, groups: Sequence[str]) -> User:
    """Return whom a token speaks of: groups that say a right are rights, the others groups.

    Args:
        name: the token's subject.
        groups: those of the token; `admin` among them is a group like any other.
    """
    roles = {name if _is_right(name) else _GROUP + name for name in groups}
    return User(name, tuple(sorted(roles)), {})


def _is_right(role: str) -> bool:
    right, _, bucket = role.partition(":")
    return right in _BUCKET_RIGHTS and bucket != ""


def make_verifiers(password: str, salts: Mapping[str, bytes]) -> dict[str, Verifier]:
    """Return the verifiers of a password; about 15 ms.

    Args:
        password: any text SASLprep accepts, not empty.
        salts: mechanism -> 16 random bytes.

    Raises:
        UsageError: `bad_password`, it is empty.
        AccessError: `bad_characters`.
    """
    if not password:
        raise UsageError("a password may not be empty", code="bad_password")
    verifiers = {}
    for mechanism, hash_name in HASHES.items():
        salt = salts[mechanism]
        keys = derive_keys(hash_name, password, salt, ITERATIONS)
        verifiers[mechanism] = Verifier(salt, ITERATIONS, keys.stored_key, keys.server_key)
    return verifiers


def checked_name(name: str) -> str:
    """Return the prepared form of a new user's name.

    Raises:
        UsageError: `bad_user_name`.
        AccessError: `bad_characters`.
    """
    name = prepared(name)
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or ":" in name or name[0] in "@_":
        raise UsageError(
            f"user name {name!r}: 1 to {NAME_BYTES_MAX} bytes, no colon, not beginning with "
            "@ or _ (these are the nodes' own)",
            code="bad_user_name",
        )
    return name


def checked_roles(roles: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return roles, sorted and without repetition.

    Raises:
        UsageError: `bad_role`.
    """
    for role in roles:
        if role.startswith(_GROUP):
            _check_group(role)
        elif role != ADMIN and not _is_right(role):
            raise UsageError(
                f"role {role!r} is neither {ADMIN}, nor RIGHT:BUCKET with RIGHT one of "
                f"{', '.join(_BUCKET_RIGHTS)} (BUCKET * means all), nor group:NAME",
                code="bad_role",
            )
    if sum(role.startswith(_GROUP) for role in roles) > GROUPS_MAX:
        raise UsageError(f"a user is in at most {GROUPS_MAX} groups", code="bad_role")
    return tuple(sorted(set(roles)))


def _check_group(role: str) -> None:
    name = role.removeprefix(_GROUP)
    if not _GROUP_NAME.fullmatch(name) or len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"role {role!r}: a group's name has 1 to {NAME_BYTES_MAX} bytes and no spaces",
            code="bad_role",
        )


def changed_user(
    before: User | None,
    name: str,
    *,
    verifiers: Mapping[str, Verifier] | None,
    rights: Sequence[str] | None,
    groups: Sequence[str] | None,
) -> User:
    """Return a user with what is said; the rest stays as it was, a new one has none.

    Raises:
        UsageError: `bad_password`: nobody can be made without; `bad_role`.
    """
    if verifiers is None:
        if before is None:
            raise UsageError(f"there is no user {name!r}; say a password", code="bad_password")
        verifiers = before.verifiers
    kept = before.roles if before is not None else ()
    roles = [role for role in kept if not role.startswith(_GROUP)] if rights is None else rights
    named = [role for role in kept if role.startswith(_GROUP)]
    if groups is not None:
        named = [_GROUP + group for group in groups]
    return User(name, checked_roles([*roles, *named]), verifiers)


def user_to_json(user: User) -> dict[str, Any]:
    """Return the form kept in users.json."""
    verifiers = {
        mechanism: {
            "salt": encoded(verifier.salt),
            "iterations": verifier.iterations,
            "stored_key": encoded(verifier.stored_key),
            "server_key": encoded(verifier.server_key),
        }
        for mechanism, verifier in user.verifiers.items()
    }
    return {"name": user.name, "roles": list(user.roles), "verifiers": verifiers}


def user_from_json(record: Mapping[str, Any]) -> User:
    """Reverse `user_to_json`; KeyError, TypeError or ProtocolError if it is something else."""
    verifiers = {
        str(mechanism): Verifier(
            decoded(kept["salt"]),
            int(kept["iterations"]),
            decoded(kept["stored_key"]),
            decoded(kept["server_key"]),
        )
        for mechanism, kept in record["verifiers"].items()
    }
    return User(str(record["name"]), tuple(str(role) for role in record["roles"]), verifiers)
