"""Options that every client command takes, and what they make: connections and values.

Invariants:
1. A password comes from a file or the environment, never from the command line.
2. What a user can mistype is an error that says which option to mend.

Elsewhere: exit codes and printing of errors (`cli.main`).
"""

from __future__ import annotations

import inspect
import os
import ssl
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
import typer

from millstream.client.connection import PORT_DEFAULT, Connection
from millstream.client.documents import Stored
from millstream.client.kv import Client, connect
from millstream.errors import UnavailableError, UsageError
from millstream.model.addresses import parse_address
from millstream.model.partitions import key_from_text

__all__ = [
    "BucketArgument",
    "JsonOption",
    "KeyArgument",
    "LoginOptions",
    "NodeOptions",
    "Who",
    "at_node",
    "awaited",
    "client_of",
    "connection_of",
    "key_of",
    "password_in",
    "print_stored",
    "tls_of",
    "who_of",
]

ConnectOption = Annotated[
    str,
    typer.Option(
        "--connect",
        envvar="MILLSTREAM_CONNECT",
        metavar="HOST:PORT",
        help="The node's kv port.",
        show_default=True,
    ),
]
UserOption = Annotated[
    str | None,
    typer.Option("--user", envvar="MILLSTREAM_USER", metavar="NAME", help="Who logs in."),
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File with the password, else MILLSTREAM_PASSWORD is taken.",
    ),
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        envvar="MILLSTREAM_TLS_CA",
        metavar="FILE",
        help="Encrypt, and trust nodes certified by this authority.",
    ),
]
BucketArgument = Annotated[str, typer.Argument(metavar="BUCKET", help="Name of the bucket.")]
KeyArgument = Annotated[
    str,
    typer.Argument(metavar="KEY", help=r"The document's key; \x and hex digits for other bytes."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

CONNECT_DEFAULT = "127.0.0.1:11210"
STARTING_S_MAX: Final = 15.0
"""How long a command waits for a node that is starting: nothing listens there yet."""
STARTING_PAUSE_S: Final = 0.1
PASSWORD_BYTES_MAX = 64 * 1024
_Made = TypeVar("_Made")


class NodeOptions(NamedTuple):
    """Which node a command asks, and as whom: the options `--connect`, `--user` and so on."""

    address: ConnectOption = CONNECT_DEFAULT
    user: UserOption = None
    password_file: PasswordFileOption = None
    tls_ca: TlsCaOption = None

    @property
    def options(self) -> dict[str, Any]:
        """Return them as keyword arguments, as `client_of`, `node_http` and others take them."""
        return self._asdict()

    @property
    def who(self) -> Who:
        """Return who logs in; errors as `who_of`."""
        return who_of(self.user, self.password_file)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections; errors as `tls_of`."""
        return tls_of(self.tls_ca)


class LoginOptions(NamedTuple):
    """As whom a command asks, where something else says which node."""

    user: UserOption = None
    password_file: PasswordFileOption = None
    tls_ca: TlsCaOption = None

    @property
    def who(self) -> Who:
        """Return who logs in; errors as `who_of`."""
        return who_of(self.user, self.password_file)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections; errors as `tls_of`."""
        return tls_of(self.tls_ca)


def at_node(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `NodeOptions`, or `LoginOptions`, in the place of `at`."""
    own = inspect.signature(command, eval_str=True)
    kind: type[NodeOptions | LoginOptions] = own.parameters["at"].annotation
    hints = get_type_hints(kind, include_extras=True)
    parameters = list[inspect.Parameter]()
    for parameter in own.parameters.values():
        if parameter.name == "at":
            parameters += [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=kind._field_defaults[name],
                    annotation=hints[name],
                )
                for name in kind._fields
            ]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def called(**given: Any) -> None:
        at = kind(*(given.pop(name) for name in kind._fields))
        command(**given, at=at)

    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


class Who(NamedTuple):
    """User name and password; None and empty without a user."""

    user: str | None
    password: str

    def __repr__(self) -> str:
        return f"Who({self.user!r})"


def who_of(user: str | None, password_file: Path | None) -> Who:
    """Return who logs in.

    Raises:
        UsageError: `no_password`, `bad_password_file`.
    """
    if user is None:
        if password_file is not None:
            raise UsageError("--password-file needs --user", code="no_user")
        return Who(None, "")
    if password_file is not None:
        return Who(user, password_in(password_file))
    password = os.environ.get("MILLSTREAM_PASSWORD")
    if password is None:
        raise UsageError(
            f"user {user!r} needs a password: give --password-file, or set MILLSTREAM_PASSWORD",
            code="no_password",
        )
    return Who(user, password)


def password_in(path: Path) -> str:
    """Return the first line of a file.

    Raises:
        UsageError: `bad_password_file`.
    """
    try:
        with path.open("rb") as file:
            text = file.read(PASSWORD_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the password file {path}: {error}", code="bad_password_file"
        ) from error
    password = text.split("\n", 1)[0].removesuffix("\r")
    if not password:
        raise UsageError(f"the password file {path} is empty", code="bad_password_file")
    return password


def tls_of(authority: Path | None) -> ssl.SSLContext | None:
    """Return the context of encrypted connections; None for plain ones.

    Raises:
        UsageError: `bad_certificate`.
    """
    if authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(authority))
    except OSError as error:  # ssl.SSLError included
        raise UsageError(
            f"{authority} is no certificate authority: {error.strerror or error}",
            code="bad_certificate",
        ) from error


def client_of(
    bucket: str,
    *,
    address: str,
    user: str | None,
    password_file: Path | None,
    tls_ca: Path | None,
) -> Client:
    """Connect as the options say; wait for a node that is starting, `STARTING_S_MAX` at most.

    Raises:
        MillstreamError: as `millstream.connect`, or an option is wrong.
    """
    who, tls = who_of(user, password_file), tls_of(tls_ca)
    return awaited(
        address,
        lambda: connect(address, bucket=bucket, user=who.user, password=who.password, tls=tls),
    )


def connection_of(
    address: str, who: Who, tls: ssl.SSLContext | None, *, timeout_s: float
) -> Connection:
    """Connect to the kv port of one node, without a bucket; wait as `client_of`.

    Raises:
        MillstreamError: as `Connection`; UsageError: `bad_address`.
    """
    host, port = parse_address(address, default_port=PORT_DEFAULT)
    return awaited(
        address,
        lambda: Connection(
            host, port, user=who.user, password=who.password, tls=tls, timeout_s=timeout_s
        ),
    )


def awaited(address: str, attempt: Callable[[], _Made]) -> _Made:
    """Return what an attempt to connect makes, for `STARTING_S_MAX` again while nobody listens.

    Args:
        address: of the node, to be told.
        attempt: raises UnavailableError caused by ConnectionRefusedError.

    Raises:
        MillstreamError: as the attempt.
    """
    until, is_told = time.monotonic() + STARTING_S_MAX, False
    while True:
        try:
            return attempt()
        except UnavailableError as error:
            is_refused = isinstance(error.__cause__, ConnectionRefusedError)
            if not is_refused or time.monotonic() >= until:
                raise
        if not is_told:
            print(f"millstream: waiting for a node at {address}", file=sys.stderr)
            is_told = True
        time.sleep(STARTING_PAUSE_S)


def key_of(text: str) -> bytes:
    r"""Return the key that a user wrote.

    Raises:
        UsageError: `bad_key`: `\x` and no hex digits.
    """
    try:
        return key_from_text(text)
    except ValueError as error:
        raise UsageError(
            rf"after \x a key is written in hex digits: {text!r}", code="bad_key"
        ) from error


def print_stored(key: str, stored: Stored) -> None:
    """Print where a change of a document is, as JSON."""
    members = {
        "key": key,
        "cas": stored.cas,
        "partition": stored.partition_id,
        "uuid": f"{stored.uuid:012x}",
        "seqno": stored.seqno,
    }
    print(msgspec.json.encode(members).decode())
