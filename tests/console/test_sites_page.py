"""Sites: a replication is started, seen in the graph, changed and stopped; why another crashes."""

import re

from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console
from support.http.http_calls import call, done
from support.node.node_process import NodeProcess
from support.node.waiting import until

_TO = re.compile("^To")


def test_a_replication_is_started_seen_and_stopped(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    done(node, "PUT", f"/{bucket}/a", {"delay": 1})
    page = console.open("sites")
    page.get_by_role("button", name="Start a replication").click()
    page.get_by_role("textbox", name="From").fill(bucket)
    page.get_by_role("textbox", name=_TO).fill(f"{bucket}-copy")
    page.get_by_role("textbox", name="Name").fill(f"copy-{bucket}")
    page.get_by_label("Create the target").check()
    page.get_by_role("button", name="Start", exact=True).click()
    row = console.row("Replications", f"copy-{bucket}")
    expect(row).to_contain_text("running", timeout=WAIT_MS)
    expect(row).to_contain_text("0 changes", timeout=WAIT_MS)
    assert done(node, "GET", f"/{bucket}-copy/a")["delay"] == 1
    edge = page.get_by_role("link", name=f"{bucket} to {bucket}-copy: running")
    expect(edge).to_have_count(1)
    edge.focus()
    page.keyboard.press("Enter")
    chosen = page.get_by_role("region", name="Chosen replication")
    expect(chosen).to_contain_text("started", timeout=WAIT_MS)
    assert console.accessibility_faults() == []

    chosen.get_by_role("button", name="Change").click()
    page.get_by_label("Only documents that match").fill('{"delay": 7}')
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(page.get_by_role("dialog")).to_have_count(0, timeout=WAIT_MS)
    assert done(node, "GET", f"/_replicator/copy-{bucket}")["selector"] == {"delay": 7}

    chosen.get_by_role("button", name="Stop and remove").click()
    console.confirm(f"copy-{bucket}", "Stop")
    expect(row).to_have_count(0, timeout=WAIT_MS)
    assert call(node, "GET", f"/_replicator/copy-{bucket}")[0] == 404


def test_why_a_job_crashed_is_shown_and_no_password(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    job = f"crash-{bucket}"
    target = "http://admin:very-secret@127.0.0.1:9/nowhere"
    stored = {"source": bucket, "target": target, "continuous": True}
    done(node, "PUT", f"/_replicator/{job}", stored)
    page = console.open(f"sites?job={job}")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("It crashed 1 time in a row.", timeout=WAIT_MS)
    expect(alert).to_contain_text("does not answer")
    expect(console.row("Replications", job)).to_contain_text("crashing")
    expect(console.row("History of the job", "crashed")).to_contain_text("does not answer")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("textbox", name=_TO)).to_have_value(
        "http://admin:***@127.0.0.1:9/nowhere"
    )
    assert "very-secret" not in page.content()
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    expect(page.get_by_role("dialog")).to_have_count(0, timeout=WAIT_MS)
    assert done(node, "GET", f"/_replicator/{job}")["target"] == target


def test_a_finished_job_runs_again_and_one_without_a_document_is_stopped(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    job, copy = f"once-{bucket}", f"{bucket}-copy"
    done(node, "PUT", f"/{copy}?q=4")
    done(node, "PUT", f"/_replicator/{job}", {"source": bucket, "target": copy})
    page = console.open(f"sites?job={job}")
    row = console.row("Replications", job)
    expect(row).to_contain_text("completed", timeout=WAIT_MS)
    done(node, "PUT", f"/{bucket}/later", {"delay": 2})
    page.get_by_role("button", name="Run again").click()
    until(lambda: call(node, "GET", f"/{copy}/later")[0] == 200)
    expect(row).to_contain_text("completed", timeout=WAIT_MS)

    forever = {"source": copy, "target": bucket, "continuous": True}
    name = done(node, "POST", "/_replicate", forever)["_local_id"][:12]
    console.row("Replications", name).get_by_role("link").click()
    page.get_by_role("button", name="Stop", exact=True).click()
    console.confirm(name, "Stop")
    expect(console.row("Replications", name)).to_have_count(0, timeout=WAIT_MS)


def test_a_job_that_names_no_databases_is_shown(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    job = f"impossible-{bucket}"
    stored = {"source": bucket, "target": f"{bucket}-copy", "filter": "nothing"}
    done(node, "PUT", f"/_replicator/{job}", stored)
    page = console.open(f"sites?job={job}")
    expect(console.row("Replications", job)).to_contain_text("unknown", timeout=WAIT_MS)
    expect(page.get_by_role("alert")).to_contain_text("It failed. Invalid filter")
    page.get_by_role("button", name="Stop and remove").click()
    console.confirm(job, "Stop")
    expect(console.row("Replications", job)).to_have_count(0, timeout=WAIT_MS)


def test_a_paused_job_goes_on_from_its_checkpoint(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    job, copy = f"pause-{bucket}", f"{bucket}-copy"
    done(node, "PUT", f"/{copy}?q=4")
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": [{"n": n} for n in range(30)]})
    stored = {"source": bucket, "target": copy, "continuous": True, "selector": {}}
    done(node, "PUT", f"/_replicator/{job}", stored)
    page = console.open(f"sites?job={job}")
    row = console.row("Replications", job)
    expect(row).to_contain_text("0 changes", timeout=WAIT_MS)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(row).to_contain_text("paused", timeout=WAIT_MS)
    assert call(node, "GET", f"/_replicator/{job}")[0] == 404
    done(node, "PUT", f"/{bucket}/later", {"n": 31})
    page.reload()  # it is kept at the node
    expect(page.get_by_text("Nothing is copied.")).to_be_visible(timeout=WAIT_MS)
    assert call(node, "GET", f"/{copy}/later")[0] == 404
    page.get_by_role("button", name="Go on").click()
    until(lambda: call(node, "GET", f"/{copy}/later")[0] == 200)
    expect(row).to_contain_text("running", timeout=WAIT_MS)
    again = done(node, "GET", f"/_replicator/{job}")
    assert stored.items() <= again.items()
    found = done(node, "GET", f"/_scheduler/docs/_replicator/{job}")["info"]
    assert found["docs_written"] == 1, "it began again from its checkpoint"
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(row).to_contain_text("paused", timeout=WAIT_MS)
    page.get_by_role("button", name="Remove", exact=True).click()
    console.confirm(job, "Stop")
    expect(row).to_have_count(0, timeout=WAIT_MS)
