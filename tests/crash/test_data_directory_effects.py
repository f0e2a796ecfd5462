"""A node that is killed before any effect on its small files opens again and misses nothing."""

import os
import subprocess
import sys
from pathlib import Path


def test_a_kill_between_two_effects_on_small_files_is_no_damage(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "support.kv.directory_life", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tests)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
