"""What a pipeline for an index needs before it starts: the design document, where it is.

Invariants:
1. A design document that does not compile, names an unknown Python function or is kept by the node
   is refused here, in less than a second, and not by a failing task.

Elsewhere: the cycle (`writer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from millstream.client.databases import DESIGN, Database
from millstream.client.http import HttpClient
from millstream.client.kv import Client
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.pipelines.change_stream.bucket_changes import scan
from millstream.pipelines.change_stream.control import open_client
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.index.mapping import MapSpec
from millstream.pipelines.index.nodes import hosts_of, http_at, index_addresses
from millstream.pipelines.index.shard import ANSWER_S, IndexAddress, IndexShard, IndexState
from millstream.views.aio.sandbox.mapping import open_mapper
from millstream.views.aio.sandbox.modules import load_modules as modules_of
from millstream.views.core.design.design_documents import DesignDocument, design_name, parse_design

__all__ = [
    "files_of_modules", "find_specs", "index_state_of", "offered_at", "offered_spec", "put_design",
]  # fmt: skip

_Value = TypeVar("_Value")


def files_of_modules(modules: Sequence[str]) -> list[Path]:
    """Import the modules that register Python functions; return the files Spark must ship.

    A module that lies in the working directory is not installed: executors get its file.

    Raises:
        UsageError: `bad_module`.
    """
    paths = [Path(module.__file__ or "") for module in modules_of(modules)]
    return [path for path in paths if path.parent == Path.cwd() and path.suffix == ".py"]


def find_specs(
    source: SourceOptions,
    designs: Sequence[str] = (),
    modules: Sequence[str] = (),
    *,
    may_lack: bool = False,
) -> list[MapSpec]:
    """Return what is to be known of the indexes that a pipeline is to keep.

    Args:
        source: how the bucket is read.
        designs: names, or JSON files that are put into the bucket first; none: all those in the
            bucket that say `"engine": "spark"`.
        modules: that register Python functions.
        may_lack: return nothing where the bucket has none.

    Raises:
        ConditionError: `missing`; `not_spark_engine`.
        UsageError: `invalid_design_doc`, `compilation_error`, `unknown_function`, `bad_file`.
        UnavailableError: the node does not answer; `no_http`.
    """
    with open_client(source) as client:

        def database_of(name: str) -> Database:
            return Database(_http(client, source, name), source.bucket)

        names = [put_design(database_of, name) for name in designs]
        source = replace(source, hosts=hosts_of(source.hosts, client.cluster_map))
        if not names:
            names = _spark_designs(client)
            if not names and not may_lack:
                raise ConditionError(
                    f'no design document of bucket {source.bucket!r} says "engine": "spark": '
                    "name one, or give a file, with --ddoc",
                    code="missing",
                )
        return [_spec(client, database_of(name), source, name, tuple(modules)) for name in names]


def offered_spec(
    client: Client, source: SourceOptions, name: str, modules: tuple[str, ...]
) -> MapSpec:
    """Return the specification of an index whose build is offered, whatever its engine.

    Raises:
        ConditionError: `missing`.
        UsageError: `unknown_function`, and as `find_specs`.
    """
    database = Database(_http(client, source, name), source.bucket)
    return _spec(client, database, source, name, modules, engines=("node", "spark"))


def offered_at(client: Client, source: SourceOptions, also: Sequence[str]) -> list[IndexAddress]:
    """Return the nodes that may offer builds, without a design document's name."""
    return index_addresses(_address(client, source, ""), client.cluster_map, also)


def put_design(database_of: Callable[[str], Database], design: str) -> str:
    """Return the name of a design document; one given as a file is put as one for Spark.

    Args:
        database_of: returns the bucket at the node that has a design document.
        design: name or file.

    Raises:
        UsageError: `bad_file`, `invalid_design_doc`, `compilation_error`.
    """
    path = Path(design)
    if not design.endswith(".json") and not path.is_file():
        return design_name(design)
    try:
        content: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"{design}: no design document can be read: {error}"
        raise UsageError(message, code="bad_file") from error
    content["engine"] = "spark"
    parsed = parse_design(content, "" if "_id" in content else path.stem)
    open_mapper(parsed).close()
    database = database_of(parsed.name)
    try:
        there = parse_design(database.get(DESIGN + parsed.name), parsed.name)
    except (ConditionError, UsageError):
        there = None
    if there != parsed:
        database.put(DESIGN + parsed.name, content)
    return parsed.name


