"""Programs in JavaScript that others wrote, for tests that compare with them.

They lie in `tests/npm` (`make test-tools` installs them there by the lock). A test that needs them
skips with the reason where they, or node, are missing.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "npm"
TIME_LIMIT_S = 60


def node_program() -> str:
    """Return the path of node; skip the test that asks where it or the peers are missing."""
    node = shutil.which("node")
    if node is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("node and the peers in tests/npm are missing: make test-tools")
    return node


def run_node(source: str, text: bytes = b"") -> bytes:
    """Run a CommonJS program beside the peers with `text` as input; return what it prints."""
    done = subprocess.run(
        [node_program(), "-e", source],
        input=text, capture_output=True, cwd=FOLDER, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
