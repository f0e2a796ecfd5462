"""`millstream user`: add, list and remove users, and set their passwords.

Invariants:
1. A new password comes from a file, a terminal or standard input, never from the command line.

Elsewhere: what the node does (`gateway.aio.node.user_pages`).

Source: docs/reference/user.md.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.connect import (
    PASSWORD_BYTES_MAX,
    JsonOption,
    NodeOptions,
    at_node,
    password_in,
)
from millstream.cli.node_http import node_http, path_of, print_object
from millstream.client.http import HttpClient
from millstream.errors import ConditionError, UsageError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
RoleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="admin, RIGHT:BUCKET (read, write, stream, design) or group:NAME; repeatable.",
    ),
]
NewPasswordOption = Annotated[
    Path | None,
    typer.Option(
        "--new-password-file",
        metavar="FILE",
        help="File with the new password; else it is asked for, or read from standard input.",
    ),
]


@app.command("add")
@at_node
def add(
    name: NameArgument,
    role: RoleOption = None,
    new_password_file: NewPasswordOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Add a user; the first one of a node must be an administrator (--role admin)."""
    http = node_http(**at.options)
    if _roles_of(http, name) is not None:
        raise UsageError(
            f"there is a user {name!r} already; `millstream user password` sets a password",
            code="user_exists",
        )
    content = {"password": _new_password(name, new_password_file), "roles": role or []}
    http.request("PUT", _path(name), content)
    print(f"user {name}: added")


@app.command("list")
@at_node
def list_users(
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """List users and their roles."""
    http = node_http(**at.options)
    found = http.request("GET", path_of("_millstream", "users"))
    if json:
        print_object(found)
        return
    for one in found["users"]:
        print(one["name"], *one["roles"])


@app.command("remove")
@at_node
def remove(
    name: NameArgument,
    *,
    at: NodeOptions,
) -> None:
    """Remove a user; the connections of that user end."""
    http = node_http(**at.options)
    http.request("DELETE", _path(name))
    print(f"user {name}: removed")


@app.command("password")
@at_node
def set_password(
    name: NameArgument,
    new_password_file: NewPasswordOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Set the password of a user; the roles stay as they are."""
    http = node_http(**at.options)
    roles = _roles_of(http, name)
    if roles is None:
        raise ConditionError(f"no user {name!r}", code="user_not_found")
    content = {"password": _new_password(name, new_password_file), "roles": roles}
    http.request("PUT", _path(name), content)
    print(f"user {name}: has a new password")


def _path(name: str) -> str:
    return path_of("_millstream", "users", name)


def _roles_of(http: HttpClient, name: str) -> list[str] | None:
    """Return the roles of a user, None if there is no such user."""
    for one in http.request("GET", path_of("_millstream", "users"))["users"]:
        if one["name"] == name:
            return list(one["roles"])
    return None


def _new_password(name: str, file: Path | None) -> str:
    if file is not None:
        return password_in(file)
    if sys.stdin.isatty():
        password = getpass.getpass(f"New password of {name}: ")
        if getpass.getpass("Once more: ") != password:
            raise UsageError("the two passwords differ", code="bad_password")
    else:
        password = sys.stdin.readline(PASSWORD_BYTES_MAX).rstrip("\r\n")
    if not password:
        raise UsageError(
            "there is no new password: give --new-password-file, or a line on standard input",
            code="no_password",
        )
    return password
