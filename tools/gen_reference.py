"""Write errors, limits, settings and statistics of docs/reference; with --check only compare.

Invariants: reads source text only (nothing is imported, so that no extra is needed), and the
same tree gives the same bytes.

Deliberately elsewhere: the other pages of docs/reference are written by hand.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["errors_page", "limits_page", "main", "settings_page", "statistics_page"]

ROOT: Final = Path(__file__).resolve().parent.parent
_LIMIT_NAME = re.compile(r"_(MAX|MIN|DEFAULT|BYTES|ENTRIES|SHARE|SECONDS|S|MS|NS)$")
_NO_EDIT = (
    "<!-- Written by tools/gen_reference.py; change the code and run `make reference`. -->\n"
)
_OPERATORS: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: int(a) << int(b),
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
}


class Limit(NamedTuple):
    """One named bound: where it stands, its value, what the text below or beside it says."""

    module: str
    name: str
    value: float
    note: str


# ---- errors


def errors_page(root: Path) -> str:
    """The tree of exceptions and every code raised, with the modules that raise it."""
    tree = ast.parse((root / "src/millstream/errors.py").read_text())
    lines = [
        "# Errors\n",
        _NO_EDIT,
        "Every error raised on purpose is a `MillstreamError` with a `code` for programs, a "
        "`retry` and one sentence for people. The class says whose fault it is; codes are part of "
        "the public contract and do not change. `retry` is `never`, `same` (at once), "
        "`refresh_map` (with a new partition map) or `backoff` (later).\n",
        "## Classes\n",
        "| class | below | code unless said | retry | meaning |",
        "| --- | --- | --- | --- | --- |",
        *_class_rows(tree),
        "",
        "## Codes\n",
        "| code | raised as | in |",
        "| --- | --- | --- |",
    ]
    for code, classes, modules in _codes(root, _defaults(tree)):
        lines.append(f"| `{code}` | {', '.join(classes)} | {', '.join(modules)} |")
    return "\n".join(lines) + "\n"


def _class_rows(tree: ast.Module) -> Iterator[str]:
    for node, code, retry in _classes(tree):
        base = node.bases[0].id if isinstance(node.bases[0], ast.Name) else ""
        meaning = (ast.get_docstring(node) or "").splitlines()[0]
        yield f"| `{node.name}` | {base} | `{code}` | {retry} | {meaning} |"


def _classes(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, str, str]]:
    """Each exception with the code and retry it has by its own or its bases' definition."""
    known: dict[str, tuple[str, str]] = {"Exception": ("", "never")}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not isinstance(node.bases[0], ast.Name):
            continue
        code, retry = known[node.bases[0].id]
        for line in node.body:
            target, value = _assigned(line)
            if isinstance(value, ast.Constant) and target == "default_code":
                code = str(value.value)
            elif isinstance(value, ast.Constant) and target == "default_retry":
                retry = str(value.value)
        known[node.name] = (code, retry)
        yield node, code, retry


def _defaults(tree: ast.Module) -> dict[str, str]:
    return {node.name: code for node, code, _ in _classes(tree)}


def _codes(root: Path, defaults: dict[str, str]) -> Iterator[tuple[str, list[str], list[str]]]:
    found: dict[str, tuple[set[str], set[str]]] = {}
    for path, module in _modules(root):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if (default := defaults.get(node.func.id)) is None:
                continue
            classes, modules = found.setdefault(_said_code(node) or default, (set(), set()))
            classes.add(f"`{node.func.id}`")
            modules.add(f"`{module}`")
    for code in sorted(found):
        yield code, sorted(found[code][0]), sorted(found[code][1])


def _said_code(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""


# ---- limits


def limits_page(root: Path) -> str:
    """Every named bound of the source, shared ones first."""
    limits = list(_limits(root))
    shared = [limit for limit in limits if limit.module == "model.limits"]
    others = [limit for limit in limits if limit.module != "model.limits"]
    lines = [
        "# Limits\n",
        _NO_EDIT,
        "Every queue, buffer, batch, retry and wait has a named bound. The unit is the last word "
        "of the name: bytes, `S` seconds, `MS` milliseconds; otherwise a count.\n",
        "## Shared by all parts\n",
        "| name | value | meaning |",
        "| --- | --- | --- |",
        *(f"| `{one.name}` | {_shown(one)} | {one.note} |" for one in shared),
        "",
        "## Of one part\n",
        "| module | name | value | meaning |",
        "| --- | --- | --- | --- |",
        *(f"| `{one.module}` | `{one.name}` | {_shown(one)} | {one.note} |" for one in others),
    ]
    return "\n".join(lines) + "\n"


def _limits(root: Path) -> Iterator[Limit]:
    for path, module in _modules(root):
        text = path.read_text()
        known: dict[str, float] = {}
        body = ast.parse(text).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            name, expression = _assigned(node)
            value = _value(expression, known)
            if not name.isupper() or value is None:
                continue
            known[name] = value
            if module == "model.limits" or _LIMIT_NAME.search(name):
                note = _note(after) or _comment_beside(text, node)
                yield Limit(module, name.lstrip("_"), value, note)


def _assigned(node: ast.stmt) -> tuple[str, ast.expr | None]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    return "", None


def _value(node: ast.expr | None, known: dict[str, float]) -> float | None:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]  # the line above says int or float
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, known), _value(node.right, known)
        if left is not None and right is not None:
            return _OPERATORS[type(node.op)](left, right)
    return None


