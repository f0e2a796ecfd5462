"""`millstream delete BUCKET KEY`: delete one document.

Invariants:
1. A document that is not there is a failure (exit code 1), not a success.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    KeyArgument,
    NodeOptions,
    at_node,
    client_of,
    key_of,
    print_stored,
)
from millstream.cli.designs import database_of, is_design, refuse_options

__all__ = ["command"]

CasOption = Annotated[
    int, typer.Option("--cas", min=0, help="Delete only if the document still has this CAS.")
]


@at_node
def command(
    bucket: BucketArgument,
    key: KeyArgument,
    cas: CasOption = 0,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Delete one document."""
    if is_design(key):
        refuse_options({"--cas": cas != 0})
        database = database_of(bucket, key, **at.options)
        gone = database.delete(key)
        if json:
            print(msgspec.json.encode({"key": key, "rev": gone.get("rev")}).decode())
        return
    with client_of(bucket, **at.options) as client:
        stored = client.remove(key_of(key), cas=cas, durability="persisted")
    if json:
        print_stored(key, stored)
