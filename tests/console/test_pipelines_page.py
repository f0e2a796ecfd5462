"""Pipelines: a run that told the node what it does, its lag, an increment that appears."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from millstream.cli.connect import NodeOptions
from millstream.cli.pipelines.run import recorded
from support.console.console import WAIT_MS, Console
from support.node.node_process import NodeProcess

FULL = {"id": 1, "parent": None, "created": "2026-11-28T10:00:00Z", "rows": 40, "bytes": 2048}
INCREMENT = {"id": 2, "parent": 1, "created": "2026-11-28T11:00:00Z", "rows": 3, "bytes": 512}
MARKUP = "<img src=x onerror=alert(1)>"


def test_a_backup_is_seen_while_it_runs_and_its_increment_appears(
    console: Console,
    node: NodeProcess,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path))
    at = NodeOptions("{}:{}".format(*node.kv))
    options = {"checkpoint": tmp_path / "to", "subject": str(tmp_path / "to"), "at": at}
    page = console.open("pipelines")
    name = f"backup-{bucket}"
    row = console.row("Runs", name)
    with recorded("backup", bucket, **options) as run:
        expect(row).to_contain_text("running", timeout=WAIT_MS)
        run.progress.batch(1, 40, 0.5, lag={0: 5, 1: 2})
        run.progress.show({"chain": [FULL]})
    expect(row).to_contain_text("ended", timeout=WAIT_MS)
    expect(row).to_contain_text("7 changes")
    row.get_by_role("link").click()
    chain = page.get_by_role("region", name="Chain of increments").get_by_role("row")
    expect(chain).to_have_count(2, timeout=WAIT_MS)  # with the heading
    expect(page.get_by_role("region", name="Lag by partition").get_by_role("row")).to_have_count(3)
    assert console.accessibility_faults() == []

    def fails() -> None:
        with recorded("backup", bucket, **options) as run:
            run.progress.show({"chain": [FULL, INCREMENT]})
            raise ValueError(MARKUP)

    with pytest.raises(ValueError, match="img"):
        fails()
    expect(chain).to_have_count(3, timeout=WAIT_MS)
    expect(chain.last).to_contain_text("512 B")
    expect(row).to_contain_text("failed")
    expect(page.get_by_role("alert")).to_contain_text(MARKUP)
    assert page.locator("main img").count() == 0