def _note(after: ast.stmt | None) -> str:
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return " ".join(str(after.value.value).split())
    return ""


def _comment_beside(text: str, node: ast.stmt) -> str:
    line = text.splitlines()[(node.end_lineno or node.lineno) - 1]
    _, mark, comment = line.partition("  # ")
    return comment.strip() if mark else ""


def _shown(limit: Limit) -> str:
    if isinstance(limit.value, float) and not limit.value.is_integer():
        return f"{limit.value:g}"
    value = int(limit.value)
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if "BYTES" in limit.name and value >= 1 << power and value % (1 << power) == 0:
            return f"{value >> power:,} {unit}"
    return f"{value:,}"


# ---- settings


def settings_page(root: Path) -> str:
    """Every configuration key of coordination."""
    lines = [
        "# Settings of coordination\n",
        _NO_EDIT,
        "Keys of `CONFIG GET|SET|UNSET` "
        "([commands](coordination-commands.md#configuration-and-limits)) and where each is set: "
        "for an element and what is below it, a namespace, a group (`CONFIG SET GROUP`), all "
        "groups (`CONFIG SET GLOBAL`, in the system group), or a node, when it starts. Keys of "
        "elements and namespaces can be set for a group, too. Times are written with "
        "`ms`, `s`, `minutes` or `hours`, sizes in bytes, with `KB` or `MB`.\n",
        "| key | set for | kind | range | by itself | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
        *_setting_rows(root),
    ]
    return "\n".join(lines) + "\n"


def _setting_rows(root: Path) -> Iterator[str]:
    source = root / "src/millstream"
    known: dict[str, float] = {}
    keys: list[ast.Call] = []
    meanings: dict[bytes, str] = {}
    for path in (
        source / "vsr/core/client_table.py",
        source / "coordination/core/namespace/state/keys.py",
    ):
        for node in ast.parse(path.read_text()).body:
            name, expression = _assigned(node)
            value = _value(expression, known)
            if value is not None:
                known[name] = value
            if name == "MEANINGS" and expression is not None:
                meanings = ast.literal_eval(expression)
            if name == "_ALL" and isinstance(expression, ast.Tuple):
                keys = [one for one in expression.elts if isinstance(one, ast.Call)]
    for call in keys:
        name_bytes = ast.literal_eval(call.args[0])
        owner = ast.unparse(call.args[1]).rpartition(".")[2].lower()
        shown = " | ".join((owner, *_range_and_default(call, known)))
        yield f"| `{name_bytes.decode()}` | {shown} | {meanings[name_bytes]} |"


def _range_and_default(call: ast.Call, known: dict[str, float]) -> tuple[str, str, str]:
    """Return kind, range and default of a key."""
    kind = ast.unparse(call.func).lstrip("_")
    if kind in ("time", "count", "size"):
        numbers = [int(_value(node, known) or 0) for node in call.args[2:5]]
        unit = {"time": " ms", "count": "", "size": " bytes"}[kind]
        default, least, most = (f"{number:,}{unit}" for number in numbers)
        return kind, f"{least} to {most}", default
    if kind == "truth":
        return "truth", "`true`, `false`", "`false`"
    default = ast.literal_eval(call.args[2]).decode() if len(call.args) > 2 else ""
    if kind == "Key":
        return "text", ast.literal_eval(call.args[4]), f"`{default}`"
    return "text", "", f"`{default}`" if default else ""


# ---- statistics


def statistics_page(root: Path) -> str:
    """Every figure that a node publishes, of itself and of its buckets."""
    tables = dict(_figure_tables(root))
    lines = [
        "# Statistics\n",
        _NO_EDIT,
        "What a node says of itself: at `/_metrics` in the form of Prometheus, each name with "
        "`millstream_` before it, and over the kv port by [STAT](wire/stat.md). A counter only "
        "grows while the engine runs; nothing is reset.\n",
        "## Of the node\n",
        *_figure_rows(tables["NODE_FIGURES"]),
        "",
        "## Of a bucket\n",
        "With the label `bucket`; `refused_total` also with `status`.\n",
        *_figure_rows(tables["BUCKET_FIGURES"]),
    ]
    return "\n".join(lines) + "\n"


def _figure_tables(root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    path = root / "src/millstream/kv/core/statistics.py"
    for node in ast.parse(path.read_text()).body:
        name, value = _assigned(node)
        if name.endswith("_FIGURES") and value is not None:
            yield name, ast.literal_eval(value)


def _figure_rows(figures: dict[str, str]) -> Iterator[str]:
    yield "| name | kind | meaning |"
    yield "| --- | --- | --- |"
    for name, meaning in figures.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        kind = "histogram" if meaning.startswith("Distribution") else kind
        yield f"| `{name}` | {kind} | {meaning} |"


# ---- all


def _modules(root: Path) -> Iterator[tuple[Path, str]]:
    source = root / "src" / "millstream"
    for path in sorted(source.rglob("*.py")):
        yield path, ".".join(path.relative_to(source).with_suffix("").parts)


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write the pages, or say which differ."""
    stale = 0
    pages = {
        "errors.md": errors_page(root),
        "limits.md": limits_page(root),
        "coordination-settings.md": settings_page(root),
        "statistics.md": statistics_page(root),
    }
    for name, page in pages.items():
        path = root / "docs" / "reference" / name
        if path.exists() and path.read_text() == page:
            continue
        if "--check" in arguments:
            print(f"{path.relative_to(root)} is not what the code says: run `make reference`")
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page)
            print(f"wrote {path.relative_to(root)}")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
