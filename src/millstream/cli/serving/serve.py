"""`millstream serve`: one node, or several engines of one machine, in the foreground.

Invariants:
1. Only what was written on the command line is handed on, so that environment and config file
   can say the rest.

Elsewhere: what the options mean and which are refused (`node.settings`), the supervisor
(`node.processes.supervisor`), several engines (`node.processes.engines`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from millstream.cli.serving.serve_background import log_beside, start, words_of
from millstream.errors import UsageError
from millstream.node.settings import (
    DEFAULT_DATA,
    FLUSH_INTERVAL_MS,
    LISTENERS,
    load_settings,
)

__all__ = ["command"]

_LISTEN, _SAFE, _OTHER = "Listeners", "Users and encryption", "Running"


def _listener(name: str, what: str) -> object:
    text = f"{what} Default {LISTENERS[name]}; port 0 takes a free one."
    return typer.Option(
        f"--{name}", metavar="HOST:PORT", help=text, show_default=False, rich_help_panel=_LISTEN
    )


def _closed(name: str) -> object:
    return typer.Option(
        f"--no-{name}", help=f"Close the {name} listener.", rich_help_panel=_LISTEN
    )


def command(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"Data directory. Default {DEFAULT_DATA}."),
    ] = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PARTITIONS]",
            help="A bucket that must exist; repeatable. Without any, a new node has 'default'.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with options by the same names."),
    ] = None,
    kv: Annotated[str | None, _listener("kv", "Documents and change streams.")] = None,
    memcached: Annotated[
        str | None, _listener("memcached", "Plain memcached protocol, bucket 'default'.")
    ] = None,
    http: Annotated[str | None, _listener("http", "HTTP.")] = None,
    coord: Annotated[str | None, _listener("coord", "Coordination, RESP.")] = None,
    ninep: Annotated[str | None, _listener("ninep", "Namespaces as files, by 9P.")] = None,
    peer: Annotated[str | None, _listener("peer", "Node to node.")] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="All listeners from port N on, on loopback: kv N, memcached N+1, http N+2, "
            "coord N+3, ninep N+4, peer N+5, but those given by name.",
            rich_help_panel=_LISTEN,
        ),
    ] = None,
    no_kv: Annotated[bool, _closed("kv")] = False,
    no_memcached: Annotated[bool, _closed("memcached")] = False,
    no_http: Annotated[bool, _closed("http")] = False,
    no_coord: Annotated[bool, _closed("coord")] = False,
    no_ninep: Annotated[bool, _closed("ninep")] = False,
    no_peer: Annotated[bool, _closed("peer")] = False,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="Host that clients are told to use.", rich_help_panel=_LISTEN
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Peer address of a node to coordinate with; with --engines the HTTP address of a "
            "node of the cluster to join, with --roles index that of a node that has data.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:PASSWORD",
            help="An administrator, for development; repeatable. NAME alone takes the password "
            "from MILLSTREAM_PASSWORD_<NAME>.",
            rich_help_panel=_SAFE,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Certificate: kv and HTTP speak TLS.", rich_help_panel=_SAFE
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Its key, if not in the same file.", rich_help_panel=_SAFE
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Authority that certifies clients and nodes.",
            rich_help_panel=_SAFE,
        ),
    ] = None,
    oidc_issuer: Annotated[
        str | None,
        typer.Option(
            metavar="ISSUER",
            help="Its tokens are taken, by coordination and HTTP: exactly what they say as iss.",
            rich_help_panel=_SAFE,
        ),
    ] = None,
    oidc_audience: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Whom tokens are for: one of their aud.", rich_help_panel=_SAFE
        ),
    ] = None,
    oidc_jwks: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL", help="The issuer's public keys (JWKS).", rich_help_panel=_SAFE
        ),
    ] = None,
    oidc_groups_claim: Annotated[
        str | None,
        typer.Option(
            metavar="CLAIM",
            help="Where tokens say the groups of a user. Default groups.",
            rich_help_panel=_SAFE,
        ),
    ] = None,
    insecure_plaintext: Annotated[
        bool | None,
        typer.Option(
            "--insecure-plaintext",
            help="Let listeners beyond loopback do without TLS.",
            rich_help_panel=_SAFE,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="A site whose pages may use the HTTP port from a browser, as in "
            "https://app.example; repeatable; * for all, if there are users.",
            rich_help_panel=_SAFE,
        ),
    ] = None,
    roles: Annotated[
        str | None,
        typer.Option(
            metavar="data,index,coord",
            help="What the node does; index alone: it indexes what others have.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    engines: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Engines on this machine, to use N processors: nodes of one cluster, each with "
            "ports 100 above those of the one before. Default 1.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            help="Zone of the node in a cluster: copies are spread over zones. With --engines the "
            "machine.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    python_module: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="A module that registers Python functions for views; repeatable.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    reduce_limit: Annotated[
        str | None,
        typer.Option(
            metavar="true|false|log",
            help="Refuse results of view reduces that do not shrink, accept them, or log them. "
            "Default true.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    flush_interval: Annotated[
        int | None,
        typer.Option(
            metavar="MS",
            help=f"Longest wait of a write for its group commit. Default {FLUSH_INTERVAL_MS}.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    memory_quota: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory that the documents of a bucket may take, as in 2GiB. Default: a quarter "
            "of the machine's.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="debug, info, warning or error. Default info.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
    log_json: Annotated[
        bool | None,
        typer.Option("--log-json", help="Logs as JSON lines.", rich_help_panel=_OTHER),
    ] = None,
    background: Annotated[
        bool,
        typer.Option(
            "--background",
            help="Return when the node is ready; print its pid and log file. kill PID stops it.",
            rich_help_panel=_OTHER,
        ),
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of a node in the background. Default DIR.log, beside the data directory.",
            rich_help_panel=_OTHER,
        ),
    ] = None,
) -> None:
    """Run a node.

    When it is ready, one JSON line on stdout says where it listens; logs go to stderr.

    SIGTERM or Ctrl-C stops it cleanly.

    Options may also come from --config, or from the environment (MILLSTREAM_SERVE_DATA, ...).
    """
    if not __debug__:
        raise UsageError("a node relies on its assertions: start Python without -O")
    written = {name.replace("_", "-"): value for name, value in locals().items()}
    given = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in written.items()
        if value is not None and value is not False and value != []
    }
    for name in ("background", "log-file"):  # these are no settings of a node
        given.pop(name, None)
    settings = load_settings(given, os.environ)
    if background:
        log = log_beside(Path(settings.data)) if log_file is None else log_file.absolute()
        ready = start(words_of(given), log)
        _announce(msgspec.json.encode(ready).decode())
        pid = ready["pid"]
        print(f"the node runs, pid {pid}, log {log}; `kill {pid}` stops it", file=sys.stderr)
        from millstream.node.processes.supervisor import console_address

        if (console := console_address(settings, ready.get("http"))) is not None:
            print(f"the console is at {console}", file=sys.stderr)
        return
    if log_file is not None:
        raise UsageError("--log-file is for --background", code="bad_arguments")
    from millstream.node.processes.engines import run_node

    run_node(settings, announce=_announce)


def _announce(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # nobody wants to know; the node runs all the same, and the end must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
