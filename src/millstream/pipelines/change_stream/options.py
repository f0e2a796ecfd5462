"""The options of `format("millstream")`, read from the texts that Spark hands over.

Invariants:
1. An option that is not known, or whose value cannot be used, is an error that lists what is
   valid; nothing is ignored.
2. Password and certificate authority are read where the options are, on the driver; the password
   is never shown.

Elsewhere: what the options mean to a plan (`planner`), to a read (`reading`).
"""

from __future__ import annotations

import json
import math
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from millstream.client.connection import PORT_DEFAULT
from millstream.errors import UsageError
from millstream.model.addresses import parse_address
from millstream.model.limits import PARTITIONS_MAX, UINT64_MAX
from millstream.model.partitions import key_from_text
from millstream.pipelines.change_stream.offsets import Offset, offset_from_json
from millstream.pipelines.change_stream.patience import RECONNECT_S_DEFAULT
from millstream.upr.core.selecting import SELECTOR_BYTES_MAX
from millstream.views.core.mango.stored import stored_condition

__all__ = [
    "CONNECTION_OPTIONS",
    "OPTIONS",
    "Edge",
    "SourceOptions",
    "parse_options",
    "unknown_option",
]

POLL_MS_MAX: Final = 60_000
TASKS_MAX: Final = 4_096
SAMPLE_DOCUMENTS_MAX: Final = 1_000_000

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}

Edge = Literal["earliest", "latest"] | Offset


class _Option(NamedTuple):
    name: str
    meaning: str
    default: str = ""


