"""Write docs/reference/openapi.json, and docs/reference/api.md of it; `make reference` runs it.

Deliberately elsewhere: what the pages answer, which docs/reference/http.md says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from millstream.gateway.aio.describing import description_of
from millstream.gateway.aio.server import make_application

__all__ = ["main", "pages"]

_FOLDER: Final = Path(__file__).resolve().parent.parent / "docs/reference"
_HEAD: Final = """\
# Pages for programs

<!-- Written by tools/gen_openapi.py; change the code and run `make reference`. -->

These are the pages below `/_millstream/` that programs may use. The same as OpenAPI 3.1:
[openapi.json](openapi.json). Each node tells its own at `GET /_millstream/openapi.json`.
[HTTP](http.md) says what they answer, and has all other pages.

| page | does |
| --- | --- |
"""


def pages() -> dict[str, str]:
    """Return the files by their names."""
    api: Any = object()  # no page is asked
    description = description_of(make_application(api))
    rows = [
        f"| `{method.upper()} {path}` | {one['summary']} {one['description']} |"
        for path, methods in description["paths"].items()
        for method, one in methods.items()
    ]
    text = msgspec.json.format(msgspec.json.encode(description)).decode()
    return {"openapi.json": text + "\n", "api.md": _HEAD + "\n".join(rows) + "\n"}


def main() -> int:
    """Write the files; return the exit status."""
    for name, text in pages().items():
        (_FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
