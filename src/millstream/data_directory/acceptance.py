"""Continuing with what is left of a data directory: `millstream check DIR --accept WHAT`.

An error about a missing or altered file names WHAT: a path below the directory. Nothing is
deleted: unusable files are set aside beside their place, as `log.lost-1`.

| WHAT | what is done |
| --- | --- |
| `node.toml` | written again from the inventory |
| `inventory.toml` | written again from the files found |
| `cluster.toml` | written again from the inventory |
| `users.json` | accepted as it is, if readable; else the node has no users any more |
| `coord` | set aside: the node begins coordination anew, with a new identity |
| `buckets/UUID` | the bucket is given up |
| `buckets/UUID/bucket.toml` | written again from the inventory; readable options are kept |
| `buckets/UUID/map.json` | set aside: the bucket is on this node alone |
| `buckets/UUID/local` | accepted as it is, if readable; else set aside |
| `buckets/UUID/log` | cut at the first damage; the rest is set aside |

`records.json` of a managed cluster is not accepted: the node takes the map of the cluster again.

Invariants:
1. If the command is interrupted, it can be run again.
2. The inventory is changed last.

Elsewhere: finding missing files (`data_directory.ownership`, `data_directory.bucket_files`,
`kv.aio`, `storage`).
"""

from __future__ import annotations

import re
import shutil
import tomllib
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from millstream.access.users import accept_users
from millstream.cluster.core.identity import Identity
from millstream.data_directory.bucket_files import (
    BUCKET_FILE,
    BucketRecord,
    record_of,
    store_record,
)
from millstream.data_directory.cluster_file import (
    CLUSTER_FILE,
    UNKNOWN_NAME,
    read_identity,
    write_identity,
)
from millstream.data_directory.inventory import (
    INVENTORY_FILE,
    LOCAL,
    LOG,
    MAP,
    RECORDS,
    Contents,
    Entry,
    Inventory,
)
from millstream.data_directory.log_salvage import salvage_log
from millstream.data_directory.map_file import MAP_FILE, RECORDS_FILE
from millstream.data_directory.ownership import (
    NODE_FILE,
    holds_a_node,
    node_file_content,
    read_node_file,
)
from millstream.data_directory.small_files import utc_now
from millstream.errors import CorruptionError, MillstreamError, UsageError
from millstream.kv.aio.documents.local_store import accept_local
from millstream.runtime.files import sync_directory, write_atomically
from millstream.runtime.process import DirectoryLock

__all__ = ["accept"]

_BUCKET: Final = re.compile(r"buckets/([^/]+)(?:/([^/]+))?")


def accept(path: Path, what: str) -> str:
    """Continue with the files that are left; return what was done, as text for people. Blocks.

    Args:
        path: the data directory; no server may use it.
        what: as the error names it.

    Raises:
        UsageError: `no_data_directory`; `not_acceptable`: there is nothing of this name.
        UnavailableError: `directory_in_use`.
        CorruptionError: something else must be accepted first.
        OSError: it cannot be written.
    """
    if not path.is_dir() or not holds_a_node(path):
        raise UsageError(f"{path} is no data directory of Millstream", code="no_data_directory")
    what = what.strip().removesuffix("/").removeprefix("./")
    lock = DirectoryLock(path / "lock", patience_s=0)
    try:
        own = {
            NODE_FILE: _node_file,
            INVENTORY_FILE: _inventory_file,
            CLUSTER_FILE: _cluster_file,
            "users.json": _users,
            "coord": _coordination,
        }
        if what in own:
            return own[what](path)
        named = _BUCKET.fullmatch(what)
        if named is not None:
            return _of_bucket(path, named[1], named[2])
        raise UsageError(
            f"{what!r} is nothing that could be accepted: say it as the error does, one of "
            f"{', '.join(own)}, buckets/UUID and its {BUCKET_FILE}, {MAP_FILE}, {LOG}, {LOCAL}",
            code="not_acceptable",
        )
    finally:
        lock.release()


# -- the node


def _node_file(path: Path) -> str:
    inventory = Inventory(path)
    if not Inventory.is_begun_in(path):
        inventory.begin(_found_in(path, uuid.uuid4().hex))
    contents = inventory.read()
    if not contents.uuid:
        contents = contents._replace(uuid=uuid.uuid4().hex)
        inventory.begin(contents)
    write_atomically(path / NODE_FILE, node_file_content(contents.uuid, utc_now()))
    return f"{NODE_FILE} is written again, for node {contents.uuid}"


def _cluster_file(path: Path) -> str:
    inventory = Inventory(path)
    cluster = inventory.read().cluster
    if not cluster:
        return f"{_set_aside(path / CLUSTER_FILE)[2:] or 'the node is a member of no cluster'}"
    write_identity(path, inventory, Identity(cluster, UNKNOWN_NAME))
    return f"{CLUSTER_FILE} is written again, for cluster {cluster}"


def _inventory_file(path: Path) -> str:
    try:
        node_uuid = read_node_file(path)[0]
    except (CorruptionError, OSError):
        node_uuid = ""  # it is in `node.toml`, which needs acceptance too
    contents = _found_in(path, node_uuid)
    Inventory(path).begin(contents)
    users = "users" if contents.has_users else "no users"
    names = ", ".join(sorted(entry.name for entry in contents.buckets.values())) or "none"
    return f"{INVENTORY_FILE} is written again: {users}; buckets: {names}"