OPTIONS: Final = (
    _Option("hosts", "HOST:PORT of a node's kv port, or several with commas", "127.0.0.1:11210"),
    _Option("bucket", "name of the bucket; must be given"),
    _Option("user", "user name; environment MILLSTREAM_USER"),
    _Option("passwordFile", "file on the driver whose first line is the password"),
    _Option("password", "the password itself; better passwordFile, or MILLSTREAM_PASSWORD"),
    _Option("tlsCa", "PEM file on the driver: TLS to nodes whose certificates it has issued"),
    _Option(
        "reconnectTimeout",
        "how long nodes that do not answer are waited for: 0, forever, or as 90s, 10m, 2h",
        f"{RECONNECT_S_DEFAULT:.0f}s",
    ),
    _Option("startingOffsets", "earliest, latest, or an offset as JSON", "earliest"),
    _Option(
        "startingTimestamp",
        "begin at the first change since then: 2026-01-31T12:00:00Z, or Unix milliseconds",
    ),
    _Option("endingOffsets", "batch reads only: latest, or an offset as JSON", "latest"),
    _Option("partitions", "partitions to read, such as 0-15,40; default all"),
    _Option("numPartitions", "Spark tasks for one batch; default the driver's processors"),
    _Option("maxRowsPerBatch", "streams only: most changes in one batch; default all"),
    _Option(
        "maxBytesPerBatch",
        "streams only: most bytes of changes in one batch, or one larger change; default all",
    ),
    _Option(
        "minRowsPerBatch",
        "streams only: wait until so many changes are there, or for maxTriggerDelay; default 1",
    ),
    _Option("maxTriggerDelay", "streams only: longest wait for minRowsPerBatch", "15m"),
    _Option("pollMs", "streams only: how long an idle query waits for a change", "200"),
    _Option("noValue", "true: the column value is null and values are not sent", "false"),
    _Option("meta", "true: the column meta holds lineage and sidecar of each change", "false"),
    _Option("pushdown", "only false: use selector, partitions and keyPrefix", "false"),
    _Option("keyPrefix", "only keys whose text form begins so"),
    _Option("selector", "batch reads only: a Mango selector; nodes leave out other documents"),
    _Option(
        "rollback",
        "streams only: fail, or rows for a sink that repairs by rollback and sweep rows",
        "fail",
    ),
    _Option(
        "tombstones",
        "batch reads only: whether deletions are rows; default only with startingOffsets",
    ),
    _Option(
        "documentSchema",
        "members of documents that are columns, as DDL: carrier string, dep_delay int; default "
        "the rows are changes with their value as bytes",
    ),
    _Option("inferSchema", "batch reads only: true: find documentSchema from a sample", "false"),
    _Option("sampleSize", "how many documents inferSchema looks at", "1000"),
    _Option(
        "includeMeta",
        "with documentSchema: whether a column _meta tells of the change; streams need it",
        "false",
    ),
    _Option("durableOnly", "true: read no change that a stop of a machine may undo", "false"),
)
CONNECTION_OPTIONS: Final = (
    "hosts", "bucket", "user", "passwordFile", "password", "tlsCa", "reconnectTimeout",
)  # fmt: skip
"""The options that say how to connect, which sinks and the other formats take too."""
_NO_TABLES: Final = (
    "Spark does not pass the options of CREATE TABLE to sources in Python: write CREATE TEMPORARY "
    "VIEW ... USING millstream OPTIONS (...) instead"
)
_NAMES: Final = {option.name.lower(): option.name for option in OPTIONS}
_DEFAULTS: Final = {option.name: option.default for option in OPTIONS}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Checked options; travels to the executors with the reader, password included."""

    hosts: str
    bucket: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_authority: str = ""
    reconnect_s: float = RECONNECT_S_DEFAULT
    """How long nodes that do not answer are waited for; `math.inf` for no end."""
    starting_offsets: Edge = "earliest"
    starting_ns: int | None = None
    """Unix time in nanoseconds of the first change (option startingTimestamp)."""
    ending_offsets: Edge = "latest"
    partition_ids: tuple[int, ...] | None = None
    task_count: int = 1
    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    trigger_delay_s: float = 900.0
    """How long a stream waits for `rows_min` changes."""
    poll_ms: int = 200
    has_values: bool = True
    has_meta: bool = False
    key_prefix: str = ""
    selector: str = ""
    """Text of a Mango selector that documents of a batch read match; empty: all."""
    repairs: bool = False
    """Whether the sink repairs what a rollback row tells it (option rollback)."""
    is_durable_only: bool = False
    document_schema: str = ""
    """The members of documents that are columns, as DDL; empty for plain rows."""
    infers_schema: bool = False
    """Whether `document_schema` is found from a sample."""
    sample_size: int = 1000
    """How many documents that sample has."""
    includes_meta: bool = False
    """Whether typed rows have `_meta`."""
    has_tombstones: bool = True
    """Whether deletions are rows of a batch read; of a stream they always are."""

    @property
    def is_typed(self) -> bool:
        """Whether rows have the members of documents as columns."""
        return bool(self.document_schema) or self.infers_schema

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections; None for plain ones."""
        return (
            ssl.create_default_context(cadata=self.tls_authority) if self.tls_authority else None
        )


