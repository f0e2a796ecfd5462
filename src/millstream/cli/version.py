"""`millstream version`: what runs here."""

from __future__ import annotations

import json as json_module
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final

import typer

from millstream import accelerated
from millstream.version import __version__

__all__ = ["command"]

_PACKAGES: Final = ("aiohttp", "lmdb", "msgspec", "quickjs-ng", "uvloop", "pyspark", "pyarrow")


def command(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the versions of Millstream, Python and the libraries that matter."""
    found: dict[str, str | None] = {
        "millstream": __version__,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["hot functions"] = accelerated.state()
    if json:
        print(json_module.dumps(found))
        return
    for name, text in found.items():
        print(f"{name:<15}{text or 'not installed'}")
