"""The overview: health, live figures, and a node that goes away and comes back."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect

from millstream import connect
from support.console.console import WAIT_MS, Console, OpenConsole
from support.http.http_calls import done
from support.node.node_process import NodeProcess, kept_ports

LATE_MS = 60_000
"""Index process, samples and page each look every few seconds."""
_HAS_COLOUR = """([chart, wanted]) => {
  const canvas = chart.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4)
    if (data[at + 3] === 255 && data.slice(at, at + 3).join() === wanted) return true;
  return false;
}"""
"""Whether a pixel of a chart has a colour."""


@contextmanager
def _repeated(work: Callable[[], object]) -> Iterator[None]:
    ends = threading.Event()

    def repeat() -> None:
        while not ends.wait(0.02):
            work()

    repeater = threading.Thread(target=repeat)
    repeater.start()
    yield
    ends.set()
    repeater.join()


def _kv_reads(node: NodeProcess, bucket: str) -> Callable[[], object]:
    def read() -> None:
        with connect(f"{node.kv[0]}:{node.kv[1]}", bucket=bucket) as client:
            client.get_many([b"a", b"b"])

    return read


def test_figures_follow_what_happens_and_an_address_reproduces_them(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    page = console.open("overview")
    expect(page.get_by_role("region", name="Health")).to_be_visible()
    writes = page.locator(".figure").filter(has_text="Writes").locator("strong")
    docs = [{"n": n} for n in range(20)]
    with _repeated(lambda: done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": docs})):
        expect(writes).to_contain_text("/s", timeout=WAIT_MS)
        expect(writes).not_to_have_text("0/s", timeout=WAIT_MS)
        expect(console.row("Buckets", bucket)).to_contain_text("ready")
    kv = page.locator("dt", has_text="Documents and streams").locator("+ dd")
    expect(kv).to_have_text("{}:{}".format(*node.kv))
    expect(page.locator(".facts dd", has_text=re.compile("^$"))).to_have_count(0)  # none is empty
    page.get_by_role("link", name="Connections").click()
    page.get_by_role("link", name="1 hour").click()
    expect(page.get_by_role("heading", name="Connections")).to_be_visible()
    assert "span=3600" in page.url
    page.reload()
    expect(page.get_by_role("heading", name="Connections")).to_be_visible()


def test_reads_of_both_protocols_are_counted(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    done(node, "PUT", f"/{bucket}/a", {"n": 1})
    page = console.open("overview")
    reads, answered = (
        page.locator(".figure").filter(has_text=text).locator("strong")
        for text in ("Reads", "Answered by kv")
    )
    for read in (lambda: done(node, "GET", f"/{bucket}/a"), _kv_reads(node, bucket)):
        expect(reads).to_have_text("0/s", timeout=WAIT_MS)
        with _repeated(read):
            expect(reads).not_to_have_text("0/s", timeout=WAIT_MS)
    expect(answered).to_contain_text("/s")


def test_a_chart_has_the_colours_of_the_theme(console: Console) -> None:
    page = console.open("overview?figure=memory_bytes")
    chart = page.get_by_role("img", name="Memory of the node over time")
    for theme, wanted in (("light", "11,122,130"), ("dark", "63,188,196")):  # --series-1
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.wait_for_function(_HAS_COLOUR, arg=[chart.element_handle(), wanted])


def test_an_open_page_survives_a_restart_of_the_node(
    open_console: OpenConsole, tmp_path: Path
) -> None:
    with NodeProcess(tmp_path / "node", "--bucket", "flights:4", *kept_ports()) as node:
        console = open_console(node.http)
        page = console.open("documents")
        expect(console.row("Buckets", "flights")).to_be_visible()
        node.kill()
        expect(page.locator(".stale").first).to_contain_text("does not answer", timeout=WAIT_MS)
        expect(console.row("Buckets", "flights")).to_be_visible()
        node.start()
        expect(page.locator(".stale")).to_have_count(0, timeout=WAIT_MS)
        expect(console.row("Buckets", "flights")).to_be_visible()


def test_a_broken_design_document_is_a_reason(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    design = {"_id": "_design/bad", "_rev": "1-a", "views": {"v": {"map": "function ("}}}
    revisions = {"_revisions": {"start": 1, "ids": ["a"]}}
    sent = {"new_edits": False, "docs": [design | revisions]}
    assert done(node, "POST", f"/{bucket}/_bulk_docs", sent) == []  # as a replication stores it
    health = console.open("overview").get_by_role("region", name="Health")
    expect(health).to_contain_text(f"of bucket {bucket} are broken", timeout=LATE_MS)
    done(node, "DELETE", f"/{bucket}/_design/bad?rev=1-a")
    expect(health).not_to_contain_text(f"of bucket {bucket} are broken", timeout=LATE_MS)
