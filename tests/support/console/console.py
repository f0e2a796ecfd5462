"""The console in a browser, as a test sees it: opens pages, and keeps what went wrong in them.

Invariants:
1. Any error of a script, any violation of the Content-Security-Policy, any file of the console
   that is missing and any answer with 500 is a fault; `check` fails if there was one. A status
   such as 409 that a page expects, and a node that does not answer, are none.
2. A page counts as open once its heading is there and nothing is loading.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Response, expect

PAGES: Final = (
    "overview", "cluster", "documents", "query", "streams", "pipelines", "sites", "coordination",
    "security", "logs", "support",
)  # fmt: skip
THEMES: Final = ("light", "dark")
BROWSER_ARGUMENTS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WAIT_MS: Final = 30_000
"""Far longer than anything takes; a busy machine may be slow."""
_AXE: Final = Path(__file__).parents[2] / "npm/node_modules/axe-core/axe.min.js"
_EXPECTED: Final = ("Failed to load resource", "net::ERR_")


class Console:
    """One tab with a window of its own."""

    def __init__(
        self, browser: Browser, url: str, *, theme: str = "light", height: int = 900
    ) -> None:
        self._context = browser.new_context(
            viewport={"width": 1280, "height": height}, color_scheme=theme, base_url=url,  # type: ignore[arg-type]
            accept_downloads=True, reduced_motion="reduce",
        )  # fmt: skip
        self._context.set_default_timeout(WAIT_MS)
        self.faults: list[str] = []
        self.page: Page = self._context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("response", self._on_response)
        self.page.on("dialog", self._on_dialog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(one in message.text for one in _EXPECTED):
            self.faults.append(f"console: {message.text}")

    def _on_response(self, response: Response) -> None:
        is_own = "/_console/" in response.url and response.status >= 400
        if is_own or response.status in {500, 501}:
            self.faults.append(f"{response.status} of {response.url}")

    def _on_dialog(self, dialog: Any) -> None:
        if dialog.type != "beforeunload":  # the browser's own question
            self.faults.append(f"a script opened a dialog: {dialog.message}")
        dialog.accept()

    def open(self, address: str) -> Page:
        """Show a page by its address, such as `documents/shop`."""
        self.page.goto(f"/_console/#/{address}")
        self.settled()
        return self.page

    def settled(self) -> None:
        """Wait until the page is there."""
        expect(self.page.locator("main h1").first).to_be_visible(timeout=WAIT_MS)
        expect(self.page.locator("main .loading")).to_have_count(0, timeout=WAIT_MS)

    def row(self, table: str, text: str) -> Locator:
        """Return the row of a table that contains a text."""
        return self.page.get_by_role("region", name=table).get_by_role("row").filter(has_text=text)

    def confirm(self, name: str, action: str) -> None:
        """Answer a dialog that asks for the name of the thing."""
        dialog = self.page.get_by_role("dialog")
        button = dialog.get_by_role("button", name=action)
        expect(button).to_be_disabled()
        dialog.get_by_label("to confirm").fill(name)
        button.click()
        expect(dialog).to_have_count(0, timeout=WAIT_MS)

    def write(self, label: str, text: str) -> None:
        """Replace the text of an editor."""
        editor = self.page.get_by_label(label)
        editor.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    def check(self) -> None:
        """Fail with what went wrong in the tab so far."""
        assert not self.faults, "\n".join(self.faults)

    def accessibility_faults(self) -> list[str]:
        """Return what axe-core finds against WCAG A and AA on what is shown now."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(_AXE.read_text())
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
        options = json.dumps({"runOnly": tags, "resultTypes": ["violations"]})
        found = self.page.evaluate(f"axe.run(document, {options})")
        return [
            f"{one['id']} ({one['help']}): {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found["violations"]
            for node in one["nodes"]
        ]


OpenConsole = Callable[..., Console]
"""Opens a tab: `open_console(url, theme="dark")`."""
