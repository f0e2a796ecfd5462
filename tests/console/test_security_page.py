"""Security: after the first user the node asks for log-ins; users are changed and removed."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect

from support.console.console import WAIT_MS, OpenConsole
from support.node.node_process import FREE, NodeProcess

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

    page.get_by_role("button", name="Change anna").click()
    page.get_by_label("Rights").fill("read:*")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(console.row("Users", "anna")).to_contain_text("read:*", timeout=WAIT_MS)
    assert _users(fresh)["anna"] == ["read:*"]

    page.get_by_role("button", name="Remove root").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("to confirm").fill("root")
    dialog.get_by_role("button", name="Remove user").click()
    expect(dialog.get_by_role("alert")).to_contain_text("administrator", timeout=WAIT_MS)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Remove anna").click()
    console.confirm("anna", "Remove user")
    expect(console.row("Users", "anna")).to_have_count(0, timeout=WAIT_MS)
    assert list(_users(fresh)) == ["root"]
