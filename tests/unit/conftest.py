"""Fixtures of all unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import accelerated
from millstream.node import indexes
from millstream.node.settings import LISTENERS, Address, Settings

indexes.TOLD_S_MAX = 60.0  # type: ignore[misc] # beside other tests processes start slowly


@pytest.fixture(scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a module's tests twice: on the Python functions, and on their compiled twins.

    State machines, which cannot run twice, run on what is installed. That there is nothing
    compiled is told by the tests that compare both.
    """
    default = "compiled" if accelerated.is_installed() else "python"
    wanted: str = getattr(request, "param", default)
    assert accelerated.use_compiled(wanted == "compiled")
    yield wanted
    accelerated.use_compiled(default == "compiled")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        variants = ["python", "compiled"] if accelerated.is_installed() else ["python"]
        metafunc.parametrize("variant", variants, indirect=True, scope="module")


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., Settings]:
    """Settings of a small node on free ports."""

    def make(**fields: Any) -> Settings:
        free = Address("127.0.0.1", 0)
        closed: dict[str, Any] = dict.fromkeys(LISTENERS)
        chosen = {"data": str(tmp_path / "node"), "kv": free, "http": free, **fields}
        return Settings(**{**closed, **chosen})

    return make
