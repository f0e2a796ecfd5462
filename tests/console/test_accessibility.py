"""Every page in both themes: WCAG AA by axe-core, no error, nothing wider than a small screen."""

import pytest
from playwright.sync_api import expect

from support.console.console import PAGES, THEMES, Console
from support.http.http_calls import done
from support.node.node_process import NodeProcess


@pytest.fixture(scope="module", autouse=True)
def _content(node: NodeProcess) -> None:
    views = {"by_delay": {"map": "function (doc) { emit(doc.delay, 1) }", "reduce": "_sum"}}
    done(node, "PUT", "/flights/_design/delays", {"views": views})
    docs = [{"_id": f"flight:{n}", "delay": n} for n in range(150)]
    done(node, "POST", "/flights/_bulk_docs", {"docs": docs})


MORE = (
    "documents/flights",
    "documents/flights/new",
    "documents/flights/import",
    "documents/flights/doc/flight:1",
)


@pytest.mark.parametrize("address", [*PAGES, *MORE])
def test_a_page_is_accessible_in_both_themes(console: Console, address: str) -> None:
    page = console.open(address)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        faults = console.accessibility_faults()
        assert not faults, f"{theme}: " + "\n".join(faults)
    page.set_viewport_size({"width": 360, "height": 800})
    expect(page.locator("h1").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_dialog_is_accessible(console: Console) -> None:
    page = console.open("documents")
    page.get_by_role("button", name="Create bucket").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert console.accessibility_faults() == []