def parse_options(
    given: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> SourceOptions:
    """Check the options of a source.

    Args:
        given: as Spark passes them; names in any case.
        environ: where MILLSTREAM_USER and MILLSTREAM_PASSWORD are looked up.

    Raises:
        UsageError: `bad_option`, `unknown_option`, `bad_offset`.
    """
    environ = os.environ if environ is None else environ
    if any(name.lower().startswith("option.") for name in given):
        raise UsageError(_NO_TABLES, code="bad_option")
    unknown = [name for name in given if name.lower() not in _NAMES]
    if unknown:
        meanings = {option.name: option.meaning for option in OPTIONS}
        raise unknown_option(unknown, "the millstream source", meanings)
    values = _DEFAULTS | {_NAMES[name.lower()]: value for name, value in given.items()}
    if not values["bucket"]:
        told = f"name the bucket to read: .option('bucket', NAME). {_NO_TABLES}"
        raise _bad("bucket", "", told)
    _read(values, "pushdown", _no_pushdown)
    _check_typed(values)
    user = values["user"] or environ.get("MILLSTREAM_USER") or None
    return SourceOptions(
        hosts=_read(values, "hosts", _hosts),
        bucket=values["bucket"],
        user=user,
        password=_password(values, environ) if user else None,
        tls_authority=_read(values, "tlsCa", _authority),
        reconnect_s=_read(values, "reconnectTimeout", _seconds),
        starting_offsets=_read(values, "startingOffsets", _edge),
        starting_ns=_starting_ns(values),
        ending_offsets=_read(values, "endingOffsets", _end),
        partition_ids=_read(values, "partitions", _partition_ids),
        task_count=_read(values, "numPartitions", _number(1, TASKS_MAX)) or _processors(),
        rows_max=_read(values, "maxRowsPerBatch", _number(1, 2**62)),
        bytes_max=_read(values, "maxBytesPerBatch", _number(1, 2**62)),
        rows_min=_read(values, "minRowsPerBatch", _number(1, 2**62)),
        trigger_delay_s=_read(values, "maxTriggerDelay", _seconds),
        poll_ms=_read(values, "pollMs", _number(0, POLL_MS_MAX)) or 0,
        has_values=not _read(values, "noValue", _flag),
        has_meta=_read(values, "meta", _flag),
        key_prefix=_read(values, "keyPrefix", _key_prefix),
        selector=_read(values, "selector", _selector),
        repairs=_read(values, "rollback", _repairs),
        is_durable_only=_read(values, "durableOnly", _flag),
        has_tombstones=_has_tombstones(values),
        document_schema=values["documentSchema"].strip().rstrip(","),
        infers_schema=_read(values, "inferSchema", _flag),
        sample_size=_read(values, "sampleSize", _number(1, SAMPLE_DOCUMENTS_MAX)),
        includes_meta=_read(values, "includeMeta", _flag),
    )


def _check_typed(values: Mapping[str, str]) -> None:
    """Refuse options that typed rows have no use for, and those of typed rows for plain ones."""
    infers = _read(values, "inferSchema", _flag)
    if infers and values["documentSchema"]:
        raise _bad("inferSchema", "true", "documentSchema names the columns already")
    if not infers and not values["documentSchema"]:
        if _read(values, "includeMeta", _flag):
            raise _bad("includeMeta", "true", "plain rows have all of it as columns")
        return
    refused = {
        "noValue": "the columns come from the values",
        "meta": "typed rows have no lineages",
        "rollback": "sinks that repair take plain rows; `changes` gives typed documents to them",
    }
    for name, why in refused.items():
        if values[name].strip().lower() not in ("", _DEFAULTS[name]):
            raise _bad(name, values[name], f"not with documentSchema or inferSchema: {why}")


def unknown_option(unknown: Iterable[str], whose: str, meanings: Mapping[str, str]) -> UsageError:
    """Return the error of options that are not known: what may be meant, and what there is."""
    by_text = {name.lower(): name for name in meanings}
    told = []
    for name in sorted(unknown):
        near = get_close_matches(name.lower(), by_text, 1)
        told.append(f"{name} (did you mean {by_text[near[0]]}?)" if near else name)
    return UsageError(
        f"unknown option {', '.join(told)} of {whose}. Options are:\n"
        + "\n".join(f"  {name}: {meaning}" for name, meaning in meanings.items()),
        code="unknown_option",
    )


def _read(values: Mapping[str, str], name: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(values[name].strip())
    except ValueError as error:
        raise _bad(name, values[name], str(error)) from error


def _bad(name: str, value: str, reason: str) -> UsageError:
    shown = f" {value!r:.80}" if value else ""
    return UsageError(f"option {name}{shown}: {reason}", code="bad_option")


def _hosts(text: str) -> str:
    for address in text.split(","):
        try:
            parse_address(address.strip(), default_port=PORT_DEFAULT)
        except UsageError as error:
            raise ValueError(str(error)) from error
    return text


def _edge(text: str) -> Edge:
    if text.lower() in ("earliest", "latest"):
        return "earliest" if text.lower() == "earliest" else "latest"
    try:
        form = json.loads(text)
    except ValueError as error:
        raise ValueError("write earliest, latest, or an offset as JSON") from error
    try:
        return offset_from_json(form)
    except UsageError as error:
        raise ValueError(str(error)) from error


def _end(text: str) -> Edge:
    if text.lower() == "earliest":
        raise ValueError("a range cannot end at earliest; write latest, or an offset as JSON")
    return _edge(text)


def _partition_ids(text: str) -> tuple[int, ...] | None:
    if not text:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError("write numbers and ranges, such as 0-15,40")
        span = range(int(first), int(last if dash else first) + 1)
        if not span or span[-1] >= PARTITIONS_MAX:
            raise ValueError(f"partitions are numbered from 0 to {PARTITIONS_MAX - 1}")
        found.update(span)
    return tuple(sorted(found))


def _number(least: int, most: int) -> Callable[[str], int | None]:
    def parse(text: str) -> int | None:
        if not text:
            return None
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"write a whole number from {least} to {most}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    if text.lower() == "forever":
        return math.inf
    found = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|min|h|d)?", text.lower())
    if not found or not (found[2] or int(found[1]) == 0):
        raise ValueError("write 0, forever, or a number with its unit, such as 90s, 10m or 2h")
    return int(found[1]) * _UNITS[found[2] or "s"]


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _no_pushdown(text: str) -> None:
    if _flag(text):
        raise ValueError(
            "PySpark keeps the filters of one query for later queries of the same DataFrame, and "
            "these would lack rows. Leave the option out: where() works without it. To read less, "
            "use selector, partitions, keyPrefix, startingOffsets and endingOffsets"
        )


def _has_tombstones(values: Mapping[str, str]) -> bool:
    if values["tombstones"]:
        return bool(_read(values, "tombstones", _flag))
    is_whole = values["startingOffsets"].strip().lower() == "earliest"
    return not is_whole or bool(values["startingTimestamp"])


def _starting_ns(values: Mapping[str, str]) -> int | None:
    if values["startingTimestamp"] and values["startingOffsets"] != _DEFAULTS["startingOffsets"]:
        raise _bad("startingTimestamp", values["startingTimestamp"], "not with startingOffsets")
    found: int | None = _read(values, "startingTimestamp", _time_ns)
    return found


def _time_ns(text: str) -> int | None:
    """Return Unix nanoseconds; a time without a zone is in UTC."""
    if not text:
        return None
    if text.isdecimal() and int(text) < UINT64_MAX // 10**6:
        return int(text) * 10**6
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        if since.days < 0:
            raise ValueError("before 1970")
    except (ValueError, OverflowError) as error:
        raise ValueError("write 2026-01-31T12:00:00Z, or Unix milliseconds") from error
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _repairs(text: str) -> bool:
    if text.lower() not in ("rows", "fail"):
        raise ValueError("write rows or fail")
    return text.lower() == "rows"


def _key_prefix(text: str) -> str:
    try:
        key_from_text(text + "0" if text.startswith("\\x") and len(text) % 2 else text)
    except ValueError as error:
        raise ValueError(f"not a prefix of a key: {error}") from error
    return text


def _selector(text: str) -> str:
    size = len(text.encode())
    if size > SELECTOR_BYTES_MAX:
        raise ValueError(f"{size} bytes, at most {SELECTOR_BYTES_MAX} are allowed")
    try:
        if text:
            stored_condition(text.encode())
    except UsageError as error:
        raise ValueError(f"no Mango selector: {error}") from error
    return text


def _authority(name: str) -> str:
    if not name:
        return ""
    try:
        text = Path(name).read_text().strip()
        if not text:
            raise ValueError("the file is empty")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(f"no certificate authority on the driver: {error}") from error
    return text


def _processors() -> int:
    return (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def _password(values: Mapping[str, str], environ: Mapping[str, str]) -> str:
    if values["password"]:
        return values["password"]
    name = values["passwordFile"]
    if name:
        try:
            return Path(name).read_text().partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise _bad("passwordFile", name, f"cannot be read on the driver: {error}") from error
    found = environ.get("MILLSTREAM_PASSWORD")
    if found is None:
        raise UsageError(
            "option user is given but no password: give passwordFile, or set MILLSTREAM_PASSWORD "
            "where the driver starts",
            code="bad_option",
        )
    return found
