"""A real file system of few bytes, in a mount namespace of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def in_small_disk(path: Path, size: str) -> tuple[str, ...]:
    """A command that gives what comes after it a file system of its own at `path`."""
    path.mkdir()
    script = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec "$@"'
    command = ("unshare", "--mount", "sh", "-c", script, "sh", size, str(path))
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    return command
