"""The files of the console: few, and nothing of them comes from elsewhere."""

import gzip
import re
from pathlib import Path

import millstream

STATIC = Path(millstream.__file__).parent / "console/static"
COMPRESSED_MAX = 600_000
LINES_MAX = 600
NOT_SERVED = {"licences.txt", "packages.json"}


def test_all_files_are_small_when_compressed() -> None:
    files = [one for one in STATIC.rglob("*") if one.is_file() and one.name not in NOT_SERVED]
    assert sum(len(gzip.compress(one.read_bytes())) for one in files) < COMPRESSED_MAX


def test_own_modules_are_typed_short_and_load_nothing_from_elsewhere() -> None:
    own = [one for one in STATIC.rglob("*.js") if "vendor" not in one.parts]
    assert len(own) > 20
    for file in own:
        text = file.read_text()
        assert text.startswith("// @ts-check\n"), file
        assert text.count("\n") < LINES_MAX, file
        imported = re.findall(r'^(?:import|export)\b[^;]*?from "([^"]+)"', text, re.MULTILINE)
        assert all(one.startswith(".") for one in imported), (file, imported)
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file
