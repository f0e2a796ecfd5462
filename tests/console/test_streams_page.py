"""Streams: who reads a bucket, a rollback as a branch of the history, changes as they come."""

import re

from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console
from support.http.http_calls import done
from support.node.node_process import NodeProcess

MARKUP = "<img src=x onerror=alert(1)>"


def test_a_reader_and_its_partitions(console: Console, node: NodeProcess, bucket: str) -> None:
    views = {"by_delay": {"map": "function (doc) { emit(doc.delay, 1) }"}}
    done(node, "PUT", f"/{bucket}/_design/delays", {"views": views})
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": [{"delay": n} for n in range(20)]})
    done(node, "GET", f"/{bucket}/_design/delays/_view/by_delay")
    page = console.open(f"streams/readers?bucket={bucket}")
    row = console.row(f"Readers of {bucket}", "view index")
    expect(row).to_contain_text("0 changes", timeout=WAIT_MS)
    row.get_by_role("link").click()
    expect(page.get_by_role("region", name="Partitions of the reader")).to_be_visible()
    rows = page.get_by_role("region", name="Partitions of the reader").get_by_role("row")
    expect(rows).to_have_count(5)  # with the heading
    assert console.accessibility_faults() == []


def test_a_rollback_is_a_new_branch(console: Console, node: NodeProcess, bucket: str) -> None:
    docs = [{"_id": f"a{n}"} for n in range(40)]
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": docs})
    page = console.open(f"streams/history?bucket={bucket}&partition=1")
    expect(page.locator(".drawing circle.begin")).to_have_count(1, timeout=WAIT_MS)
    done(node, "POST", f"/_millstream/buckets/{bucket}/partitions/1/rollback", {"seqno": 3})
    expect(page.locator(".drawing circle.begin")).to_have_count(2, timeout=WAIT_MS)


def test_a_reader_is_drawn_on_its_branch(console: Console, node: NodeProcess, bucket: str) -> None:
    views = {"all": {"map": "function (doc) { emit(doc._id, 1) }"}}
    done(node, "PUT", f"/{bucket}/_design/ids", {"views": views})
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": [{"_id": f"a{n}"} for n in range(40)]})
    done(node, "GET", f"/{bucket}/_design/ids/_view/all")
    done(node, "POST", f"/_millstream/buckets/{bucket}/partitions/1/rollback", {"seqno": 3})
    page = console.open(f"streams/history?bucket={bucket}&partition=1")
    begins, reader = page.locator(".drawing circle.begin"), page.locator(".drawing circle.reader")
    expect(begins).to_have_count(2, timeout=WAIT_MS)
    older, newest = (begins.nth(branch).get_attribute("cy") or "" for branch in (0, 1))
    expect(reader).to_have_attribute("cy", older, timeout=WAIT_MS)  # at 3, where they part
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": [{"_id": f"b{n}"} for n in range(40)]})
    expect(reader).to_have_attribute("cy", newest, timeout=WAIT_MS)


def test_a_reader_that_was_rolled_back(console: Console, node: NodeProcess, bucket: str) -> None:
    views = {"all": {"map": "function (doc) { emit(doc._id, 1) }"}}
    done(node, "PUT", f"/{bucket}/_design/ids", {"views": views})
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": [{"_id": f"a{n}"} for n in range(40)]})
    done(node, "GET", f"/{bucket}/_design/ids/_view/all")
    page = console.open(f"streams/readers?bucket={bucket}")
    row = console.row(f"Readers of {bucket}", "view index")
    expect(row).to_contain_text("none since it connected", timeout=WAIT_MS)
    expect(row).to_contain_text("nothing", timeout=WAIT_MS)
    done(node, "POST", f"/_millstream/buckets/{bucket}/partitions/1/rollback", {"seqno": 3})
    told = page.get_by_text(re.compile(r"partition 1: from seqno \d+ to \d+"))  # connected or gone
    expect(told.first).to_be_visible(timeout=WAIT_MS)


def test_changes_as_they_come(console: Console, node: NodeProcess, bucket: str) -> None:
    page = console.open(f"streams/tail?bucket={bucket}")
    expect(page.get_by_text("connected", exact=True)).to_be_visible(timeout=WAIT_MS)
    done(node, "PUT", f"/{bucket}/first", {"text": MARKUP})
    row = console.row("Changes", "first")
    expect(row).to_contain_text(MARKUP, timeout=WAIT_MS)
    page.get_by_label("Filter").fill("second")
    done(node, "PUT", f"/{bucket}/other", {"text": "x"})
    done(node, "PUT", f"/{bucket}/second", {"text": "x"})
    expect(console.row("Changes", "second")).to_have_count(1, timeout=WAIT_MS)
    expect(console.row("Changes", "other")).to_have_count(0)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused", exact=True)).to_be_visible()
    assert console.accessibility_faults() == []
    assert page.locator("main img").count() == 0
