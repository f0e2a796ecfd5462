import subprocess
import sys
from types import SimpleNamespace

import pytest

from millstream.cli import main as main_module
from millstream.cli.main import COMMANDS, application, main
from millstream.errors import CorruptionError, UsageError


def run(*words):
    with pytest.raises(SystemExit) as caught:
        main(words)
    return caught.value.code


def test_help_lists_what_there_is(capsys, monkeypatch):
    monkeypatch.setattr(
        main_module, "find_spec", lambda name: name if name.endswith(("serve", "status")) else None
    )
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert "serve" in text
    assert "pipeline" not in text


def test_all_commands_of_the_contract_have_a_place():
    wanted = {"serve", "demo", "load", "get", "put", "delete", "tail", "view", "pipeline"}
    assert set(COMMANDS) >= wanted | {"check", "status", "bench", "version"}


def test_without_words_help_is_shown(capsys):
    assert run() == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_only_the_command_called_is_imported():
    program = (
        "import sys; from millstream.cli.main import application; application(['--help']);"
        "print([m for m, module in sys.modules.items() if m.startswith('millstream.')"
        " and not hasattr(module, '__path__')"
        " and m.removeprefix('millstream.') not in ('cli.main', 'errors', 'version')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such\nthing"), 2, "millstream: no such thing\n"),
        (CorruptionError("damaged"), 1, "millstream: damaged\n"),
        (OSError(28, "No space left on device"), 1, "millstream: [Errno 28] No space"),
    ],
)
def test_errors_are_one_line(monkeypatch, capsys, error, code, line):
    def command():
        raise error

    monkeypatch.setattr(main_module, "import_module", lambda _: SimpleNamespace(command=command))
    assert run("version") == code
    captured = capsys.readouterr()
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("package", "extra"),
    [("pyspark", "spark"), ("pyarrow", "spark"), ("matplotlib.pyplot", "demo")],
)
@pytest.mark.parametrize("is_in_command", [True, False])
def test_a_missing_extra_is_one_line_that_names_it(
    monkeypatch, capsys, package, extra, is_in_command
):
    def fail(*_):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    loaded = SimpleNamespace(command=lambda: fail())
    monkeypatch.setattr(
        main_module, "import_module", lambda _: loaded if is_in_command else fail()
    )
    assert run("version") == 1
    said = capsys.readouterr().err
    assert f"pip install 'millstream[{extra}]'" in said
    assert said.count("\n") == 1


def test_another_missing_module_is_not_hidden(monkeypatch):
    def fail(_):
        raise ModuleNotFoundError("No module named 'nothing'", name="nothing")

    monkeypatch.setattr(main_module, "import_module", fail)
    with pytest.raises(ModuleNotFoundError):
        main(["version"])


@pytest.mark.parametrize("is_in_command", [True, False])
def test_an_interruption_is_no_traceback(monkeypatch, capsys, is_in_command):
    def interrupt(*_):
        raise KeyboardInterrupt

    loaded = SimpleNamespace(command=lambda: interrupt())
    monkeypatch.setattr(
        main_module, "import_module", lambda _: loaded if is_in_command else interrupt()
    )
    assert run("version") in (1, 130)
    assert capsys.readouterr().err.count("\n") <= 1


def test_programmers_errors_are_not_hidden(monkeypatch):
    def command():
        assert 1 == 2, "impossible"

    monkeypatch.setattr(main_module, "import_module", lambda _: SimpleNamespace(command=command))
    with pytest.raises(AssertionError):
        main(["version"])


def test_a_command_may_be_a_group(monkeypatch, capsys):
    import typer

    group = typer.Typer()
    group.command("first")(lambda: typer.echo("one"))
    group.command("second")(lambda: typer.echo("two"))
    monkeypatch.setattr(main_module, "import_module", lambda _: SimpleNamespace(app=group))
    assert run("version", "second") == 0
    assert capsys.readouterr().out == "two\n"


def test_completion_loads_everything(monkeypatch):
    loaded = []

    def load(name):
        loaded.append(name)
        return SimpleNamespace(command=lambda: None)

    monkeypatch.setattr(main_module, "import_module", load)
    monkeypatch.setenv("_MILLSTREAM_COMPLETE", "complete_bash")
    application([])
    assert "millstream.cli.serving.serve" in loaded
    assert "millstream.cli.version" in loaded


@pytest.mark.parametrize("words", [["nothing"], ["version", "--colour"]])
def test_unknown_words_end_with_2(words, capsys):
    assert run(*words) == 2
    assert "millstream" in capsys.readouterr().err


def test_a_reader_that_left_is_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m millstream version --json | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
