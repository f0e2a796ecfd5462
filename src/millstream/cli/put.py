"""`millstream put BUCKET KEY VALUE`: write one document, design documents included.

Invariants:
1. A value is JSON, and stored unchanged; any other is refused, or stored as bytes with --raw.
2. Nothing on standard input is no value: a command before the pipe that failed writes no document.
3. A design document goes over HTTP, in the place of what is there: the node compiles it first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

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
from millstream.client.documents import Durability
from millstream.errors import UsageError
from millstream.model.limits import VALUE_BYTES_MAX

__all__ = ["command"]

_DEFAULT = "persisted"
ValueArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[VALUE]",
        help="The value; @FILE for that of a file; - or nothing for standard input. For a design "
        "document also the name of its file.",
    ),
]
FileOption = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Take the value from a file.")
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="The value is bytes, and need not be JSON.")
]
CasOption = Annotated[
    int, typer.Option("--cas", min=0, help="Write only if the document still has this CAS.")
]
ExpiryOption = Annotated[
    int,
    typer.Option(
        "--expiry", min=0, help="Seconds until it expires (up to 30 days), or a Unix time."
    ),
]
DurabilityOption = Annotated[
    str,
    typer.Option(
        "--durability",
        help="memory, persisted, majority, majority_and_active_persisted, majority_persisted.",
    ),
]


@at_node
def command(
    bucket: BucketArgument,
    key: KeyArgument,
    value: ValueArgument = None,
    file: FileOption = None,
    raw: RawOption = False,
    cas: CasOption = 0,
    expiry: ExpiryOption = 0,
    durability: DurabilityOption = _DEFAULT,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Write one document."""
    data = _data_of(key, value, file)
    if is_design(key):
        refuse_options(
            {
                "--cas": cas != 0,
                "--expiry": expiry != 0,
                "--durability": durability != _DEFAULT,
                "--raw": raw,
            }
        )
        database = database_of(bucket, key, **at.options)
        written = database.put(key, _design_of(data))
        if json:
            print(msgspec.json.encode({"key": key, "rev": written.get("rev")}).decode())
        return
    level: Durability = durability  # type: ignore[assignment]  # checked by the client
    with client_of(bucket, **at.options) as client:
        stored = client.upsert(
            key_of(key), _content_of(data, is_raw=raw), cas=cas, expiry=expiry, durability=level
        )
    if json:
        print_stored(key, stored)


def _data_of(key: str, value: str | None, file: Path | None) -> bytes:
    """Return the bytes that the arguments name."""
    if file is not None and value is not None:
        raise UsageError("give the value or --file, not both", code="bad_arguments")
    if file is None and value is not None and value != "-":
        if value.startswith("@"):
            file = Path(value[1:])
        elif is_design(key) and not value.lstrip().startswith("{"):
            file = Path(value)
        else:
            return value.encode(errors="surrogateescape")
    try:
        with sys.stdin.buffer if file is None else file.open("rb") as source:
            data = source.read(VALUE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", code="bad_file") from error
    if file is None and not data:
        raise UsageError(
            "there was no value on standard input; for an empty one give '' --raw",
            code="no_value",
        )
    if len(data) > VALUE_BYTES_MAX:
        raise UsageError(f"a value has at most {VALUE_BYTES_MAX} bytes", code="too_large")
    return data


def _design_of(data: bytes) -> dict[str, Any]:
    """Return the members of a design document, their values as they are written."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise UsageError("a design document is a JSON object", code="bad_design") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"a design document is JSON: {error}", code="bad_design") from error


def _content_of(data: bytes, *, is_raw: bool) -> Any:
    """Return what the client is to store: JSON as it is, or bytes.

    Raises:
        UsageError: `not_json`.
    """
    if is_raw:
        return data
    try:
        data.decode()
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"the value is no JSON ({error}); give --raw to store it as it is", code="not_json"
        ) from error
    return msgspec.Raw(data.strip())
