"""The options of `format("millstream")` where it writes, read from the texts that Spark passes.

Invariants:
1. An option that is not known, cannot be used, or means nothing together with the others is an
   error that says what is valid; nothing is ignored but what Spark itself adds.
2. Where and as whom to connect is read by `pipelines.change_stream.connection_options`, on the
   driver.

Elsewhere: rows into documents (`sinks.rows`), writing them (`sinks.writing`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

from millstream.client.documents import Durability
from millstream.errors import UsageError
from millstream.pipelines.change_stream.options import (
    CONNECTION_OPTIONS,
    OPTIONS,
    SourceOptions,
    parse_options,
    unknown_option,
)
from millstream.pipelines.sinks.companions import COMPANION_PREFIX

__all__ = ["SINK_OPTIONS", "SINK_PREFIX", "SinkOptions", "parse_sink_options"]

SINK_ID_CHARACTERS_MAX: Final = 64
SINK_PREFIX: Final = COMPANION_PREFIX + "transaction/"
"""What the keys of transactional sinks begin with in the bucket that they write."""
_SINK_ID: Final = re.compile(r"[A-Za-z0-9._-]+")
_OF_SPARK: Final = frozenset(("checkpointlocation", "queryname"))
"""Options of every streaming query, which Spark hands to the sink, too."""

OnConflict = Literal["fail", "skip"]
Scope = Literal["any", "batch", "stream"]


class _Option(NamedTuple):
    name: str
    scope: Scope
    meaning: str
    default: str


SINK_OPTIONS: Final = (
    _Option("idField", "any", "column that is the key; each row is stored as JSON", ""),
    _Option(
        "versionField",
        "any",
        "with idField: column of whole numbers; a document that has a higher one stays",
        "",
    ),
    _Option(
        "durability",
        "any",
        "when a write is acknowledged: memory, majority, majority_and_active_persisted or "
        "persisted; at the end of a task all is persisted on a majority in any case",
        "memory",
    ),
    _Option(
        "truncate", "batch", "true, mode overwrite: what was there before is deleted", "false"
    ),
    _Option(
        "cas", "batch", "true, mode overwrite: column cas has the CAS that documents have", "false"
    ),
    _Option(
        "onConflict", "batch", "mode append, or with cas: fail, or skip a row in conflict", "fail"
    ),
    _Option("transactional", "stream", "true: a micro-batch is written whole or not", "false"),
    _Option("sinkId", "stream", "transactional: name of the sink, one for each query", ""),
)
_NAMES: Final = {option.name.lower(): option for option in SINK_OPTIONS}


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """Checked options; travels to the executors with the writer, password included."""

    connection: SourceOptions
    id_field: str = ""
    version_field: str = ""
    is_append: bool = False
    is_truncating: bool = False
    with_cas: bool = False
    skips_conflicts: bool = False
    durability: Durability = "memory"
    sink_id: str = ""
    """Name of a transactional sink; empty for others."""


def parse_sink_options(
    given: Mapping[str, str],
    *,
    is_stream: bool,
    overwrite: bool,
    environ: Mapping[str, str] | None = None,
) -> SinkOptions:
    """Check the options of a sink.

    Args:
        given: as Spark passes them; names in any case.
        is_stream: whether a streaming query writes.
        overwrite: mode overwrite; of a stream, output mode complete.
        environ: where MILLSTREAM_USER and MILLSTREAM_PASSWORD are looked up.

    Raises:
        UsageError: `bad_option`, `unknown_option`.
    """
    connection, values = _shared_out(given, is_stream=is_stream)
    if not connection.get("bucket"):
        raise _bad("bucket", "name the bucket to write: .option('bucket', NAME)")
    with_cas, truncating = _flag(values, "cas"), _flag(values, "truncate")
    is_append = not is_stream and not overwrite
    if (with_cas or truncating) and is_append:
        name = "cas" if with_cas else "truncate"
        raise _bad(name, "only with .mode('overwrite'); append inserts what is not there yet")
    if with_cas and truncating:
        raise _bad("truncate", "not together with cas")
    version_field = _value(values, "versionField")
    if version_field and (not _value(values, "idField") or is_append or with_cas or truncating):
        raise _bad(
            "versionField",
            "only with idField, on a stream or in mode overwrite, and without cas and truncate",
        )
    if version_field.startswith("_"):
        raise _bad(
            "versionField", f"a column {version_field} is no member of the documents: rename it"
        )
    on_conflict = _choice(values, "onConflict", get_args(OnConflict))
    if "onConflict" in values and not (is_append or with_cas):
        raise _bad("onConflict", "nothing can conflict: only with .mode('append'), or with cas")
    sink_id = _sink_id(values)
    if sink_id and "durability" in values:
        raise _bad("durability", "a transactional sink is persisted on a majority; leave it out")
    if sink_id and version_field:
        raise _bad("versionField", "a transactional sink writes each batch once; leave it out")
    return SinkOptions(
        version_field=version_field,
        connection=parse_options(connection, environ),
        id_field=_value(values, "idField"),
        is_append=is_append,
        is_truncating=truncating,
        with_cas=with_cas,
        skips_conflicts=on_conflict == "skip",
        durability=_choice(values, "durability", get_args(Durability)),
        sink_id=sink_id,
    )


def _shared_out(
    given: Mapping[str, str], *, is_stream: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the connection and those of the sink, by their names."""
    of_connection = {name.lower(): name for name in CONNECTION_OPTIONS}
    connection: dict[str, str] = {}
    values: dict[str, str] = {}
    for written, value in given.items():
        name = written.lower()
        if name in of_connection:
            connection[of_connection[name]] = value
        elif name in _NAMES:
            option = _NAMES[name]
            if option.scope != "any" and is_stream != (option.scope == "stream"):
                raise _bad(option.name, f"only where a {option.scope} is written")
            values[option.name] = value.strip()
        elif not (is_stream and name in _OF_SPARK):
            meanings = {option.name: option.meaning for option in OPTIONS}
            meanings = {option: meanings[option] for option in CONNECTION_OPTIONS}
            meanings |= {option.name: option.meaning for option in SINK_OPTIONS}
            raise unknown_option([written], "the millstream sink", meanings)
    return connection, values


def _sink_id(values: Mapping[str, str]) -> str:
    found = _value(values, "sinkId")
    if not _flag(values, "transactional"):
        if found:
            raise _bad("sinkId", "only with transactional=true")
        return ""
    if len(found) > SINK_ID_CHARACTERS_MAX or not _SINK_ID.fullmatch(found):
        raise _bad(
            "sinkId",
            f"a transactional sink needs a name of its own: 1 to {SINK_ID_CHARACTERS_MAX} "
            "letters, digits, dots, - and _",
        )
    return found


def _value(values: Mapping[str, str], name: str) -> str:
    return values.get(name, _NAMES[name.lower()].default)


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = _value(values, name).lower()
    if text not in ("true", "false"):
        raise _bad(name, "write true or false")
    return text == "true"


def _choice(values: Mapping[str, str], name: str, choices: tuple[Any, ...]) -> Any:
    text = _value(values, name)
    if text not in choices:
        raise _bad(name, f"one of {', '.join(choices)}")
    return text


def _bad(name: str, reason: str) -> UsageError:
    return UsageError(f"option {name}: {reason}", code="bad_option")
