"""The house rules that no linter knows, checked over the tree; prints one line per breach.

Rules, each a function over the repository root:
1. Tests mirror the source: src/millstream/a/b.py has tests/unit/a/test_b.py, or stands in
   `TESTED_ELSEWHERE` with the reason. Modules that only declare need none.
2. Every module opens with a docstring, and has `__all__` where it defines functions or classes;
   no file is over `LINES_MAX` lines.
3. Nothing is left for later: no marks of unfinished work.
4. Names: no module called utils, misc, common, helpers or manager.
5. Links between documents resolve, headings included; so do mentions of docs/... in the source.
6. Text names no place outside the repository that a reader does not have.
7. No module is dead: each is named by another one or is an entry point.
8. A function has at most `FUNCTION_LINES_MAX` lines, its signature and docstring not counted; a
   class at most `LINES_MAX` lines and `ATTRIBUTES_MAX` attributes. Tests and tools, too.
9. What pyproject.toml requires is pinned in requirements/: else a fresh clone lacks it.
10. Cancelled waits end: no `asyncio.wait_for`, which in Python 3.11 swallows a cancellation that
   comes in the same turn as the result.
11. What a docstring names after `Elsewhere:` as `package.module` is there; so is what
   ARCHITECTURE.md and the design notes name so.

Deliberately elsewhere: style and types (ruff, mypy), layers (import-linter), spelling (codespell).
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["RULES", "main"]

ROOT: Final = Path(__file__).resolve().parent.parent
LINES_MAX: Final = 600
FUNCTION_LINES_MAX: Final = 70
ATTRIBUTES_MAX: Final = 40
PROGRAMS: Final = ("src", "tests", "tools", "bench")
Rule = Callable[[Path], Iterator[str]]

TESTED_ELSEWHERE: Final[dict[str, str]] = {
    "kv/aio/flusher.py": "one with the engine: tests/unit/kv/aio/test_engine.py, on real files",
    "cli/serving/cluster_up.py": "processes of its own: tests/e2e/test_cluster_up.py",
    "pipelines/document_frames.py": "Spark's own work: tests/pipelines/test_documents.py",
    "pipelines/relation_frames.py": "Spark's own work: tests/pipelines/test_relations.py",
    "pipelines/relations.py": "what it starts and refuses: tests/pipelines/test_relations.py",
}
"""Module or folder under src/millstream -> which tests cover it, and why not unit tests."""

ENTRY_POINTS: Final = {
    "millstream.cli.main",
    "millstream.__main__",
    "millstream.coordination.core.pool.pool",  # stepped by who serves groups
    "millstream.cluster.core.deciding",  # what the shells of a managed cluster will call
    "millstream.cluster.core.requests",
    "millstream.cluster.core.admission",
    "millstream.cluster.aio.local_engine",
    "millstream.gateway.core.api.cluster",
    "millstream.model.serving_rights",
}

_LEFT_OVER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HACK)\b|NotImplemented" + r"Error")
_VAGUE_NAMES = {"utils", "util", "misc", "common", "helpers", "manager"}
_OUTSIDE = re.compile(
    r"/work/|\.\./shared|\bshared/(refs|seeds|models)|pypi\.org|pythonhosted|npmjs\.(org|com)|"
    r"crates\.io|deb\.debian\.org|repo\.maven|proxy\.golang"
)
_TEXT_SUFFIXES = {
    ".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".js", ".html", ".c", ".h", ".pyx",
    ".pyi", "",
}  # fmt: skip
_SKIPPED_FOLDERS = {"build", "dist", "site", "demo-out", "artifacts", "spark-warehouse"}
_FOREIGN = {"__pycache__", "node_modules", "vendor"}
_PIN = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?==", re.MULTILINE)
OUR_OWN: Final = {"millstream-accelerator"}
_MENTION = re.compile(r"\bdocs/[\w./-]+\.md\b")
_ELSEWHERE = re.compile(r"^Elsewhere:.*?(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
_FILE_ENDINGS = frozenset({"sock", "toml"})
_DOTTED = re.compile(r"`(?:millstream\.)?([a-z_]+(?:\.\w+)+)`")
_LOADED = re.compile(r"[\w.]+")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def mirrored_tests(root: Path) -> Iterator[str]:
    """Rule 1."""
    source = root / "src" / "millstream"
    for path in _modules(source):
        inside = path.relative_to(source)
        if not _has_behaviour(path) or _is_excused(inside):
            continue
        test = root / "tests" / "unit" / inside.with_name(f"test_{inside.name}")
        if not test.exists():
            yield f"{path.relative_to(root)}: no {test.relative_to(root)}"
    for name in TESTED_ELSEWHERE:
        if not (source / name).exists():
            yield f"tools/tidy.py: TESTED_ELSEWHERE names {name}, which is gone"


def _has_behaviour(path: Path) -> bool:
    """False for what only declares: constants, protocols, exceptions, package fronts."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [n.body for n in ast.walk(_parsed(path)) if isinstance(n, functions)]
    simple = (ast.Expr, ast.Pass)
    says_something = any(not isinstance(line, simple) for body in bodies for line in body)
    return says_something and path.name != "__init__.py"


