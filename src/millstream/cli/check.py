"""`millstream check DIR`: verify a data directory while no server uses it.

Elsewhere: the checking (`node.check`).
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from millstream.errors import CorruptionError
from millstream.node.check import BucketCheck, check_directory

__all__ = ["command"]


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read every record of a data directory and verify its checksums.

    Nothing is changed. Exit code 1 if anything is damaged.
    """

    def progress(bucket: BucketCheck) -> None:
        print(f"checking bucket {bucket.name} ...", file=sys.stderr)

    found = check_directory(directory, progress)
    if json:
        print(msgspec.json.encode({**asdict(found), "is_sound": found.is_sound}).decode())
    else:
        print(f"node {found.uuid}, format {found.format}, users {found.users}")
        for bucket in found.buckets:
            print(_line(bucket))
    if not found.is_sound:
        damaged = sum(bool(bucket.damage) for bucket in found.buckets)
        raise CorruptionError(f"{damaged} of {len(found.buckets)} buckets are damaged")


def _line(bucket: BucketCheck) -> str:
    if bucket.damage:
        return f"bucket {bucket.name}: DAMAGED: {bucket.damage}"
    line = (
        f"bucket {bucket.name}: ok, {bucket.changes:,} changes, {bucket.records:,} records, "
        f"{bucket.bytes:,} bytes in {bucket.segments} segments"
    )
    if bucket.torn_bytes:
        line += f", a torn tail of {bucket.torn_bytes:,} bytes that the next start cuts"
    return line
