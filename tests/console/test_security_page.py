"""Security: after the first user the node asks for log-ins; users are changed and removed."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console, OpenConsole
from support.http.http_calls import call, done
from support.node.node_process import FREE, NodeProcess

MARKUP = "<img src=x onerror=alert(1)>"
_ADMIN = "Basic " + base64.b64encode(b"root:root-secret").decode()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node without users: this test gives it some."""
    with NodeProcess(tmp_path / "node", "--bucket", "flights:4", "--peer", FREE) as running:
        yield running


def _users(node: NodeProcess) -> dict[str, list[str]]:
    request = Request(f"{node.http}/_millstream/users", headers={"Authorization": _ADMIN})
    with urlopen(request) as answer:
        return {one["name"]: one["roles"] for one in json.load(answer)["users"]}


def test_users_are_added_changed_and_removed(
    open_console: OpenConsole, fresh: NodeProcess
) -> None:
    console = open_console(fresh.http)
    page = console.open("security")
    expect(page.get_by_text("No users", exact=True)).to_be_visible(timeout=WAIT_MS)
    assert console.accessibility_faults() == []
    page.get_by_role("button", name="Add user").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("root")
    page.get_by_label("Password").fill("root-secret")
    page.get_by_role("button", name="Add", exact=True).click()

    expect(page.get_by_role("button", name="Log in")).to_be_visible(timeout=WAIT_MS)
    page.get_by_label("User").fill("root")
    page.get_by_label("Password").fill("root-secret")
    page.get_by_role("button", name="Log in").click()
    expect(console.row("Users", "root")).to_contain_text("(you)", timeout=WAIT_MS)

    page.get_by_role("button", name="Add user").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("anna")
    page.get_by_label("Password").fill("anna-secret")
    page.get_by_label("Rights").fill("fly:flights")
    expect(page.get_by_text("fly:flights is no right.")).to_be_visible()
    page.get_by_label("Rights").fill("read:flights, write:flights")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(console.row("Users", "anna")).to_contain_text("write:flights", timeout=WAIT_MS)
    assert _users(fresh)["anna"] == ["read:flights", "write:flights"]
    assert console.accessibility_faults() == []

    _sees_only_what_she_may(open_console(fresh.http))

    page.get_by_role("button", name="Remove root").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("to confirm").fill("root")
    dialog.get_by_role("button", name="Remove user").click()
    expect(dialog.get_by_role("alert")).to_contain_text("administrator", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Change anna").click()
    page.get_by_label("Administrator").check()
    page.get_by_label("Rights").fill("read:*, group:pilots")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(console.row("Users", "anna")).to_contain_text("read:*", timeout=WAIT_MS)
    assert _users(fresh)["anna"] == ["admin", "group:pilots", "read:*"]

    page.get_by_role("button", name="Remove anna").click()
    console.confirm("anna", "Remove user")
    expect(console.row("Users", "anna")).to_have_count(0, timeout=WAIT_MS)
    assert list(_users(fresh)) == ["root"]


def _sees_only_what_she_may(console: Console) -> None:
    page = console.page
    page.goto("/_console/#/query/indexes")
    page.get_by_label("User").fill("anna")
    page.get_by_label("Password").fill("anna-secret")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("Who has the right design")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("button", name="Create index")).to_have_count(0)
    pages = page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link")).to_have_text(["Overview", "Documents", "Query"])


def test_failed_logins_are_shown_as_they_were_typed(
    open_console: OpenConsole, fresh: NodeProcess
) -> None:
    root = {"name": "root", "password": "root-secret", "roles": ["admin"]}
    done(fresh, "POST", "/_millstream/users", root)
    for _ in range(3):
        assert call(fresh, "GET", "/_session", login=(MARKUP, "guessed"))[0] == 401
    console = open_console(fresh.http)
    page = console.page
    page.goto("/_console/#/security")
    page.get_by_label("User").fill("root")
    page.get_by_label("Password").fill("root-secret")
    page.get_by_role("button", name="Log in").click()
    row = console.row("Failed log-ins", MARKUP)
    expect(row).to_contain_text("127.0.0.1", timeout=WAIT_MS)
    expect(row.get_by_role("cell", name="3", exact=True)).to_be_visible()
    expect(page.get_by_text("No certificates")).to_be_visible()
    assert console.accessibility_faults() == []
