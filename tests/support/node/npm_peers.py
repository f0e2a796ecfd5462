"""Programs in JavaScript that others wrote, for tests that compare with them.

They lie in `tests/npm`: `make test-tools` installs them there by the lock.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.node.outside_program import outside_program, skip_without

FOLDER = Path(__file__).parents[2] / "npm"
TIME_LIMIT_S = 60


def node_program() -> str:
    """Return the name of node; skip the test that asks where it or the peers are missing."""
    skip_without("tests/npm", is_there=(FOLDER / "node_modules").is_dir())
    return outside_program("node")


def run_node(source: str, text: bytes = b"") -> bytes:
    """Run a CommonJS program beside the peers with `text` as input; return what it prints."""
    done = subprocess.run(
        [node_program(), "-e", source],
        input=text, capture_output=True, cwd=FOLDER, timeout=TIME_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
