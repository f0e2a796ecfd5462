"""A browser and a node for all tests of the console, a tab for each test.

Buckets keep tests apart. Without chromium or axe-core the tests skip, which `make ci`
forbids.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest
from playwright.sync_api import Browser, sync_playwright

from support.console.console import BROWSER_ARGUMENTS, Console, OpenConsole
from support.http.http_calls import call
from support.node.node_process import FREE, NodeProcess

_numbers = count(1)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: make test-tools")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=list(BROWSER_ARGUMENTS)
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("console") / "node"
    options = ("--bucket", "flights:16", "--coord", FREE, "--peer", FREE)
    with NodeProcess(directory, *options) as running:
        yield running


@pytest.fixture
def bucket(node: NodeProcess) -> str:
    """A bucket of this test's own."""
    name = f"test{next(_numbers)}"
    call(node.http, "PUT", f"/{name}?q=4")
    return name


@pytest.fixture
def open_console(browser: Browser) -> Iterator[OpenConsole]:
    """Open tabs; a test that leaves errors in one of them fails."""
    with ExitStack() as stack:
        opened: list[Console] = []

        def opens(url: str, **options: object) -> Console:
            opened.append(stack.enter_context(Console(browser, url, **options)))  # type: ignore[arg-type]
            return opened[-1]

        yield opens
        for one in opened:
            one.check()


@pytest.fixture
def console(open_console: OpenConsole, node: NodeProcess) -> Console:
    return open_console(node.http)
