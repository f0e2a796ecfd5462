"""The generated pages say what the code says."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from millstream.coordination.core.namespace.state.keys import KEYS, MEANINGS

ROOT = Path(__file__).parents[3]

ERRORS = '''
class MillstreamError(Exception):
    """Base."""

    default_code = "error"
    default_retry: Retry = "never"


class RoutingError(MillstreamError):
    """Elsewhere.

    More.
    """

    default_code = "not_here"
    default_retry: Retry = "refresh_map"


class LostError(RoutingError):
    """Lost."""
'''
RAISER = """
def f():
    raise LostError("gone", code="lost_it")


def g():
    raise RoutingError("gone")
"""
LIMITS = '''
A: Final = 2
SIZE_BYTES_MAX: Final = A * 1024**2
"""How large."""
WAIT_S: Final = 0.5  # how long
lower = 3
'''


FIGURES = """
NODE_FIGURES: Final = {"beats_total": "Heart beats"}
BUCKET_FIGURES: Final[Mapping[str, str]] = {
    "leaks": "Holes now",
    "sizes": "Distribution of their sizes",
}
"""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_reference", ROOT / "tools/gen_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = tmp_path / "src/millstream"
    (source / "model").mkdir(parents=True)
    (source / "errors.py").write_text(ERRORS)
    (source / "raiser.py").write_text(RAISER)
    (source / "model" / "limits.py").write_text(LIMITS)
    (source / "part.py").write_text(LIMITS)
    (source / "kv/core").mkdir(parents=True)
    (source / "kv/core/statistics.py").write_text(FIGURES)
    keys = "coordination/core/namespace/state/keys.py"
    for name in (keys, "vsr/core/client_table.py"):
        (source / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / "src/millstream" / name, source / name)
    return tmp_path


def test_errors_inherit_code_and_retry(generator: ModuleType, tree: Path) -> None:
    page = generator.errors_page(tree)
    assert "| `RoutingError` | MillstreamError | `not_here` | refresh_map | Elsewhere. |" in page
    assert "| `LostError` | RoutingError | `not_here` | refresh_map | Lost. |" in page
    assert "| `lost_it` | `LostError` | `raiser` |" in page
    assert "| `not_here` | `RoutingError` | `raiser` |" in page


def test_limits_are_computed_and_explained(generator: ModuleType, tree: Path) -> None:
    page = generator.limits_page(tree)
    assert "| `SIZE_BYTES_MAX` | 2 MiB | How large. |" in page
    assert "| `part` | `WAIT_S` | 0.5 | how long |" in page
    assert "lower" not in page.split("## Shared")[1]


def test_statistics_are_of_the_node_and_of_buckets(generator: ModuleType, tree: Path) -> None:
    node, bucket = generator.statistics_page(tree).split("## Of a bucket")
    assert "| `beats_total` | counter | Heart beats |" in node
    assert "| `leaks` | gauge | Holes now |" in bucket
    assert "| `sizes` | histogram | Distribution of their sizes |" in bucket


def test_check_finds_a_stale_page(generator: ModuleType, tree: Path) -> None:
    assert generator.main(["--check"], tree) == 1
    assert generator.main([], tree) == 0
    assert generator.main(["--check"], tree) == 0
    (tree / "docs/reference/limits.md").write_text("old")
    assert generator.main(["--check"], tree) == 1


def test_the_pages_of_this_tree_are_up_to_date(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0, "run `make reference`"


def test_every_setting_has_a_row_and_a_meaning(generator: ModuleType) -> None:
    page = generator.settings_page(ROOT)
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| `")]
    assert {row[0][3:-1].encode() for row in rows} == KEYS.keys() == MEANINGS.keys()
    assert "| `GROUP.PIPELINE` | group | count | 1 to 64 | 4 |" in page
    assert "| `LIMIT.DATA` | element | size | 0 bytes to 1,048,576 bytes |" in page
