"""Each house rule finds its breach, and none where there is none."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture(scope="module")
def tidy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tidy", TOOLS / "tidy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TESTED_ELSEWHERE = {}  # the excuses are for the real tree
    return module


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


CODE = '"""One."""\n__all__ = ["f"]\n\n\ndef f():\n    return 1\n'


LONG = "    x = 1\n"
FIELDS = "".join(f"        self.f{n} = {n}\n" for n in range(41))


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        ("mirrored_tests", "src/millstream/kv/one.py", CODE),
        ("module_shape", "src/millstream/one.py", "x = 1\n"),
        ("module_shape", "src/millstream/one.py", '"""One."""\n\n\ndef f():\n    return 1\n'),
        ("module_shape", "src/millstream/one.py", '"""One."""\n' + "\n" * 600),
        ("small_parts", "src/millstream/one.py", "def f():\n" + LONG * 71),
        ("small_parts", "src/millstream/one.py", "async def f():\n" + LONG * 71),
        ("small_parts", "src/millstream/one.py", "class C:\n" + LONG * 600),
        ("small_parts", "src/millstream/one.py", f"class C:\n    def f(self):\n{FIELDS}"),
        ("nothing_left_over", "docs/one.md", "To be done. TO" + "DO\n"),
        ("nothing_left_over", "src/millstream/one.py", "raise NotImplemented" + "Error\n"),
        ("clear_names", "src/millstream/utils.py", ""),
        ("links_resolve", "docs/one.md", "[here](two.md)"),
        ("links_resolve", "docs/one.md", "# One\n[here](#two)"),
        ("mentions_resolve", "src/millstream/one.py", '"""See docs/one.md."""'),
        ("nothing_from_outside", "docs/one.md", "see .." + "/shared for it"),
        ("no_dead_modules", "src/millstream/kv/one.py", CODE),
        ("cancelled_waits_end", "src/millstream/one.py", "await asyncio.wait" + "_for(x, 1)\n"),
        ("requirements_pinned", "pyproject.toml", '[project]\ndependencies = ["a-b[c]>=2"]\n'),
        (
            "named_modules_exist",
            "src/millstream/kv/one.py",
            '"""One.\n\nElsewhere: two (`kv.one`, `kv.two`).\n"""',
        ),
    ],
)
def test_a_breach_is_named(
    tidy: ModuleType, tmp_path: Path, rule: str, name: str, text: str
) -> None:
    write(tmp_path, name, text)
    breaches = list(getattr(tidy, rule)(tmp_path))
    assert len(breaches) == 1
    assert breaches[0].startswith(name)


def test_a_note_names_modules_that_are_there(tidy: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "src/millstream/kv/one.py", '"""One."""')
    write(tmp_path, "docs/design/0001-one.md", "`kv.one` reads `kv.sock` and `kv.two`.")
    breaches = list(tidy.named_modules_exist(tmp_path))
    assert breaches == ["docs/design/0001-one.md: kv.two is not there"]


def test_a_tidy_tree_has_no_breach(
    tidy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "src/millstream/kv/one.py", CODE)
    named = '"""Two.\n\nElsewhere: `kv.one`, `kv.one.f`.\n"""\nfrom millstream.kv import one\n'
    write(tmp_path, "src/millstream/cli/main.py", named)
    write(tmp_path, "src/millstream/ports/disk.py", '"""Declares."""\nLIMIT = 3\n')
    write(tmp_path, "src/millstream/kv/two.py", '"""."""\nimport millstream.ports.disk\n')
    write(tmp_path, "src/millstream/kv/three.py", '"""."""\nimport millstream.kv.two\n')
    write(tmp_path, "src/millstream/__main__.py", '"""."""\nimport millstream.kv.three\n')
    write(tmp_path, "tests/unit/kv/test_one.py", '"""Tests one."""\n')
    write(tmp_path, "docs/a.md", "# The first\n[b](b.md#two-words) `[x](y.md)` [c](https://c)\n")
    write(tmp_path, "docs/b.md", "# One\n\n## Two words\n")
    assert tidy.main(tmp_path) == 0
    assert "rules are kept" in capsys.readouterr().out


def test_an_excuse_without_its_module_is_a_breach(
    tidy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "TESTED_ELSEWHERE", {"kv/gone.py": "tested by nobody"})
    write(tmp_path, "src/millstream/one.py", '"""Declares."""\n')
    assert "kv/gone.py" in "".join(tidy.mirrored_tests(tmp_path))


def test_a_signature_and_a_docstring_make_no_function_long(
    tidy: ModuleType, tmp_path: Path
) -> None:
    parameters = "".join(f"    a{n},\n" for n in range(90))
    docstring = '    """One.\n' + "\n" * 90 + '    """\n'
    text = f"def f(\n{parameters}):\n{docstring}" + LONG * 70
    write(tmp_path, "src/millstream/one.py", text)
    assert list(tidy.small_parts(tmp_path)) == []


def test_tests_have_no_long_functions(tidy: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "tests/test_one.py", "def f():\n" + LONG * 71)
    assert "f has 71 lines" in "".join(tidy.small_parts(tmp_path))
