"""Query: a view is tried, saved, charted; a selector gets its index; indexes show their state."""

import re
from urllib.parse import quote

from playwright.sync_api import expect

from support.console.console import WAIT_MS, Console
from support.http.http_calls import call, done
from support.node.node_process import NodeProcess

_MAP = "function (doc) { emit([doc.from, doc.to], doc.delay); }"
_FLIGHTS = [
    {"_id": f"f{n:03}", "from": ("TXL", "FRA", "MUC")[n % 3], "to": "JFK", "delay": n}
    for n in range(120)
]


def _fill(node: NodeProcess, bucket: str) -> None:
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": _FLIGHTS})


def test_a_view_is_tried_saved_and_charted(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    _fill(node, bucket)
    page = console.open(f"query/designs?bucket={bucket}&design=%2B")
    page.get_by_role("textbox", name="Name").fill("delays")
    console.write("Map function", "function (doc) { throw new Error('no ' + doc._id); }")
    page.get_by_role("button", name="Try it").click()
    rows = page.get_by_role("region", name="Emitted rows")
    expect(rows).to_contain_text("no f000", timeout=WAIT_MS)
    console.write("Map function", _MAP)
    page.get_by_role("combobox", name="Reduce").select_option("_stats")
    page.get_by_role("button", name="Try it").click()
    expect(rows).to_contain_text('["FRA","JFK"]', timeout=WAIT_MS)
    expect(page.get_by_text('"count":10')).to_be_visible()
    assert console.accessibility_faults() == []
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("combobox", name="Design document")).to_have_value(
        "delays", timeout=WAIT_MS
    )
    assert done(node, "GET", f"/{bucket}/_design/delays")["views"]["all"]["map"] == _MAP

    page.get_by_role("link", name="Views", exact=True).click()
    page.get_by_role("combobox", name="Groups").select_option("1")
    page.get_by_role("button", name="Run").click()
    table = page.get_by_role("region", name="Rows of the view")
    expect(table.locator("tbody tr")).to_have_count(3, timeout=WAIT_MS)
    expect(table.locator("tbody tr").first).to_contain_text('["FRA"]')
    page.get_by_role("link", name="Bars").click()
    expect(page.get_by_role("img", name="Values by key")).to_be_visible()
    page.get_by_label("Drawn member").select_option("count")
    assert console.accessibility_faults() == []

    page.reload()
    console.settled()
    expect(page.get_by_role("img", name="Values by key")).to_be_visible()
    expect(page.get_by_role("combobox", name="Groups")).to_have_value("1")
    expect(page.get_by_label("Drawn member")).to_have_value("count")


def test_rows_are_read_by_range_and_page(console: Console, node: NodeProcess, bucket: str) -> None:
    _fill(node, bucket)
    views = {"by_delay": {"map": "function (doc) { emit(doc.delay, doc.from); }"}}
    done(node, "PUT", f"/{bucket}/_design/flights", {"views": views})
    page = console.open(f"query/views?bucket={bucket}")
    page.get_by_label("From key").fill("no json")
    expect(page.get_by_role("button", name="Run")).to_be_disabled()
    page.get_by_label("From key").fill("20")
    page.get_by_label("To key").fill("49")
    page.get_by_label("Limit").fill("20")
    page.get_by_role("button", name="Run").click()
    rows = page.get_by_role("region", name="Rows of the view").locator("tbody tr")
    expect(rows).to_have_count(20, timeout=WAIT_MS)
    expect(rows.first).to_contain_text("f020")
    page.get_by_role("button", name="Next rows").click()
    expect(rows).to_have_count(10, timeout=WAIT_MS)
    expect(rows.first).to_contain_text("f040")
    page.get_by_role("link", name="JSON", exact=True).click()
    expect(page.get_by_role("region", name="Rows as JSON")).to_contain_text('"key": 40')


def test_a_selector_gets_the_index_that_fits(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    _fill(node, bucket)
    page = console.open(f"query/find?bucket={bucket}")
    console.write("Query as JSON", '{"selector": {"delay": {"$gt": 90}, "from": "TXL"}}')
    page.get_by_role("button", name="Find").click()
    how = page.get_by_role("region", name="How it was found")
    expect(how).to_contain_text("all documents are read", timeout=WAIT_MS)
    expect(how).to_contain_text("An index on from, delay fits this selector.")
    how.get_by_role("button", name="Create this index").click()
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(how).to_contain_text("by-from-delay on from, delay", timeout=WAIT_MS)
    found = page.get_by_role("region", name="Found documents").locator("tbody tr")
    expect(found).to_have_count(9)
    assert console.accessibility_faults() == []

    page.get_by_role("link", name="Indexes").click()
    row = console.row(f"Indexes of {bucket}", "by-from-delay")
    expect(row).to_contain_text("up to date", timeout=WAIT_MS)
    expect(row).to_contain_text(re.compile(r"\d+, since "))  # rollback points
    row.get_by_role("button", name="Delete").click()
    console.confirm("by-from-delay", "Delete")
    expect(page.get_by_text("No indexes yet")).to_be_visible(timeout=WAIT_MS)
    assert call(node, "GET", f"/{bucket}/_design/by-from-delay")[0] == 404


def test_a_design_document_that_others_saved_is_not_overwritten(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    path = f"/{bucket}/_design/d"
    done(node, "PUT", path, {"views": {"v": {"map": _MAP}}})
    page = console.open(f"query/designs?bucket={bucket}&design=d")
    stored = done(node, "GET", path)
    theirs = done(node, "PUT", path, {**stored, "autoupdate": False})
    page.get_by_role("combobox", name="Reduce").select_option("_count")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Somebody saved", timeout=WAIT_MS)
    assert done(node, "GET", path)["_rev"] == theirs["rev"]
    page.get_by_role("button", name="Replace it by mine").click()
    expect(page.get_by_role("status").filter(has_text="Saved as 3")).to_be_visible(timeout=WAIT_MS)
    assert done(node, "GET", path)["views"]["v"]["reduce"] == "_count"
    page.get_by_role("button", name="Delete", exact=True).click()
    console.confirm("d", "Delete")
    expect(page.get_by_text("No design documents yet")).to_be_visible(timeout=WAIT_MS)


def test_names_keys_and_errors_with_markup_are_text(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    _fill(node, bucket)
    design, view = '<img src=x onerror="alert(1)">', "<b>x"
    text = (
        "function (doc) { if (doc._id === 'f001') throw new Error('<script>alert(2)</script>');"
        " emit({'<i>k': '\\u202eabc'}, '<svg onload=alert(3)>'); }"
    )
    path = f"/{bucket}/_design/{quote(design, safe='')}"
    done(node, "PUT", path, {"views": {view: {"map": text}}})
    page = console.open(f"query/views?bucket={bucket}")
    rows = page.get_by_role("region", name="Rows of the view")
    expect(rows.locator("tbody tr").first).to_contain_text("<svg onload=alert(3)>")
    page.get_by_role("link", name="Show functions").click()
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_role("region", name="Emitted rows")).to_contain_text(
        "<script>alert(2)</script>", timeout=WAIT_MS
    )
    page.get_by_role("link", name="Indexes").click()
    expect(console.row(f"Indexes of {bucket}", design)).to_contain_text(view, timeout=WAIT_MS)
    page.get_by_text("the map failed on 1 document").click()
    expect(page.get_by_role("region", name="Failures of")).to_contain_text("<script>")
    assert page.locator("main img, main script, main b, main svg").count() == 0
