"""Logs: filtered by an address, and new lines as they come. Support: the archive is sent."""

import zipfile

from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console
from support.http.http_calls import done
from support.node.node_process import NodeProcess


def test_lines_come_and_are_filtered(console: Console, node: NodeProcess, bucket: str) -> None:
    page = console.open(f"logs?text={bucket}")
    lines = page.get_by_role("log", name="Log lines").locator("p")
    expect(lines.filter(has_text=f"created bucket {bucket} ")).to_have_count(1, timeout=WAIT_MS)
    done(node, "PUT", f"/{bucket}more?q=1")
    expect(lines.filter(has_text=f"{bucket}more")).not_to_have_count(0, timeout=WAIT_MS)
    page.get_by_label("Level, at least").select_option("error")
    expect(page.get_by_text("No lines")).to_be_visible(timeout=WAIT_MS)
    assert "level=error" in page.url


def test_the_archive_is_sent(console: Console) -> None:
    page = console.open("support")
    with page.expect_download() as begun:
        page.get_by_role("link", name="Download the archive").click()
    with zipfile.ZipFile(begun.value.path()) as archive:
        assert {"contents.txt", "versions.json", "logs.txt"} <= set(archive.namelist())
