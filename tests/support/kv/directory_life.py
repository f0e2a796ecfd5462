"""One life of a data directory, ended before each effect: `python -m support.kv.directory_life
DIR`.

A life makes a node, a bucket, a setting in its local documents and a user, adopts records for
another bucket, and deletes the first.
Another process goes through it and is ended before effect number n, for each n. Then the directory
is opened twice: all buckets must be served, and what was answered must be there. Prints the number
of effects.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.data_directory.map_file import AdoptedMap
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord, MapKey
from millstream.model.limits import UINT64_MAX
from millstream.node.embedded import Node

A = (NodeAddress("a", "127.0.0.1", 1, 2),)
EFFECTS = ("replace", "rename", "mkdir", "unlink", "rmdir", "fsync", "ftruncate")
"""Functions of `os` that change a directory, or make it durable."""


def end_before(number: int, count: Callable[[int], None]) -> None:
    """End this process before effect number `number`, counted from 1."""
    done = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            count(done)
            if done == number:
                os._exit(9)
            return function(*args, **kwargs)

        return call

    for name in EFFECTS:
        setattr(os, name, counted(getattr(os, name)))


async def live(path: Path, say: Callable[[str], None]) -> None:
    async with Node(path, buckets=["kept:1"]) as node:
        engine = node.engine
        say("started")
        await node.create_bucket("x", 1)
        say("created")
        await engine._buckets.running["x"].local.set("name", b"value")
        say("set")
        kept = engine._buckets.running["kept"].bucket.uuid
        for revision in (1, 2):
            record = DataRecord(MapKey(2, revision), "a", 0, (("a",),))
            data_map = DataMap(record.at, kept, (record,))
            await engine._buckets.maps.take_map(
                "kept", 1, AdoptedMap("c", "a", A, data_map, (record,))
            )
            say(f"managed{revision}")
        adopted = engine._buckets.maps.adopted("kept")
        assert adopted is not None
        await adopted.adopt({0: DataRecord(MapKey(2, 3), "a", 0, (("a",),))})
        say("managed3")
        await asyncio.to_thread(engine.users.put, "ada", "secret")
        say("user")
        say("deleting")
        await node.delete_bucket("x")
        say("deleted")
    say("stopped")


async def look(path: Path, said: list[str]) -> None:
    async with Node(path) as node:
        statuses = {one.name: one for one in node.engine.bucket_statuses()}
        failed = [one.reason for one in statuses.values() if one.state != "ready"]
        assert not failed, (failed, said)
        if "started" in said:
            assert "kept" in statuses, said
        if "created" in said and "deleting" not in said:
            assert "x" in statuses, said
        if "deleted" in said:
            assert "x" not in statuses, said
        if "set" in said and "x" in statuses:
            local = node.engine._buckets.running["x"].local
            assert local.setting("name") == b"value", said
        managed = max((int(word[-1]) for word in said if word.startswith("managed")), default=0)
        record = node.engine._buckets.running["kept"].bucket.record(0) if managed else None
        assert record is None or record.at.revision >= managed, said
        assert bool(managed) == (record is not None), said
        if "user" in said:
            assert node.engine.users.names == ["ada"], said


def apart(function: Callable[[], None]) -> int:
    """Call a function in a process of its own; return how that ended."""
    pid = os.fork()
    if not pid:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - told by the exit code
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(base: Path) -> int:
    number, ended = 0, 9
    while ended == 9:
        number += 1
        path, told = base / str(number), base / f"{number}.said"

        def lives(path: Path = path, told: Path = told, number: int = number) -> None:
            file = os.open(told, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            end_before(number, lambda _: None)
            asyncio.run(live(path, lambda word: os.write(file, word.encode() + b"\n") and None))

        ended = apart(lives)
        assert ended in (0, 9), f"a life ended with {ended} before effect {number}"
        said = told.read_text().split()
        for _ in range(2):
            looked = apart(lambda path=path, said=said: asyncio.run(look(path, said)))
            assert looked == 0, f"what was left before effect {number} does not open: {said}"
        assert number < UINT64_MAX
    sys.stdout.write(f"{number - 1}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
