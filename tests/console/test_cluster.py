"""A cluster by the console: made, joined, rebalanced; a node dies and is failed over."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from support.console.console import WAIT_MS, OpenConsole
from support.http.http_calls import done
from support.node.node_process import FREE, NodeProcess
from support.node.waiting import until

Nodes = list[NodeProcess]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("cluster")
    options = ("--bucket", "default:8", "--coord", FREE, "--peer", FREE)
    started = [NodeProcess(folder / f"n{n}", *options) for n in range(3)]
    try:
        yield [node.start() for node in started]
    finally:
        for node in started:
            node.kill()


def test_a_cluster_is_made_grows_and_survives_the_death_of_a_node(
    open_console: OpenConsole, nodes: Nodes
) -> None:
    console = open_console(nodes[0].http)
    page = console.open("cluster")
    page.get_by_label("Name of the cluster").fill("flights")
    page.get_by_role("button", name="Make the cluster").click()
    expect(page.get_by_role("heading", name="Cluster flights")).to_be_visible(timeout=WAIT_MS)

    other = open_console(nodes[1].http)
    other.open("cluster")
    other.page.get_by_label("HTTP address").fill(nodes[0].http.removeprefix("http://"))
    other.page.get_by_role("button", name="Join", exact=True).click()
    expect(console.row("Nodes", "n2")).to_contain_text("alive", timeout=WAIT_MS)
    address = nodes[0].http.removeprefix("http://")
    done(nodes[2], "POST", "/_millstream/cluster/join", {"address": address})
    done(nodes[0], "PATCH", "/_millstream/buckets/default", {"replicas": 1})
    expect(console.row("Nodes", "n3")).to_contain_text("alive", timeout=WAIT_MS)

    page.get_by_role("button", name="Rebalance").click()
    expect(page.get_by_role("dialog")).to_contain_text("copies", timeout=WAIT_MS)
    console.confirm("flights", "Rebalance")
    until(lambda: _is_whole(nodes[0]))
    expect(page.get_by_text("8 of 8 partitions with all copies")).to_be_visible(timeout=WAIT_MS)
    sums = page.get_by_role("region", name="Partitions by node").locator("tbody tr")
    expect(sums).to_have_count(3)
    expect(page.locator(".partition-map rect")).to_have_count(8)
    page.get_by_label("Colour by the node of").select_option("index")
    expect(page.locator(".partition-map rect[class^=of-]")).to_have_count(8, timeout=WAIT_MS)
    page.locator(".partition-map rect").first.hover()
    expect(page.get_by_text(re.compile(r"Partition 0: .*, index on n\d"))).to_be_visible()
    assert console.accessibility_faults() == []

    console.row("Nodes", "n2").get_by_role("button", name="Fail over").click()
    dialog = page.get_by_role("dialog", name="Fail over n2?")
    expect(dialog).to_contain_text("served by other nodes afterwards", timeout=WAIT_MS)
    page.keyboard.press("Escape")

    nodes[2].kill()
    expect(console.row("Nodes", "n3")).to_contain_text("failed", timeout=WAIT_MS)
    expect(page.get_by_text("all partitions are served")).to_be_visible(timeout=WAIT_MS)
    expect(console.row("Last fail-overs", "n3")).to_be_visible(timeout=WAIT_MS)


def _is_whole(node: NodeProcess) -> bool:
    status = done(node, "GET", "/_millstream/cluster")
    bucket = status["buckets"][0]
    return (
        status["plan"] is None
        and bucket["whole"] == bucket["partitions"]
        and bucket["replicas"] == 1
    )


def test_settings_of_fail_over_are_changed(open_console: OpenConsole, nodes: Nodes) -> None:
    console = open_console(nodes[0].http)
    page = console.open("cluster")
    page.get_by_label("Nodes failed over until a reset").fill("2")
    page.get_by_role("button", name="Save settings").click()
    expect(page.get_by_text("Settings changed")).to_be_visible(timeout=WAIT_MS)
    assert done(nodes[0], "GET", "/_millstream/cluster")["settings"]["auto_failover_max"] == 2