def _is_excused(inside: Path) -> bool:
    return any(str(part) in TESTED_ELSEWHERE for part in (inside, *inside.parents))


def module_shape(root: Path) -> Iterator[str]:
    """Rule 2."""
    for path in _modules(root / "src"):
        name = path.relative_to(root)
        text, tree = path.read_text(), _parsed(path)
        if not ast.get_docstring(tree):
            yield f"{name}: no module docstring"
        defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
        if defines and not _defines_all(tree):
            yield f"{name}: no __all__"
        if (lines := text.count("\n")) > LINES_MAX:
            yield f"{name}: {lines} lines, at most {LINES_MAX}: split it"


_PARTS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def small_parts(root: Path) -> Iterator[str]:
    """Rule 8."""
    for path in (path for folder in PROGRAMS for path in _modules(root / folder)):
        for node in ast.walk(_parsed(path)):
            if isinstance(node, _PARTS) and (what := _too_large(node)):
                yield f"{path.relative_to(root)}:{node.lineno}: {node.name} has {what}: split it"


def _too_large(node: _PARTS) -> str:
    if isinstance(node, ast.ClassDef):
        lines, attributes = _lines(node, node), len(_attributes(node))
        if attributes > ATTRIBUTES_MAX:
            return f"{attributes} attributes, at most {ATTRIBUTES_MAX}"
        return f"{lines} lines, at most {LINES_MAX}" if lines > LINES_MAX else ""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    lines = _lines(body[0], node) if body else 0
    return f"{lines} lines, at most {FUNCTION_LINES_MAX}" if lines > FUNCTION_LINES_MAX else ""


