"""Finds the columns of documents from a sample: the option `inferSchema`.

Invariants:
1. The same documents give the same columns, whatever their order: types only widen, and columns
   are sorted by name.
2. The sample is the first documents of the first partitions; keys are spread over partitions by
   their hash, so this is a sample by chance. It is bounded in documents and bytes.
3. What was found is told on the error output, so that it can be pinned by `documentSchema`.

Elsewhere: how values become columns (`document_rows`).
Source: the rules by which Spark infers the schema of JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import msgspec

from millstream.client.columns import Columns, cut_columns
from millstream.errors import UsageError
from millstream.pipelines.change_stream.batch_plan import plan_batch
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.reading import pinned_chunks

__all__ = ["SAMPLE_BYTES_MAX", "inferred_members", "members_of"]

SAMPLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The sample ends with the document that exceeds this."""
_BIGINTS: Final = range(-(2**63), 2**63)
_decode: Final = msgspec.json.Decoder().decode

_Kind = str | dict[str, "_Kind"] | list["_Kind"]
"""`null`, or a type's name; the members of a struct; the only member of an array's list."""


def inferred_members(options: SourceOptions) -> str:
    """Return the members of a bucket's documents as DDL, and tell them on the error output.

    Raises:
        UsageError: `bad_schema`: there are no documents, or none is an object.
        UnavailableError, AccessError: the node cannot be asked.
    """
    members = members_of(_sample(options))
    sys.stderr.write(
        f"millstream: bucket {options.bucket!r}: inferred documentSchema: {members}\n"
    )
    return members


def _sample(options: SourceOptions) -> list[bytes]:
    """Return the first documents of the bucket."""
    found, size = list[bytes](), 0
    reads = plan_batch(options)
    for chunk in pinned_chunks(options, reads):
        columns = Columns()
        cut_columns(chunk, columns)
        for key, value in zip(columns.key, columns.value, strict=True):
            if value is None or not key.startswith(options.key_prefix) or key[:1] == "_":
                continue
            found.append(value)
            size += len(value)
            if len(found) >= options.sample_size or size > SAMPLE_BYTES_MAX:
                return found
    return found


def members_of(documents: Iterable[bytes]) -> str:
    """Return the members of documents as DDL; members that begin with `_` are left out.

    Raises:
        UsageError: `bad_schema`: none is an object with members.
    """
    found: dict[str, _Kind] = {}
    for text in documents:
        try:
            document = _decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        if type(document) is dict:
            own = {name: _kind_of(one) for name, one in document.items() if name[:1] != "_"}
            found = _both(found, own)
    if not found:
        raise UsageError(
            "option inferSchema: the sample has no JSON object with members. Name the columns by "
            "documentSchema",
            code="bad_schema",
        )
    return ", ".join(f"{_quoted(name)} {_ddl(found[name])}" for name in sorted(found))


def _kind_of(value: object) -> _Kind:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if value in _BIGINTS else "double"
    if isinstance(value, float):
        return "double"
    if isinstance(value, list):
        inner: _Kind = "null"
        for one in value:
            inner = _widened(inner, _kind_of(one))
        return [inner]
    if isinstance(value, dict):
        return {str(name): _kind_of(one) for name, one in value.items()}
    return "string"


def _widened(one: _Kind, other: _Kind) -> _Kind:
    """Return the type that holds the values of both."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return _both(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return [_widened(one[0], other[0])]
    if (one, other) in (("bigint", "double"), ("double", "bigint")):
        return "double"
    return "string"


def _both(one: dict[str, _Kind], other: dict[str, _Kind]) -> dict[str, _Kind]:
    """Return the members of two structs."""
    names = one.keys() | other.keys()
    return {name: _widened(one.get(name, "null"), other.get(name, "null")) for name in names}


def _ddl(kind: _Kind) -> str:
    """Return a type as DDL. What was only null, and objects without members, are read as text."""
    if isinstance(kind, list):
        return f"array<{_ddl(kind[0])}>"
    if isinstance(kind, dict):
        members = ", ".join(f"{_quoted(name)}: {_ddl(kind[name])}" for name in sorted(kind))
        return f"struct<{members}>" if kind else "string"
    return "string" if kind == "null" else kind


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else "`" + name.replace("`", "``") + "`"
