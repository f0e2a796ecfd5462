"""Content that wants to be more than content: shown as text, and nothing of it runs."""

from urllib.parse import quote

from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console
from support.http.http_calls import done
from support.node.node_process import NodeProcess

MARKUP = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
NAMES = (
    MARKUP,
    "${alert(1)}",
    "javascript:alert(1)",
    "שלום \u202eright to left",
    "a/b?c#d%41 +&",
    "__proto__",
)


def test_ids_keys_and_values_are_text(console: Console, node: NodeProcess, bucket: str) -> None:
    docs = [
        {"_id": name, MARKUP: MARKUP, "nested": {"__proto__": {"x": 1}}}
        for name in NAMES
        if name[0] != "_"
    ]
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": docs})
    page = console.open(f"documents/{bucket}?full=1")
    for document in docs:
        name = document["_id"]
        link = page.get_by_role("link", name=name, exact=True)
        expect(link).to_be_visible()
        link.click()
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_have_text(name)
        expect(page.get_by_label("Content of the document")).to_contain_text("<script>alert(2)")
        page.go_back()
        expect(page.get_by_role("heading", name=bucket)).to_be_visible()
    assert page.evaluate("({}).x === undefined")
    assert page.locator("main img, main script").count() == 0


def test_an_address_cannot_inject(console: Console, bucket: str) -> None:
    for address in (
        f"documents/{quote(MARKUP, safe='')}",
        f"documents/{bucket}/doc/%zz%E0",
        f"{quote(MARKUP)}/x",
    ):
        page = console.open(address)
        assert page.locator("main img, main script").count() == 0
    console.open(f"documents/{bucket}?prefix={quote(MARKUP)}")
    expect(console.page.get_by_label("Ids that begin with")).to_have_value(MARKUP)


def test_a_large_value_does_not_stop_the_page(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    done(node, "PUT", f"/{bucket}/long", {"text": "<b>x</b>" * 2**17})
    done(node, "PUT", f"/{bucket}/larger", {"lines": ["y" * 1000] * 3000})
    page = console.open(f"documents/{bucket}?full=1")
    expect(page.get_by_role("link", name="long")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("link", name="long").click()
    expect(page.get_by_label("Content of the document")).to_contain_text(
        "<b>x</b>", timeout=WAIT_MS
    )
    page = console.open(f"documents/{bucket}/doc/larger")
    expect(page.get_by_role("button", name="Edit it all the same")).to_be_visible(timeout=WAIT_MS)
