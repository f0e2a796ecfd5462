"""The tree of revisions: drawn, a conflict resolved; attachments."""

from pathlib import Path

from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console
from support.http.http_calls import done
from support.node.node_process import NodeProcess


def _branches(node: NodeProcess, bucket: str, name: str) -> None:
    """A long history; two versions that were written apart; a branch that was deleted."""
    trunk = [f"{n:032x}" for n in range(40, 0, -1)]
    docs: list[dict[str, object]] = []
    for delay, rest in ((1, "a" * 32), (2, "b" * 32)):
        history = {"start": 41, "ids": [rest, *trunk]}
        docs.append({"delay": delay, "_rev": f"41-{rest}", "_revisions": history})
    gone = {"start": 12, "ids": ["c" * 32, *trunk[29:]]}
    docs.append({"_deleted": True, "_rev": "12-" + "c" * 32, "_revisions": gone})
    docs = [{"_id": name, **one} for one in docs]
    done(node, "POST", f"/{bucket}/_bulk_docs", {"new_edits": False, "docs": docs})


def test_a_conflict_is_drawn_and_resolved(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    _branches(node, bucket, "flight")
    page = console.open(f"documents/{bucket}/doc/flight")
    expect(page.get_by_text("2 versions that were written apart")).to_be_visible()
    tree = page.get_by_role("group", name="Tree of revisions")
    expect(tree.get_by_role("link", name="current")).to_have_count(1)
    expect(tree.get_by_role("link", name="in conflict")).to_have_count(1)
    expect(tree.get_by_role("link", name="deleted")).to_have_count(1)
    assert tree.get_by_role("link").count() < 12
    expect(tree).to_contain_text("7 more")
    expect(tree).to_contain_text("26 more")
    tree.get_by_role("link", name="41-aaaaaa").click()
    expect(page.get_by_label("Content of the document")).to_contain_text('"delay": 1')
    rival = console.row("Branches", "41-aaaaaa")
    rival.get_by_role("button", name="Keep this one").click()
    console.confirm("flight", "Keep it")
    expect(page.get_by_text("2 versions that were written apart")).to_have_count(0)
    left = done(node, "GET", f"/{bucket}/flight?conflicts=true")
    assert left["_rev"] == "41-" + "a" * 32
    assert "_conflicts" not in left


def test_attachments_are_added_downloaded_and_deleted(
    console: Console, node: NodeProcess, bucket: str, tmp_path: Path
) -> None:
    done(node, "PUT", f"/{bucket}/flight", {"delay": 1})
    file = tmp_path / 'a <b> "&'
    file.write_bytes(b"bytes of a file \x00\xff")
    page = console.open(f"documents/{bucket}/doc/flight")
    page.get_by_label("File to attach").set_input_files(file)
    row = console.row("Attachments", file.name)
    expect(row).to_contain_text("18 B", timeout=WAIT_MS)
    with page.expect_download() as download:
        row.get_by_role("link").click()
    assert download.value.path().read_bytes() == file.read_bytes()
    row.get_by_role("button", name="Delete").click()
    console.confirm(file.name, "Delete attachment")
    expect(page.get_by_role("region", name="Attachments")).to_have_count(0, timeout=WAIT_MS)
    after = done(node, "GET", f"/{bucket}/flight")
    assert after["delay"] == 1
    assert "_attachments" not in after