def _found_in(path: Path, node_uuid: str) -> Contents:
    """Build a lost inventory from the files found in a directory."""
    buckets: dict[str, Entry] = {}
    for directory in sorted((path / "buckets").glob("*")):
        with suppress(OSError, KeyError, ValueError, MillstreamError):
            record = record_of(tomllib.loads((directory / BUCKET_FILE).read_text()))
            if record.uuid == directory.name:
                buckets[record.uuid] = record.entry._replace(parts=_parts_in(directory, record))
    coordinates = any((path / "coord").glob("node.toml*"))
    identity = None
    with suppress(CorruptionError, OSError):
        identity = read_identity(path, None)
    cluster = "" if identity is None else identity.cluster
    return Contents(node_uuid, (path / "users.json").exists(), coordinates, buckets, cluster)


def _parts_in(directory: Path, record: BucketRecord) -> frozenset[str]:
    is_there = {
        LOG: (directory / "log" / "receipt").exists(),
        LOCAL: (directory / LOCAL / "data.mdb").exists(),
        MAP: record.has_map or (directory / MAP_FILE).exists(),
        RECORDS: record.has_records or (directory / RECORDS_FILE).exists(),
    }
    return frozenset(part for part, there in is_there.items() if there)


def _users(path: Path) -> str:
    names = accept_users(path / "users.json")
    if not names:
        _set_aside(path / "users.json")
    Inventory(path).change(lambda contents: contents._replace(has_users=bool(names)))
    if not names:
        return "the node has no users any more: on this machine everybody may do everything"
    return f"users.json is taken as it is, users: {', '.join(names)}"


def _coordination(path: Path) -> str:
    aside = _set_aside(path / "coord")
    Inventory(path).change(lambda contents: contents._replace(coordinates=False))
    return f"the node coordinates anew, as another one{aside}"


# -- a bucket


def _of_bucket(path: Path, bucket_uuid: str, part: str | None) -> str:
    inventory, directory = Inventory(path), path / "buckets" / bucket_uuid
    entry = inventory.read().buckets.get(bucket_uuid)
    if part is None:
        if directory.exists() or entry is None:
            raise UsageError(
                f"{directory} exists, or is not expected: name the part of it to accept",
                code="not_acceptable",
            )
        inventory.change(lambda contents: contents.without_bucket(bucket_uuid))
        return f"bucket {entry.name} is given up"
    if not directory.is_dir():
        raise UsageError(f"{directory} is missing: accept that", code="not_acceptable")
    if part == BUCKET_FILE:
        return _bucket_file(inventory, directory, entry)
    if entry is None:
        with suppress(OSError, KeyError, ValueError, MillstreamError):
            entry = record_of(tomllib.loads((directory / BUCKET_FILE).read_text())).entry
    ways: dict[str, Callable[[Path, Entry], str]] = {MAP_FILE: _map, LOCAL: _local, LOG: _log}
    if part not in ways or entry is None:
        raise UsageError(
            f"{directory / part} is nothing that could be accepted", code="not_acceptable"
        )
    done = ways[part](directory, entry)
    gone = {MAP_FILE: MAP}.get(part, part)

    def without_part(contents: Contents) -> Contents:
        log_id = "" if part == LOG else entry.log_id
        kept = entry._replace(parts=entry.parts - {gone}, log_id=log_id)
        return contents.with_bucket(bucket_uuid, kept)

    inventory.change(without_part)
    return f"bucket {entry.name}: {done}"


def _bucket_file(inventory: Inventory, directory: Path, entry: Entry | None) -> str:
    """Write the file again: identity from the inventory, other values from the file."""
    kept: BucketRecord | None = None
    with suppress(OSError, KeyError, ValueError, MillstreamError):
        kept = record_of(tomllib.loads((directory / BUCKET_FILE).read_text()))
    if entry is None and (kept is None or kept.uuid != directory.name):
        raise CorruptionError(
            f"{directory / BUCKET_FILE} cannot be read, and the inventory does not name the "
            f"bucket: its name and number of partitions are unknown",
            code="bad_file",
        )
    name, partitions, created, parts, _ = entry or (kept or BucketRecord("", "", 0, "")).entry
    record = (kept or BucketRecord(name, directory.name, partitions, created))._replace(
        name=name, uuid=directory.name, partitions=partitions, created=created
    )
    record = record._replace(
        has_map=record.has_map or MAP in parts or (directory / MAP_FILE).exists(),
        has_records=record.has_records or RECORDS in parts or (directory / RECORDS_FILE).exists(),
    )
    store_record(directory.parent, record)
    if entry is None:
        inventory.change(lambda contents: contents.with_bucket(record.uuid, record.entry))
    options = "with its options" if kept is not None else "its options are lost"
    return f"bucket {name}: {BUCKET_FILE} is written again, {options}"


def _map(directory: Path, _: Entry) -> str:
    aside = _set_aside(directory / MAP_FILE)
    record = record_of(tomllib.loads((directory / BUCKET_FILE).read_text()))
    store_record(directory.parent, record._replace(has_map=False))
    return f"it has no map any more and is alone on this node{aside}"


def _local(directory: Path, _: Entry) -> str:
    if accept_local(directory / LOCAL, directory.name):
        return "local documents and settings are taken as they are"
    aside = _set_aside(directory / LOCAL)
    return (
        f"it has no local documents any more, and its settings (_security) are the defaults{aside}"
    )


def _log(directory: Path, entry: Entry) -> str:
    done = salvage_log(directory, entry.partitions)
    shutil.rmtree(directory / "byid", ignore_errors=True)  # it is rebuilt from the log
    sync_directory(directory)
    return done


def _set_aside(path: Path) -> str:
    """Rename a file or directory, if it exists; return a text that says so."""
    if not path.exists():
        return ""
    number = 1
    while (aside := path.with_name(f"{path.name}.lost-{number}")).exists():
        number += 1
    path.rename(aside)
    sync_directory(path.parent)
    return f"; what was there is {aside}"