def _lines(first: ast.stmt, last: ast.stmt) -> int:
    return (last.end_lineno or 0) - first.lineno + 1


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return what a class declares and what its methods assign to `self`."""
    declared = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return declared | {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }


def _defines_all(tree: ast.Module) -> bool:
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets)


def nothing_left_over(root: Path) -> Iterator[str]:
    """Rule 3."""
    yield from _matching_lines(root, _LEFT_OVER, "unfinished work")


def clear_names(root: Path) -> Iterator[str]:
    """Rule 4."""
    for path in _modules(root / "src"):
        if path.stem in _VAGUE_NAMES or path.parent.name in _VAGUE_NAMES:
            yield f"{path.relative_to(root)}: a name that says nothing"


def links_resolve(root: Path) -> Iterator[str]:
    """Rule 5."""
    for path in _texts(root):
        if path.suffix != ".md":
            continue
        for link in _LINK.findall(_without_code(path.read_text())):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            target, _, heading = link.partition("#")
            file = (path.parent / target) if target else path
            if not file.exists():
                yield f"{path.relative_to(root)}: link to {link}: no such file"
            elif heading and heading not in _headings(file):
                yield f"{path.relative_to(root)}: link to {link}: no such heading"


def mentions_resolve(root: Path) -> Iterator[str]:
    """Rule 5, for code."""
    for path in _modules(root / "src"):
        for mention in _MENTION.findall(path.read_text()):
            if not (root / mention).exists():
                yield f"{path.relative_to(root)}: mentions {mention}: no such file"


def _without_code(text: str) -> str:
    return re.sub(
        r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )


def _headings(path: Path) -> set[str]:
    if path.suffix != ".md":
        return set()
    found = re.findall(r"^#+ +(.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in found}


def nothing_from_outside(root: Path) -> Iterator[str]:
    """Rule 6."""
    yield from _matching_lines(root, _OUTSIDE, "a place outside the repository")


def no_dead_modules(root: Path) -> Iterator[str]:
    """Rule 7."""
    named_in: dict[str, set[Path]] = defaultdict(set)
    for path in _modules(root / "src"):
        for name in _names(path):
            named_in[name].add(path)
    for path in _modules(root / "src"):
        name = _dotted(path, root)
        if path.name == "__init__.py" or name in ENTRY_POINTS:
            continue
        if not (named_in[name] | named_in[path.stem]) - {path}:
            yield f"{path.relative_to(root)}: nothing uses it"


def _names(path: Path) -> Iterator[str]:
    """Return what a module imports, and what it may load by name: a command, a child process."""
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Constant) and _LOADED.fullmatch(str(node.value)):
            yield str(node.value)
            yield str(node.value).removesuffix(".py").rpartition(".")[2]


def requirements_pinned(root: Path) -> Iterator[str]:
    """Rule 9."""
    project_file = root / "pyproject.toml"
    if not project_file.exists():
        return
    project = tomllib.loads(project_file.read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    locks = (root / "requirements").glob("*.txt")
    pinned = {m[1].lower() for lock in locks for m in _PIN.finditer(lock.read_text())}
    for wanted in [*project.get("dependencies", []), *(w for extra in extras for w in extra)]:
        name = re.split(r"[^\w.-]", wanted, maxsplit=1)[0].lower()
        if name not in pinned | OUR_OWN:
            yield f"pyproject.toml: {wanted} has no pin: run `make lock`"


def cancelled_waits_end(root: Path) -> Iterator[str]:
    """Rule 10."""
    for path in _modules(root / "src"):
        if "asyncio.wait_for(" in path.read_text():
            yield f"{path.relative_to(root)}: asyncio.wait_for: use asyncio.timeout"


def named_modules_exist(root: Path) -> Iterator[str]:
    """Rule 11."""
    source = root / "src" / "millstream"
    for path, text in _naming_texts(root):
        for name in _DOTTED.findall(text):
            package, *inside = name.split(".")
            if inside[-1] in _FILE_ENDINGS or not (source / package).is_dir():
                continue
            if not _is_named(source / package, inside):
                yield f"{path.relative_to(root)}: {name} is not there"


def _naming_texts(root: Path) -> Iterator[tuple[Path, str]]:
    for path in _modules(root / "src" / "millstream"):
        elsewhere = _ELSEWHERE.search(ast.get_docstring(_parsed(path)) or "")
        yield path, elsewhere[0] if elsewhere else ""
    for path in (root / "ARCHITECTURE.md", *sorted(root.glob("docs/design/*.md"))):
        if path.is_file():
            yield path, path.read_text()


def _is_named(place: Path, inside: list[str]) -> bool:
    """Return whether names lead to a module or package, and perhaps to a name in it."""
    while inside and (place / inside[0]).is_dir():
        place, inside = place / inside[0], inside[1:]
    module = place / f"{inside[0]}.py" if inside else place
    if module.is_file():
        inside = inside[1:]
    else:
        module = place / "__init__.py"
    text = module.read_text() if module.is_file() else ""
    return not inside or re.search(rf"\b{inside[0]}\b", text) is not None


def _dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root / "src").with_suffix("").parts)


def _matching_lines(root: Path, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    for path in _texts(root):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := pattern.search(line):
                yield f"{path.relative_to(root)}:{number}: {what}: {found.group()}"


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if not _FOREIGN & {*path.parts})


def _texts(root: Path) -> Iterator[Path]:
    """All text files of the repository but locks, this file and what tools leave behind."""
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        hidden = any(part.startswith(".") and part != ".ci" for part in inside.parts)
        if hidden or inside.parts[0] in {*_SKIPPED_FOLDERS, "requirements"}:
            continue
        if not path.is_file() or path.suffix not in _TEXT_SUFFIXES or "build" in inside.parts:
            continue
        if path.suffix == ".c" and path.with_suffix(".pyx").exists():  # compiled from it
            continue
        if path != Path(__file__) and not _FOREIGN & {*inside.parts}:
            yield path


RULES: Final[tuple[Rule, ...]] = (
    mirrored_tests,
    module_shape,
    small_parts,
    nothing_left_over,
    clear_names,
    links_resolve,
    mentions_resolve,
    nothing_from_outside,
    no_dead_modules,
    requirements_pinned,
    cancelled_waits_end,
    named_modules_exist,
)


def main(root: Path = ROOT) -> int:
    """Print every breach; 1 if there is one."""
    breaches = [line for rule in RULES for line in rule(root)]
    print("\n".join(breaches) if breaches else "tidy: the house rules are kept")
    return 1 if breaches else 0


if __name__ == "__main__":
    gc.disable()  # trees are kept: collections would walk them again and again
    sys.exit(main())