def index_state_of(source: SourceOptions, design: str) -> IndexState:
    """Return where the indexes of a design document stand, those of all nodes as one.

    Of each partition the position at the node that answers for it; rows are those of all nodes.
    Nodes without views, and those that are away, are left out with their partitions.

    Raises:
        UnavailableError: no node says where its index stands.
        ConditionError: `missing`: no such design document.
    """
    with open_client(source) as client:
        map_ = client.cluster_map
        addresses = index_addresses(_address(client, source, design), map_)
    states: list[IndexState] = []
    failure: UnavailableError | None = None
    for address in addresses:
        try:
            states.append(IndexShard(address).state())
        except UnavailableError as error:
            failure = error
    if failure is not None and not states:
        raise failure
    one = states[0]
    if len(addresses) == 1:
        return one
    return msgspec.structs.replace(
        one,
        is_empty=all(each.is_empty for each in states),
        rows=[sum(rows) for rows in zip(*(each.rows for each in states), strict=True)],
        states={p: state for each in states for p, state in _active(each, each.states)},
        positions={p: place for each in states for p, place in _active(each, each.positions)},
    )


def _active(state: IndexState, values: Mapping[int, _Value]) -> list[tuple[int, _Value]]:
    return [(p, value) for p, value in values.items() if state.states.get(p) == "active"]


def _http(client: Client, source: SourceOptions, design: str) -> HttpClient:
    """Return the node that has a design document."""
    host, port = http_at(client.cluster_map, client.partition_of(DESIGN + design))
    return HttpClient(
        host, port, user=source.user, password=source.password or "", tls=source.tls(),
        timeout_s=ANSWER_S,
    )  # fmt: skip


def _address(client: Client, source: SourceOptions, design: str) -> IndexAddress:
    host, port = http_at(client.cluster_map, client.partition_of(DESIGN + design))
    return IndexAddress(
        host=host, port=port, bucket=source.bucket, design=design,
        user=source.user, password=source.password, tls_authority=source.tls_authority,
    )  # fmt: skip


def _spec(
    client: Client,
    database: Database,
    source: SourceOptions,
    name: str,
    modules: tuple[str, ...],
    engines: Sequence[str] = ("spark",),
) -> MapSpec:
    try:
        content = database.get(DESIGN + name)
    except ConditionError as error:
        raise ConditionError(
            f"bucket {source.bucket!r} has no design document {name!r}: put it with `millstream "
            f"put {source.bucket} _design/{name} FILE`, or give its file with --ddoc",
            code="missing",
        ) from error
    design = _checked(parse_design(content, name), engines)
    return MapSpec(
        source=source,
        address=_address(client, source, name),
        bucket_uuid=client.cluster_map.bucket_uuid,
        design=msgspec.json.encode(design.as_json()),
        signature=design.signature,
        fence=0,
        is_first=False,
        modules=modules,
    )


def _checked(design: DesignDocument, engines: Sequence[str]) -> DesignDocument:
    if design.engine not in engines:
        raise ConditionError(
            f"design document {design.name!r} is kept by the node itself: write "
            '"engine": "spark" into it for a pipeline to keep it',
            code="not_spark_engine",
        )
    if not design.views:
        raise UsageError(f"design document {design.name!r} has no views", code="no_views")
    open_mapper(design).close()
    return design


def _spark_designs(client: Client) -> list[str]:
    found = scan(client, prefix=DESIGN.encode())
    return sorted(
        key.decode().removeprefix(DESIGN)
        for key, value in found.items()
        if msgspec.json.decode(value, type=dict[str, Any]).get("engine") == "spark"
    )
