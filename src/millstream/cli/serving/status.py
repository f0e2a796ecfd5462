"""`millstream status`: is a node well?

Invariants:
1. Exit code 1 if the node cannot be reached or a bucket of it is not served. Warnings change
   nothing about it.

Elsewhere: asking the node (`cli.serving.node_figures`), what its figures say
(`cli.serving.health`).
"""

from __future__ import annotations

import json as json_module
from typing import Any

from rich.console import Console

from millstream.cli.connect import (
    JsonOption,
    NodeOptions,
    at_node,
    tls_of,
    who_of,
)
from millstream.cli.serving.health import bucket_lines, node_line, warnings_of
from millstream.cli.serving.node_figures import NodeFigures
from millstream.errors import UnavailableError

__all__ = ["command"]


@at_node
def command(
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Show the health of a node: its buckets, and what somebody should look at.

    Exit code 1 if it cannot be reached or does not serve a bucket.
    """
    who, tls = who_of(at.user, at.password_file), tls_of(at.tls_ca)
    with NodeFigures(at.address, who, tls) as node:
        found = node.read()
    buckets = found["buckets"]
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


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    listeners = {name: text for name, text in found.get("listeners", {}).items() if text}
    several = f", engine {found['engine']} of {found['engines']}" if "engine" in found else ""
    console.print(f"node {found.get('uuid', '')} at {found['connect']}: up{several}", style="bold")
    console.print(node_line(found))
    for name, text in listeners.items():
        console.print(f"  {name:<10} {text}")
    for bucket in found["buckets"]:
        for line in bucket_lines(bucket):
            console.print(line, markup=False)
    for warning in found["warnings"]:
        console.print(f"! {warning}", style="yellow")
