"""`millstream bucket`: make, list, show, set and drop buckets.

In a managed cluster a bucket belongs to all nodes, whichever is asked.

Elsewhere: what the node does (`gateway.aio.databases.bucket_pages`).

Source: docs/reference/bucket.md.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
)
from millstream.cli.node_http import node_http, path_of, print_object
from millstream.cli.serving.cluster_output import moves_text
from millstream.errors import UnavailableError, UsageError

__all__ = ["app"]

CHANGE_S: Final = 90.0
"""Longest wait for a bucket of a cluster: until the orchestrator has answered and it is served."""
app = typer.Typer(no_args_is_help=True)

PartitionsOption = Annotated[
    int | None, typer.Option("--partitions", min=1, metavar="N", help="64 unless said.")
]
QuotaOption = Annotated[
    int | None,
    typer.Option("--memory-quota", min=1, metavar="BYTES", help="That of the node unless said."),
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        min=0,
        max=3,
        metavar="R",
        help="Copies besides the active one, in a cluster.",
    ),
]
IndexReplicasOption = Annotated[
    int | None,
    typer.Option(
        "--index-replicas", min=0, max=1, metavar="N", help="Index parts kept beside the owner's."
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse if there are too few nodes for the replicas.")
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
    replicas: ReplicasOption = None,
    index_replicas: IndexReplicasOption = None,
    strict: StrictOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Make a bucket; in a cluster on all its data nodes."""
    content: dict[str, Any] = {"name": bucket}
    if partitions is not None:
        content["partitions"] = partitions
    content |= _given(memory_quota, replicas, index_replicas, strict=strict)
    http = node_http(**at.options)
    made = http.request("PUT", _path(bucket), content, timeout_s=CHANGE_S)
    if json:
        print_object(made)
        return
    print(f"bucket {bucket}: made, {made['partitions']} partitions{_copies(made)}")
    if "reason" in made:
        print(f"! {made['reason']}", file=sys.stderr)


@app.command("set")
@at_node
def set_bucket(
    bucket: BucketArgument,
    replicas: ReplicasOption = None,
    index_replicas: IndexReplicasOption = None,
    memory_quota: QuotaOption = None,
    strict: StrictOption = False,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Change the copies or the settings of a bucket in a cluster; copies are moved then."""
    content = _given(memory_quota, replicas, index_replicas, strict=strict)
    if not content.keys() - {"strict"}:
        raise UsageError("say what is to change: --replicas, --index-replicas, --memory-quota")
    http = node_http(**at.options)
    found = http.request("PATCH", _path(bucket), content, timeout_s=CHANGE_S)
    if json:
        print_object(found)
        return
    print(f"bucket {bucket}: set{_copies(found)}")
    if replicas is not None:
        print(moves_text(found))


def _given(
    memory_quota: int | None, replicas: int | None, index_replicas: int | None, *, strict: bool
) -> dict[str, Any]:
    given = {
        "memory_quota_bytes": memory_quota,
        "replicas": replicas,
        "index_replicas": index_replicas,
        "strict": strict or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _copies(made: dict[str, Any]) -> str:
    """Return the number of copies as text, and whether more were wanted than there can be."""
    if "replicas" not in made:
        return ""
    count, wanted = made["replicas"], made.get("replicas_wanted", made["replicas"])
    if wanted > count:
        return f", replicas {count}: there are too few data nodes for {wanted}"
    return f", replicas {count}"


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
    done = http.request("DELETE", _path(bucket), timeout_s=CHANGE_S)
    if "reason" in done:
        raise UnavailableError(f"{done['reason']}: it goes on", code="timeout")
    print(f"bucket {bucket}: dropped")


def _path(bucket: str) -> str:
    return path_of("_millstream", "buckets", bucket)
