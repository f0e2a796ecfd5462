"""Copies the console's third-party files from npm into the tree: `python tools/vendor_console.py`.

Each package is one ES module (and style sheets). The script:
1. gets the pinned version with `npm pack` and compares it with the pinned integrity hash;
2. rewrites imports by package name to files beside, so that browsers need no import map;
3. writes `vendor/licences.txt` and `vendor/packages.json` (name, version, integrity, licence,
   SHA-256 of each written file).

`--check` compares the files in the tree with `packages.json`, without network.
"""

import argparse
import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VENDOR: Final = Path(__file__).parents[1] / "src/millstream/console/static/vendor"
_PINNED: Final = VENDOR / "packages.json"
_PACKAGES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "preact": (
        "10.29.8", {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"}
    ),
    "htm": ("3.1.1", {"dist/htm.mjs": "htm.js"}),
    "uplot": (
        "1.6.32", {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"}
    ),
    "@codemirror/state": ("6.7.6", {"dist/index.js": "codemirror-state.js"}),
    "@codemirror/view": ("6.43.15", {"dist/index.js": "codemirror-view.js"}),
    "@codemirror/language": ("6.13.1", {"dist/index.js": "codemirror-language.js"}),
    "@codemirror/streamparser": ("6.0.0", {"dist/index.js": "codemirror-streamparser.js"}),
    "@codemirror/commands": ("6.11.1", {"dist/index.js": "codemirror-commands.js"}),
    "@codemirror/autocomplete": ("6.20.4", {"dist/index.js": "codemirror-autocomplete.js"}),
    "@codemirror/lint": ("6.9.8", {"dist/index.js": "codemirror-lint.js"}),
    "@codemirror/lang-json": ("6.0.2", {"dist/index.js": "codemirror-lang-json.js"}),
    "@codemirror/lang-javascript": ("6.2.5", {"dist/index.js": "codemirror-lang-javascript.js"}),
    "@lezer/common": ("1.5.5", {"dist/index.js": "lezer-common.js"}),
    "@lezer/highlight": ("1.2.5", {"dist/index.js": "lezer-highlight.js"}),
    "@lezer/lr": ("1.4.12", {"dist/index.js": "lezer-lr.js"}),
    "@lezer/json": ("1.0.3", {"dist/index.js": "lezer-json.js"}),
    "@lezer/javascript": ("1.5.6", {"dist/index.js": "lezer-javascript.js"}),
    "style-mod": ("4.1.5", {"src/style-mod.js": "style-mod.js"}),
    "w3c-keyname": ("2.2.8", {"index.js": "w3c-keyname.js"}),
    "crelt": ("1.0.7", {"index.js": "crelt.js"}),
    "@marijn/find-cluster-break": ("1.0.4", {"src/index.js": "find-cluster-break.js"}),
}  # fmt: skip
"""Package -> version, and the file it is taken from -> the file in the tree."""
_IMPORT: Final = re.compile(
    r"""((?:^|[;}])\s*(?:import\b|export\b[^;"'()=]*?\bfrom\b)[^;"'()=]*?)"""
    r"""(["'])([^"'./\s][^"'\s]*)\2""",
    re.MULTILINE,
)
_MAP_COMMENT: Final = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")
_LICENCE_NAMES: Final = ("LICENSE", "LICENSE.md", "LICENCE", "LICENSE.txt")


def _module_names() -> dict[str, str]:
    """Return what an import may name -> the file in the tree."""
    names = {
        package: next(name for name in files.values() if name.endswith(".js"))
        for package, (_, files) in _PACKAGES.items()
    }
    return names | {"preact/hooks": "preact-hooks.js"}


def _rewritten(text: str, names: dict[str, str]) -> str:
    """Return a module whose imports by package name are imports of files beside it."""

    def beside(found: re.Match[str]) -> str:
        if found[3] not in names:
            raise SystemExit(f"no package provides the import {found[3]!r}: add it to _PACKAGES")
        return f"{found[1]}{found[2]}./{names[found[3]]}{found[2]}"

    return _MAP_COMMENT.sub("\n", _IMPORT.sub(beside, text))


def _packed(package: str, version: str, directory: Path) -> Path:
    """Return the archive of a package, fetched by npm."""
    found = subprocess.run(
        ["npm", "pack", "--silent", f"{package}@{version}"],
        cwd=directory, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return directory / found.stdout.split()[-1]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _vendor(*, is_upgrade: bool) -> None:
    pinned = json.loads(_PINNED.read_text()) if _PINNED.exists() else {}
    names, licences, records = _module_names(), list[str](), dict[str, object]()
    with tempfile.TemporaryDirectory() as temporary:
        for package, (version, files) in _PACKAGES.items():
            archive = _packed(package, version, Path(temporary))
            digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            integrity = f"sha512-{digest}"
            known = pinned.get(package, {})
            if not is_upgrade and known.get("integrity") != integrity:
                raise SystemExit(
                    f"{package} {version} is not what packages.json pins: "
                    "pass --upgrade if its version was changed on purpose"
                )
            with tarfile.open(archive) as tar:
                read = {m.name.partition("/")[2]: m for m in tar.getmembers() if m.isfile()}

                def text_of(name: str, tar: tarfile.TarFile = tar) -> str:
                    member = tar.extractfile(read[name])  # noqa: B023 - called in this turn
                    assert member is not None
                    return member.read().decode()

                licence = json.loads(text_of("package.json"))["license"]
                found = next((name for name in _LICENCE_NAMES if name in read), None)
                if found is None:
                    raise SystemExit(f"{package} has no licence file")
                licences.append(f"{package} {version} ({licence})\n\n{text_of(found).strip()}\n")
                written = {}
                for source, target in files.items():
                    text = text_of(source)
                    text = _rewritten(text, names) if target.endswith(".js") else text
                    (VENDOR / target).write_text(text)
                    written[target] = _digest(text.encode())
            records[package] = {
                "version": version, "integrity": integrity, "licence": licence, "files": written,
            }  # fmt: skip
    rule = "\n" + "-" * 72 + "\n\n"
    (VENDOR / "licences.txt").write_text(rule.join(licences))
    _PINNED.write_text(json.dumps(records, indent=1) + "\n")


def _check() -> list[str]:
    """Return what differs between the tree and `packages.json`."""
    records, faults, known = json.loads(_PINNED.read_text()), list[str](), set[str]()
    for package, (version, files) in _PACKAGES.items():
        record = records.get(package, {})
        if record.get("version") != version or set(record["files"]) != set(files.values()):
            faults.append(f"{package}: packages.json names another version or other files")
        for name, digest in record.get("files", {}).items():
            known.add(name)
            if _digest((VENDOR / name).read_bytes()) != digest:
                faults.append(f"{name} is not as {package} {version} has it")
    own = {"packages.json", "licences.txt"}
    faults += [
        f"{path.name} belongs to no package"
        for path in VENDOR.iterdir()
        if path.name not in known | own
    ]
    return faults


def main() -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only, without network")
    parser.add_argument("--upgrade", action="store_true", help="pin what npm has now")
    arguments = parser.parse_args()
    if not arguments.check:
        _vendor(is_upgrade=arguments.upgrade)
    faults = _check()
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
