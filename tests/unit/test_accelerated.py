from __future__ import annotations

import hashlib
import inspect
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import millstream.coordination.core.namespace.tables
import millstream.coordination.core.sorted_map
import millstream.kv.core.session.session
import millstream.storage.core.records
import millstream.vsr.core.disk.durable_steps  # noqa: F401
from millstream import accelerated

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "accelerator"


def digest_of_functions() -> str:
    functions = {f for twin in accelerated.twins() for f in (twin.python, *twin.also)}
    texts = sorted(inspect.getsource(function) for function in functions)
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:12]


def test_the_specification_is_that_of_the_functions() -> None:
    assert digest_of_functions() == accelerated.SPECIFICATION, (
        "a function with a compiled twin changed: make the twin equal "
        "(accelerator/src/millstream_accelerator/twins.pyx), then write this digest there and in "
        "millstream/accelerated.py; see docs/design/0007-accelerator.md"
    )


def test_the_package_was_written_for_this_specification() -> None:
    source = (FOLDER / "src/millstream_accelerator/twins.pyx").read_text()
    found = re.search(r'^SPECIFICATION = "(\w+)"$', source, re.MULTILINE)
    assert found
    assert found[1] == accelerated.SPECIFICATION


def test_the_extra_names_the_version_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    wanted = f"{project['name']}=={project['version']}"
    assert wanted in extras["optional-dependencies"]["fast"]


def test_there_are_fourteen_and_their_owners_have_the_chosen_ones(variant: str) -> None:
    found = {twin.name: twin for twin in accelerated.twins()}
    assert set(found) == {
        "receive", "sweep", "freeze", "unlogged_keys", "keys_within",
        "encode_many", "cut_frames",
        "decode_entries", "check_chain", "encode_log", "chain", "decode_body",
        "SortedMap", "Table",
    }  # fmt: skip
    for name, twin in found.items():
        chosen = twin.compiled if variant == "compiled" else twin.python
        assert getattr(twin.owner, name) is chosen


@pytest.mark.parametrize(
    ("variable", "package", "state"),
    [
        ("", SimpleNamespace(SPECIFICATION=accelerated.SPECIFICATION), "compiled"),
        ("0", SimpleNamespace(SPECIFICATION=accelerated.SPECIFICATION), "compiled"),
        ("1", SimpleNamespace(SPECIFICATION=accelerated.SPECIFICATION), "MILLSTREAM_PURE"),
        ("", SimpleNamespace(SPECIFICATION="older"), "another version"),
        ("", None, "not installed"),
    ],
)
def test_the_package_is_used_if_it_fits_and_is_wanted(
    monkeypatch: pytest.MonkeyPatch, variable: str, package: object, state: str
) -> None:
    monkeypatch.setenv("MILLSTREAM_PURE", variable)
    monkeypatch.setitem(
        sys.modules, "millstream_accelerator", package and SimpleNamespace(twins=package)
    )
    found, why = accelerated.load()
    assert (found is not None) == (state == "compiled")
    assert state in why


def test_a_twin_that_does_not_know_its_classes_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bind_name(owner: object, python: object) -> object:
        raise TypeError("no such slot")

    owner = SimpleNamespace(name=print)
    monkeypatch.setattr(accelerated, "_package", SimpleNamespace(bind_name=bind_name))
    monkeypatch.setattr(accelerated, "_twins", [])
    accelerated.bind(owner, "name")
    assert owner.name is print
    assert accelerated.use_compiled(False)
    assert not accelerated.use_compiled(True)
