"""Sockets and TLS of a node's listeners.

Invariants:
1. All sockets are bound before recovery starts, so that a busy port is reported at once.
2. A bound socket answers nothing until its server is ready.

Elsewhere: which listeners may be opened (`node.settings.refuse_exposure`).
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from typing import Final

from millstream.errors import UnavailableError, UsageError
from millstream.node.settings import LISTENERS, Address, Settings

__all__ = [
    "BUILT",
    "COORDINATION",
    "bind",
    "bind_all",
    "bound_address",
    "peer_context",
    "peer_server_context",
    "peer_tls_context",
    "server_context",
    "shown_addresses",
    "tls_context",
    "trust_of",
]

BUILT: Final = ("kv", "memcached", "http", "coord", "ninep", "peer")
"""The listeners of a node."""
COORDINATION: Final = ("coord", "ninep", "peer")
"""Listeners of the coordination process."""
_CERTIFICATE: Final = re.compile(
    "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)


def bind_all(settings: Settings, names: Iterable[str] = BUILT) -> dict[str, socket.socket]:
    """Bind the open listeners; after an error none stays bound.

    Raises:
        UnavailableError: `port_in_use`, `cannot_listen`.
    """
    bound: dict[str, socket.socket] = {}
    try:
        for name in names:
            address: Address | None = getattr(settings, name)
            if address is not None:
                bound[name] = bind(name, address)
    except UnavailableError:
        for listening in bound.values():
            listening.close()
        raise
    return bound


def bind(name: str, address: Address) -> socket.socket:
    """Bind one listener.

    Raises:
        UnavailableError: `port_in_use`, `cannot_listen`.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, target = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(target)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UnavailableError(
                f"--{name} {address}: the port is in use; stop the program that has it, or choose "
                "another port (0 takes a free one)",
                code="port_in_use",
            ) from error
        raise UnavailableError(
            f"--{name} {address}: cannot listen there: {error.strerror or error}",
            code="cannot_listen",
            retry="never",
        ) from error
    return listening


def bound_address(address: Address, listening: socket.socket) -> Address:
    """Return an address as configured, with its actual port."""
    return Address(address.host, listening.getsockname()[1])


def shown_addresses(open_: Mapping[str, Address]) -> dict[str, str | None]:
    """Return listener -> HOST:PORT, None for closed ones."""
    return {name: str(open_[name]) if name in open_ else None for name in LISTENERS}


def peer_tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context for connections to other cluster nodes; None without `--tls-cert`.

    Their certificates are checked against `--tls-ca`, or must equal this node's.

    Raises:
        UsageError: `bad_certificate`.
    """
    if settings.tls_cert is None:
        return None
    try:
        return peer_context(settings.tls_cert, settings.tls_key, settings.tls_ca)
    except (OSError, ValueError) as error:
        raise _bad_certificate(settings, error) from error


def trust_of(settings: Settings) -> ssl.SSLContext | None:
    """Return what replications trust: cluster nodes, `--tls-ca`, the system's authorities.

    Raises:
        UsageError: `bad_certificate`.
    """
    context = peer_tls_context(settings)
    if context is not None:
        context.load_default_certs()
        return context
    if settings.tls_ca is None:
        return None
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(settings.tls_ca)
    except OSError as error:  # ssl.SSLError included
        raise _bad_certificate(settings, error) from error
    return context


def peer_context(cert: str, key: str | None, ca: str | None) -> ssl.SSLContext:
    """Return the TLS context of a process of this node for connections to other nodes.

    Raises:
        OSError: a file cannot be read or is invalid.
        ValueError: the same.
    """
    context = ssl.create_default_context(cafile=ca, cadata=None if ca else _own(cert))
    context.load_cert_chain(cert, key)
    if ca is None:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _own(cert: str) -> str:
    """Return the first certificate of a file; later ones are mostly of authorities."""
    with open(cert, encoding="latin-1") as file:
        found = _CERTIFICATE.search(file.read())
    if found is None:
        raise ValueError("there is no certificate in it")
    return found.group()


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the kv and http listeners; None without `--tls-cert`.

    Raises:
        UsageError: `bad_certificate`.
    """
    if settings.tls_cert is None:
        return None
    try:
        return server_context(settings.tls_cert, settings.tls_key, settings.tls_ca)
    except (OSError, ValueError) as error:
        raise _bad_certificate(settings, error) from error


def server_context(cert: str, key: str | None, ca: str | None) -> ssl.SSLContext:
    """Return the TLS context of a process of this node for clients' connections.

    Raises:
        OSError: a file cannot be read or is invalid.
        ValueError: the same.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    if ca is not None:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def peer_server_context(cert: str, key: str | None, ca: str | None) -> ssl.SSLContext:
    """Return the TLS context for incoming connections of other nodes, which show a certificate.

    It is checked as `peer_context` checks theirs. Raises as `server_context`.
    """
    context = server_context(cert, key, ca)
    context.verify_mode = ssl.CERT_REQUIRED
    if ca is None:
        context.load_verify_locations(cadata=_own(cert))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _bad_certificate(settings: Settings, error: Exception) -> UsageError:
    option = (
        f"--tls-cert {settings.tls_cert}" if settings.tls_cert else f"--tls-ca {settings.tls_ca}"
    )
    return UsageError(
        f"{option}: certificate, key or CA cannot be read: {error}", code="bad_certificate"
    )
