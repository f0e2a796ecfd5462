"""The first program in the README runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_taste_in_the_readme_runs(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert program is not None
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.group(1)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Changes(" in run.stdout
    assert "order::1" in run.stdout
