"""`millstream status`: is a node well?

Asks the kv port, and through it learns the HTTP port, which knows the buckets; then the kv port
for the figures of each bucket that the user may read.

Invariants:
1. Exit code 1 if the node cannot be reached or a bucket of it is not served. Warnings change
   nothing about it.

Elsewhere: what the node answers (`kv.core.introspection`, `gateway`), what that says (`health`).
"""

from __future__ import annotations

import json as json_module
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any, Final

from rich.console import Console

from millstream.cli.connect import (
    CONNECT_DEFAULT,
    ConnectOption,
    JsonOption,
    PasswordFileOption,
    TlsCaOption,
    UserOption,
    Who,
    tls_of,
    who_of,
)
from millstream.cli.health import bucket_lines, figure_of, node_line, warnings_of
from millstream.client.connection import PORT_DEFAULT, Connection
from millstream.errors import AccessError, MillstreamError, UnavailableError
from millstream.model.addresses import parse_address
from millstream.wire.mcbp import Opcode, Status, request

__all__ = ["command"]

TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
_STATISTICS_MAX: Final = 10_000


def command(
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Show the health of a node: its buckets, and what somebody should look at.

    Exit code 1 if it cannot be reached or does not serve a bucket.
    """
    who, tls = who_of(user, password_file), tls_of(tls_ca)
    host, port = parse_address(address, default_port=PORT_DEFAULT)
    with Connection(
        host, port, user=who.user, password=who.password, tls=tls, timeout_s=TIMEOUT_S
    ) as connection:
        node = _statistics(connection)
        found: dict[str, Any] = {"connect": address, **node}
        found.pop("buckets", None)
        http_port = found.get("http_port", 0)
        if http_port:
            base = f"{'https' if tls else 'http'}://{'[' + host + ']' if ':' in host else host}"
            found |= _fetch(f"{base}:{http_port}/_millstream/node", who, tls)
            found |= _fetch(f"{base}:{http_port}/_millstream/buckets", who, tls)
        buckets = found.setdefault("buckets", [])
        for bucket in buckets:
            if bucket["state"] == "ready":
                _add_figures(connection, bucket, node)
    found["warnings"] = list(warnings_of(found, buckets))
    failed = [bucket for bucket in buckets if bucket["state"] != "ready"]
    if json:
        print(json_module.dumps(found))
    else:
        _show(found)
    if failed:
        raise UnavailableError(
            f"bucket {failed[0]['name']} is not served: {failed[0].get('reason', '')}"
        )


def _statistics(connection: Connection) -> dict[str, Any]:
    connection.send(request(Opcode.STAT, opaque=1))
    found: dict[str, Any] = {}
    while len(found) < _STATISTICS_MAX:
        for packet in connection.receive():
            if packet.status:
                raise AccessError("the node shows its statistics only after a log-in (--user)")
            if not packet.key and not packet.value:
                return found
            found[packet.key.decode()] = figure_of(packet.value.decode())
    raise UnavailableError("the node's statistics do not end")


def _add_figures(connection: Connection, bucket: dict[str, Any], node: dict[str, Any]) -> None:
    """Ask for the figures of a bucket; a user who may not read it sees none."""
    chosen = connection.request(Opcode.SELECT_BUCKET, key=bucket["name"].encode())
    if chosen.status == Status.SUCCESS:
        found = _statistics(connection)
        bucket["figures"] = {name: found[name] for name in found if name not in node}


def _fetch(url: str, who: Who, tls: ssl.SSLContext | None) -> dict[str, Any]:
    asked = urllib.request.Request(url)
    if who.user is not None:
        credentials = b64encode(f"{who.user}:{who.password}".encode()).decode()
        asked.add_header("Authorization", f"Basic {credentials}")
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S, context=tls) as answer:
            content: dict[str, Any] = json_module.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise _refusal(error) from error
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{url} does not answer: {error}", code="unreachable") from error
    return content


def _refusal(error: urllib.error.HTTPError) -> MillstreamError:
    with error:
        try:
            reason = str(json_module.loads(error.read(_ANSWER_BYTES_MAX))["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            reason = error.reason
    kind = AccessError if error.code in (401, 403) else UnavailableError
    return kind(f"{error.url}: {reason}")


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    listeners = {name: text for name, text in found.get("listeners", {}).items() if text}
    console.print(f"node {found.get('uuid', '')} at {found['connect']}: up", style="bold")
    console.print(node_line(found))
    for name, text in listeners.items():
        console.print(f"  {name:<10} {text}")
    for bucket in found["buckets"]:
        for line in bucket_lines(bucket):
            console.print(line, markup=False)
    for warning in found["warnings"]:
        console.print(f"! {warning}", style="yellow")
