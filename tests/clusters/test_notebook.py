"""The notebook runs, in a kernel of its own, and shows what is stored in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN_S = 540


def test_the_notebook_shows_what_is_stored_in_it(tmp_path: Path) -> None:
    home = {
        "HOME": str(tmp_path),
        "IPYTHONDIR": str(tmp_path),
        "JUPYTER_CONFIG_DIR": str(tmp_path),
    }
    # A Java that lives for a minute: half of its start is its compiler's time.
    java = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(
        [sys.executable, "tools/run_notebook.py"],
        cwd=ROOT,
        env=os.environ | home | java,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
