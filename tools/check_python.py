"""Say clearly why an interpreter cannot make the environment; run by the Makefile before venv.

Must parse on any Python 3, therefore no modern syntax here.
"""

import sys

__all__ = ["main"]

OLDEST = (3, 11)


def main() -> int:
    """Return 0 where the interpreter is new enough and has venv with pip."""
    if sys.version_info < OLDEST:
        found = sys.version.split()[0]
        print("Python 3.11 or newer is needed, this is " + found + ".")
        print("Try: make PYTHON=python3.11")
        return 1
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        print("This Python has no venv. On Debian: apt-get install python3-venv")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
