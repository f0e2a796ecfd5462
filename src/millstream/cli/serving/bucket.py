"""`millstream bucket`: make, list, show and drop buckets.

Elsewhere: what the node does (`gateway.aio.databases.bucket_pages`).

Source: docs/reference/bucket.md.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
)
from millstream.cli.node_http import node_http, path_of, print_object
from millstream.errors import UsageError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

PartitionsOption = Annotated[
    int | None, typer.Option("--partitions", min=1, metavar="N", help="64 unless said.")
]
QuotaOption = Annotated[
    int | None,
    typer.Option("--memory-quota", min=1, metavar="BYTES", help="That of the node unless said."),
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Drop it, with all that it holds. There is no way back.")
]


@app.command("create")
@at_node
def create(
    bucket: BucketArgument,
    partitions: PartitionsOption = None,
    memory_quota: QuotaOption = None,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Make a bucket."""
    content: dict[str, Any] = {"name": bucket}
    if partitions is not None:
        content["partitions"] = partitions
    if memory_quota is not None:
        content["memory_quota_bytes"] = memory_quota
    http = node_http(**at.options)
    made = http.request("PUT", _path(bucket), content)
    if json:
        print_object(made)
    else:
        print(f"bucket {bucket}: made, {made['partitions']} partitions")


@app.command("list")
@at_node
def list_buckets(
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """List the buckets that the user has a right in, a name per line."""
    http = node_http(**at.options)
    found = http.request("GET", path_of("_millstream", "buckets"))
    if json:
        print_object(found)
        return
    for one in found["buckets"]:
        print(one["name"])


@app.command("info")
@at_node
def info(
    bucket: BucketArgument,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Show one bucket."""
    http = node_http(**at.options)
    found = http.request("GET", _path(bucket))
    if json:
        print_object(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {value}")


@app.command("drop")
@at_node
def drop(
    bucket: BucketArgument,
    yes: YesOption = False,
    *,
    at: NodeOptions,
) -> None:
    """Remove a bucket and all that it holds; needs --yes."""
    if not yes:
        raise UsageError(
            f"this removes bucket {bucket!r} and all that it holds for good; if that is meant, "
            "give --yes",
            code="not_confirmed",
        )
    http = node_http(**at.options)
    http.request("DELETE", _path(bucket))
    print(f"bucket {bucket}: dropped")


def _path(bucket: str) -> str:
    return path_of("_millstream", "buckets", bucket)
