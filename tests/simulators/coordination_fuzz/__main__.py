"""`python -m simulators.coordination_fuzz`: give targets bytes for a while, or the same bytes
once more.

With atheris, which looks at what bytes lead to, and keeps in CORPUS those that led to something
new; without it, by chance alone.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

os.environ.setdefault("MILLSTREAM_PURE", "1")  # what is compiled cannot be looked into
TARGETS = ("codecs", "fronts", "twins")
BYTES_MAX = 3000
CORPUS = Path("artifacts/fuzz")


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="coordination_fuzz", description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS, help="this one alone")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with")
    parser.add_argument("--file", type=Path, help="run the target once, with what stands there")
    args = parser.parse_args()
    if args.target is None:
        return max(map(_in_a_process, TARGETS))
    if args.file:
        _target(args.target)(args.file.read_bytes())
        return 0
    try:
        import atheris  # noqa: F401
    except ImportError:
        return by_chance(args.target, args.seconds, args.seed)
    return by_coverage(args.target, args.seconds, args.seed)


def say(line: str) -> None:
    """Tell who has started this."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _in_a_process(target: str) -> int:
    say(f"== {target}")
    command = [sys.executable, "-m", "simulators.coordination_fuzz", target, *sys.argv[1:]]
    return subprocess.run(command, check=False).returncode


def _target(name: str) -> Callable[[bytes], None]:
    module = import_module(f"simulators.coordination_fuzz.{name}")
    return cast("Callable[[bytes], None]", getattr(module, name))


def by_chance(name: str, seconds: int, seed: int) -> int:
    """Give a target random bytes; keep those that it fails on."""
    target, end, runs = _target(name), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = random.Random(seed + runs).randbytes(BYTES_MAX)
        try:
            target(data)
        except Exception:
            found = CORPUS / f"{name}-{seed + runs}"
            found.parent.mkdir(parents=True, exist_ok=True)
            found.write_bytes(data)
            say(f"again with: python -m simulators.coordination_fuzz {name} --file {found}")
            raise
        runs += 1
    say(f"{runs} runs by chance, nothing found (atheris is not here)")
    return 0


def by_coverage(name: str, seconds: int, seed: int) -> int:
    """Give a target what leads somewhere new; it ends the process, and says which bytes failed."""
    import atheris

    with atheris.instrument_imports(include=["millstream.coordination.core"]):
        target = _target(name)
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        for number in range(20):
            (corpus / f"chance-{number}").write_bytes(random.Random(number).randbytes(BYTES_MAX))
    options = (f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", f"-seed={seed + 1}",
               "-timeout=60", "-rss_limit_mb=2048", f"-artifact_prefix={CORPUS}/{name}-",
               "-print_final_stats=1", "-verbosity=1")  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], target)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
