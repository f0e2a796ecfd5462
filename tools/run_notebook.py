"""Runs the notebooks of docs/notebooks and compares what they show with what is stored in them.

    python tools/run_notebook.py            # exit code 1 where they differ
    python tools/run_notebook.py --store    # stores it

Invariants:
1. What is stored is text and small pictures: nothing of what Java or libraries say on stderr, no
   times. Pictures are not compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

__all__ = ["main"]

NOTEBOOKS = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
CELL_S = 120
STORED_BYTES_MAX = 100_000


def run(notebook: Any) -> Any:
    """Return the notebook as it is after a run."""
    done = NotebookClient(notebook, timeout=CELL_S, kernel_name="python3").execute()
    for cell in done.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    done.metadata = {name: done.metadata[name] for name in ("kernelspec",)}
    return done


def shown(notebook: Any) -> list[str]:
    """Return the text that each cell shows."""
    return ["".join(map(_text, cell.get("outputs", ()))) for cell in notebook.cells]


def _text(output: Any) -> str:
    data = output.get("data", {})
    return "a picture" if "image/png" in data else data.get("text/plain") or output.get("text", "")


def main(arguments: list[str]) -> int:
    """Run all, and store or compare."""
    code = 0
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        stored = nbformat.read(path, as_version=4)
        before = shown(stored)
        done = run(stored)
        text = nbformat.writes(done) + "\n"
        if len(text) > STORED_BYTES_MAX:
            print(f"{path.name}: {len(text)} bytes; at most {STORED_BYTES_MAX} are stored")
            code = 1
        elif "--store" in arguments:
            path.write_text(text)
        elif before != shown(done):
            print(f"{path.name} shows\n{shown(done)}\nstored is\n{before}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
