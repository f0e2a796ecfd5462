"""`millstream delete BUCKET KEY`: delete one document.

Invariants:
1. A document that is not there is a failure (exit code 1), not a success.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from millstream.cli.connect import (
    CONNECT_DEFAULT,
    BucketArgument,
    ConnectOption,
    JsonOption,
    KeyArgument,
    PasswordFileOption,
    TlsCaOption,
    UserOption,
    client_of,
    key_of,
)
from millstream.cli.designs import database_of, is_design, refuse_options

__all__ = ["command"]

CasOption = Annotated[
    int, typer.Option("--cas", min=0, help="Delete only if the document still has this CAS.")
]


def command(
    bucket: BucketArgument,
    key: KeyArgument,
    cas: CasOption = 0,
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Delete one document."""
    if is_design(key):
        refuse_options({"--cas": cas != 0})
        database = database_of(
            bucket, key, address=address, user=user, password_file=password_file, tls_ca=tls_ca
        )
        gone = database.delete(key)
        if json:
            print(msgspec.json.encode({"key": key, "rev": gone.get("rev")}).decode())
        return
    with client_of(
        bucket, address=address, user=user, password_file=password_file, tls_ca=tls_ca
    ) as client:
        stored = client.remove(key_of(key), cas=cas, durability="persisted")
    if json:
        members = {
            "key": key,
            "cas": stored.cas,
            "partition": stored.partition_id,
            "uuid": f"{stored.uuid:012x}",
            "seqno": stored.seqno,
        }
        print(msgspec.json.encode(members).decode())
