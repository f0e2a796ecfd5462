"""Python loads this by itself into a node under test: its disk and its clock fail when told to.

The folder `MILLSTREAM_TEST_FAULTS` holds what is to fail, looked at before each call: a file
`write`, `sync`, `sync_directory`, `create` or `read` with an errno in it, or `clock` with seconds
that the time of day is off. `disk_full_s` replaces how long durable writes wait for space.
"""

import os
import time
from pathlib import Path

from millstream.kv.aio import flusher
from millstream.runtime.disk import OsDisk, OsFile

FAULTS = Path(os.environ["MILLSTREAM_TEST_FAULTS"])


def told(name):
    """Return the number in a file, 0 if there is none."""
    try:
        return int((FAULTS / name).read_text() or "0")
    except OSError:
        return 0


def failing(owner, method, name, applies=lambda *_, **__: True):
    whole = getattr(owner, method)

    def call(*args, **kwargs):
        number = told(name)
        if number and applies(*args, **kwargs):
            raise OSError(number, os.strerror(number))
        return whole(*args, **kwargs)

    setattr(owner, method, call)


failing(OsFile, "write_at", "write")
failing(OsFile, "truncate", "truncate")
failing(OsFile, "sync", "sync")
failing(OsFile, "read_at", "read")
failing(OsFile, "read_resident", "read")
failing(OsDisk, "sync_directory", "sync_directory")
failing(OsDisk, "open", "create", lambda *_, create=False: create)

true_time_ns = time.time_ns
time.time_ns = lambda: true_time_ns() + told("clock") * 1_000_000_000
flusher.DISK_FULL_SECONDS_MAX = told("disk_full_s") or flusher.DISK_FULL_SECONDS_MAX
