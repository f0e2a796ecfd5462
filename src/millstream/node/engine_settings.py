"""Several engines on one machine: the settings of each, and where its data is.

Each engine is a node of its own: a data directory, ports, a place in the cluster's maps. Engine 1
uses the data directory itself, so a directory that had one engine can get more. Engine K of the
others uses `DIR/engine-K`, and its ports are `PORT_STEP` times K - 1 higher.

Invariants:
1. An engine that has data is never left out: fewer engines than directories are refused.
2. All engines of a machine are in one zone, and only engine 1 coordinates: a machine has one vote.

Elsewhere: running them (`node.processes.engines`), how they become a cluster (`node.forming`).
"""

from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path
from typing import Any, Final

from millstream.access.users import UserStore
from millstream.errors import UsageError
from millstream.model.addresses import is_loopback
from millstream.model.limits import MEMORY_QUOTA_BYTES_MIN
from millstream.node.settings import LISTENERS, Address, Settings, memory_quota_of
from millstream.runtime.metrics import machine_bytes

__all__ = ["PORT_STEP", "check_engines", "directory_of", "engine_directories", "settings_of"]

PORT_STEP: Final = 100
_NEEDED: Final = ("kv", "http", "coord", "peer")
"""Listeners without which a node is no member of a cluster."""
_DIRECTORY: Final = re.compile(r"engine-([1-9][0-9]{0,3})")
PORT_MAX: Final = 65535


def directory_of(data: Path, number: int) -> Path:
    """Return the data directory of an engine.

    >>> directory_of(Path("d"), 1).as_posix(), directory_of(Path("d"), 2).as_posix()
    ('d', 'd/engine-2')
    """
    return data if number == 1 else data / f"engine-{number}"


def engine_directories(data: Path) -> dict[int, Path]:
    """Return the directories of the engines beside the first, by number.

    Raises:
        OSError: the directory cannot be read.
    """
    if not data.is_dir():
        return {}
    found = {
        int(name[1]): one for one in data.iterdir() if (name := _DIRECTORY.fullmatch(one.name))
    }
    return {number: found[number] for number in sorted(found) if found[number].is_dir()}


def check_engines(settings: Settings) -> None:
    """Refuse settings that engines cannot have.

    Raises:
        UsageError: `fewer_engines`, `bad_option`, `no_cluster_secret`.
        OSError: the directory cannot be read.
    """
    data, count = Path(settings.data), settings.engines
    known = engine_directories(data)
    if known and (most := max(known)) > count:
        raise UsageError(
            f"{data} has {most} engines, and --engines {count} would leave out the documents in "
            f"{known[most]}: start with --engines {most}; to have fewer, take the node of engine "
            f"{most} out with `millstream cluster remove`, wait until `millstream cluster status` "
            f"shows it as out, stop, and delete {known[most]}",
            code="fewer_engines",
        )
    if count == 1:
        return
    for name in _NEEDED:
        if getattr(settings, name) is None:
            raise _bad(settings, f"--no-{name} is not possible: engines are nodes of a cluster")
    if settings.memcached_is_asked:
        raise _bad(
            settings, "--memcached is not possible: that protocol cannot find the engine of a key"
        )
    if not {"data", "coord"} <= set(settings.roles):
        raise _bad(settings, "--roles must have data and coord: engines are nodes of a cluster")
    for address in (getattr(settings, name) for name in LISTENERS):
        if address is not None and address.port + PORT_STEP * (count - 1) > PORT_MAX:
            raise _bad(settings, f"the ports of {address} and up, by {PORT_STEP}, are too large")
    if settings.join is not None and settings.buckets:
        raise _bad(settings, "--bucket is not possible with --join: the cluster has its buckets")
    if settings.join is not None and not settings.cluster_secret and _has_users(settings):
        raise UsageError(
            "there are users: to join another cluster, start all its nodes with the same secret, "
            "in MILLSTREAM_CLUSTER_SECRET",
            code="no_cluster_secret",
        )


def _bad(settings: Settings, why: str) -> UsageError:
    return UsageError(f"--engines {settings.engines}: {why}", code="bad_option")


def _has_users(settings: Settings) -> bool:
    file = Path(settings.data) / "users.json"
    return bool(settings.users) or (file.exists() and not UserStore(file).is_empty)


def settings_of(settings: Settings, number: int, *, secret: str, peer: Address | None) -> Settings:
    """Return the settings of one of several engines.

    Args:
        settings: of all, as `check_engines` accepts them.
        number: of the engine, from 1.
        secret: with which the engines log in to each other if none was given and there are users.
        peer: of engine 1, for the others: they coordinate with it.
    """
    moved: dict[str, Any] = {name: _moved(getattr(settings, name), number) for name in LISTENERS}
    moved |= {"memcached": None}
    if number > 1:
        moved |= {"ninep": None}
    quota = settings.memory_quota_bytes or memory_quota_of(machine_bytes())
    return dataclasses.replace(
        settings,
        data=str(directory_of(Path(settings.data), number)),
        engine=number,
        join=peer,
        buckets=(),
        cluster_secret=settings.cluster_secret or (secret if _has_users(settings) else ""),
        zone=settings.zone or _machine(settings),
        memory_quota_bytes=max(MEMORY_QUOTA_BYTES_MIN, quota // settings.engines),
        **moved,
    )


def _machine(settings: Settings) -> str:
    """Return the name of the machine that no other one of its cluster has."""
    host = settings.advertised_host
    return socket.gethostname() if is_loopback(host) else host


def _moved(address: Address | None, number: int) -> Address | None:
    if address is None or address.port == 0:
        return address
    return Address(address.host, address.port + PORT_STEP * (number - 1))
