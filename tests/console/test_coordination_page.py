"""Coordination: a lock is taken in the shell and seen in the tree; an element is watched."""

from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console

MARKUP = "<b>x</b>"


def _say(console: Console, line: str) -> None:
    page = console.page
    page.get_by_label("Command").fill(line)
    page.keyboard.press("Enter")
    expect(page.locator(".shell .said").last).to_have_text(f"› {line}", timeout=WAIT_MS)
    expect(page.locator(".shell pre.failed")).to_have_count(0)


def test_a_lock_of_the_shell_is_seen(console: Console) -> None:
    page = console.open("coordination/shell")
    _say(console, "CREATENAMESPACE /app")
    _say(console, f"CREATE BINARY /app/one '{MARKUP}'")
    _say(console, "GET /app/one")
    expect(page.locator(".shell pre").last).to_contain_text(MARKUP)
    page.get_by_label("Command").press("ArrowUp")
    expect(page.get_by_label("Command")).to_have_value("GET /app/one")

    page.get_by_role("link", name="Namespaces").click()
    page.get_by_role("button", name="Open /app").click()
    page.get_by_role("link", name="one", exact=True).click()
    expect(page.locator("main pre")).to_have_text(MARKUP, timeout=WAIT_MS)
    assert console.accessibility_faults() == []
    page.get_by_role("link", name="Shell").click()
    _say(console, "LOCK WRITE /app/one")
    page.go_back()
    expect(page.get_by_role("cell", name="holds")).to_be_visible(timeout=WAIT_MS)


def test_an_element_is_watched(console: Console) -> None:
    page = console.open("coordination/shell")
    _say(console, "CREATENAMESPACE /seen")
    _say(console, "CREATE BINARY /seen/one 1")
    page.evaluate("location.hash = '#/coordination/tree?path=/seen/one'")
    page.get_by_label("Show what happens").check()
    expect(page.get_by_text("watching", exact=True)).to_be_visible(timeout=WAIT_MS)
    page.evaluate(
        """() => fetch('/_millstream/coordination/command', {method: 'POST',
        headers: {'Content-Type': 'application/json'},
        body: JSON.stringify({words: ['PUT', '/seen/one', '<i>2</i>'], session: 'test'})})"""
    )
    expect(page.locator(".changes li").first).to_contain_text("<i>2</i>", timeout=WAIT_MS)


def test_the_groups_of_a_node(console: Console) -> None:
    page = console.open("coordination/groups")
    expect(page.get_by_role("region", name="Members of group").first).to_contain_text(
        "this node", timeout=WAIT_MS
    )
