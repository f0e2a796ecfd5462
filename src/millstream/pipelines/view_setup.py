"""What a run of the views pipeline needs before Spark starts: design document and store bucket.

Invariants:
1. A design document that does not compile, or names an unknown Python function, is refused here,
   in less than a second, and not by a failing task.
"""

from __future__ import annotations

import base64
import json
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final

import msgspec

from millstream.client.kv import Client
from millstream.errors import AccessError, ConditionError, UnavailableError, UsageError
from millstream.pipelines.bucket_changes import Endpoint, scan
from millstream.pipelines.view_store import STORE_SUFFIX
from millstream.views.aio.mapping import open_mapper
from millstream.views.aio.modules import load_modules as modules_of
from millstream.views.core.design import (
    DESIGN_PREFIX,
    DesignDocument,
    design_name,
    parse_design,
)
from millstream.views.core.reduce import BUILTIN_REDUCES

__all__ = ["check_functions", "ensure_store", "find_design", "load_modules"]

STORE_PARTITIONS: Final = 16
_HTTP_TIMEOUT_S: Final = 10.0
_EXISTS: Final = (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
_ANSWER_BYTES_MAX: Final = 64 * 1024


def find_design(endpoint: Endpoint, bucket: str, ddoc: str | None) -> DesignDocument:
    """Return the design document to run, checked for what a pipeline can keep.

    Args:
        endpoint: of a node.
        bucket: where design documents are looked up.
        ddoc: a JSON file, or a name; None for the only one the bucket has.

    Raises:
        UsageError: `invalid_design_doc`, `bad_file`, `which_design`, `not_in_pipelines`.
        ConditionError: `missing`.
    """
    if ddoc is not None and (ddoc.endswith(".json") or Path(ddoc).is_file()):
        return _checked(_design_in(Path(ddoc)))
    with endpoint.client(bucket) as client:
        name = _only_design(endpoint, client) if ddoc is None else design_name(ddoc)
        found = client.get(DESIGN_PREFIX + name)
    if found is None:
        raise ConditionError(
            f"bucket {bucket!r} has no design document {name!r}: put it with `millstream put "
            f"{bucket} {DESIGN_PREFIX}{name} FILE`, or give its file with --ddoc",
            code="missing",
        )
    return _checked(parse_design(found.value, name))


def _checked(design: DesignDocument) -> DesignDocument:
    refused = f"design document {design.name!r} cannot run as a Spark pipeline:"
    if not design.views:
        raise UsageError(f"{refused} it has no views", code="not_in_pipelines")
    if design.local_seq or design.include_design:
        message = f"{refused} there are neither `_local_seq` nor design documents in it"
        raise UsageError(message, code="not_in_pipelines")
    for view in design.views:
        if view.collation != "unicode" or (
            view.has_builtin_reduce and view.reduce not in BUILTIN_REDUCES
        ):
            raise UsageError(
                f"{refused} view {view.name!r} has raw collation or the reduce {view.reduce!r}; "
                f"there are {', '.join(BUILTIN_REDUCES)} and own functions. The bucket's own "
                "indexes can do it",
                code="not_in_pipelines",
            )
    return design


def _design_in(path: Path) -> DesignDocument:
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", code="bad_file") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}", code="invalid_design_doc") from error
    has_id = isinstance(document, dict) and "_id" in document
    return parse_design(document, "" if has_id else path.stem)


def _only_design(endpoint: Endpoint, client: Client) -> str:
    keys = scan(endpoint, client, prefix=DESIGN_PREFIX.encode(), with_values=False)
    names = sorted(key.decode().removeprefix(DESIGN_PREFIX) for key in keys)
    if len(names) == 1:
        return names[0]
    has = f"has the design documents {', '.join(names)}" if names else "has no design document"
    raise UsageError(
        f"bucket {client.bucket!r} {has}: say which with --ddoc NAME or FILE", code="which_design"
    )


def load_modules(modules: tuple[str, ...]) -> list[Path]:
    """Import the modules that register Python functions; return the files Spark must ship.

    A module that lies in the working directory is not installed: executors get its file.

    Raises:
        UsageError: `bad_module`.
    """
    paths = [Path(module.__file__ or "") for module in modules_of(modules)]
    return [path for path in paths if path.parent == Path.cwd() and path.suffix == ".py"]


def check_functions(design: DesignDocument) -> None:
    """Compile, or look up, every function of a design document.

    Raises:
        UsageError: `compilation_error`, `unknown_function`.
    """
    open_mapper(design).close()


def ensure_store(endpoint: Endpoint, bucket: str) -> None:
    """Create the bucket `BUCKET-views` if it is not there.

    Raises:
        AccessError: only an administrator creates buckets.
        UnavailableError: the node's HTTP port is closed or does not answer.
    """
    name = bucket + STORE_SUFFIX
    try:
        endpoint.client(name).close()
    except AccessError as error:
        if error.code != "unknown_bucket":
            raise
        with endpoint.client(bucket) as client:
            host = client.cluster_map.here.host
            port = client.cluster_map.services.get("mgmt", 0)
        _create(endpoint, host, port, name)


def _create(endpoint: Endpoint, host: str, port: int, name: str) -> None:
    content = json.dumps({"name": name, "partitions": STORE_PARTITIONS})
    headers = {"content-type": "application/json"}
    if endpoint.user is not None:
        pair = f"{endpoint.user}:{endpoint.password}".encode()
        headers["authorization"] = "Basic " + base64.b64encode(pair).decode()
    connection = (
        HTTPConnection(host, port, timeout=_HTTP_TIMEOUT_S)
        if endpoint.tls is None
        else HTTPSConnection(host, port, timeout=_HTTP_TIMEOUT_S, context=endpoint.tls)
    )
    try:
        connection.request("POST", "/_millstream/buckets", content, headers)
        response = connection.getresponse()
        reason = response.read(_ANSWER_BYTES_MAX).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        raise UnavailableError(
            f"bucket {name!r} is missing and cannot be created over HTTP at {host}:{port}: {error}"
        ) from error
    finally:
        connection.close()
    refused = f"bucket {name!r} cannot be created: {reason}"
    if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise AccessError(f"{refused}; let an administrator create it")
    # A conflict: somebody else was quicker.
    if response.status not in (HTTPStatus.CREATED, HTTPStatus.OK, *_EXISTS):
        raise UnavailableError(refused)
