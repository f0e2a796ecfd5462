"""Buckets and documents: created, listed, edited by two at once, imported, exported, dropped."""

import json
from pathlib import Path

from playwright.sync_api import Route, expect

from support.console.console import WAIT_MS, Console, OpenConsole
from support.http.http_calls import call, done
from support.node.node_process import NodeProcess


def test_a_bucket_is_created_and_dropped_by_its_name(console: Console, node: NodeProcess) -> None:
    page = console.open("documents")
    page.get_by_role("button", name="Create bucket").click()
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("Partitions").select_option("8")
    page.get_by_label("Memory quota").fill("128 MiB")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="orders")).to_be_visible(timeout=WAIT_MS)
    made = done(node, "GET", "/_millstream/buckets/orders")
    assert (made["partitions"], made["memory_quota_bytes"]) == (8, 128 * 2**20)
    page.get_by_role("button", name="Drop bucket").click()
    console.confirm("orders", "Drop bucket")
    expect(page.get_by_role("heading", name="Documents")).to_be_visible()
    assert call(node, "GET", "/_millstream/buckets/orders")[0] == 404


def test_a_document_is_written_and_a_conflict_shows_both_versions(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    page = console.open(f"documents/{bucket}/new")
    page.get_by_label("Id", exact=True).fill("flight/1")
    save = page.get_by_role("button", name="Save", exact=True)
    console.write("Content of the document", '{"delay": 5, "_x": 1}')
    expect(page.get_by_text("remove _x")).to_be_visible()
    expect(save).to_be_disabled()
    console.write("Content of the document", '{"delay": 5, "exact": 12345678901234567890}')
    save.click()
    expect(page.get_by_role("heading", name="flight/1")).to_be_visible(timeout=WAIT_MS)
    stored = done(node, "GET", f"/{bucket}/flight%2F1")
    assert stored["exact"] == 12345678901234567890
    expect(page.get_by_role("link", name="1-")).to_be_visible(timeout=WAIT_MS)  # it is loaded

    theirs = done(node, "PUT", f"/{bucket}/flight%2F1", {**stored, "delay": 6})
    console.write("Content of the document", '{"delay": 7, "exact": 12345678901234567890}')
    page.keyboard.press("Control+s")
    conflict = page.get_by_role("alert")
    expect(conflict).to_contain_text('"delay": 6')
    expect(conflict).to_contain_text('"delay": 7')
    expect(conflict).to_contain_text("12345678901234567890")
    assert done(node, "GET", f"/{bucket}/flight%2F1")["_rev"] == theirs["rev"]
    conflict.get_by_role("button", name="Save mine").click()
    expect(page.get_by_role("status").filter(has_text="Saved, and on disk")).to_be_visible()
    assert done(node, "GET", f"/{bucket}/flight%2F1")["delay"] == 7

    expect(page.get_by_role("link", name="3-")).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).click()
    console.confirm("flight/1", "Delete document")
    expect(page.locator("main").get_by_text("deleted").first).to_be_visible(timeout=WAIT_MS)
    assert call(node, "GET", f"/{bucket}/flight%2F1")[0] == 404


def test_documents_are_found_by_prefix_range_and_id(
    console: Console, node: NodeProcess, bucket: str
) -> None:
    docs = [{"_id": f"{kind}:{n}"} for kind in ("a", "b") for n in range(3)]
    done(node, "POST", f"/{bucket}/_bulk_docs", {"docs": docs})
    page = console.open(f"documents/{bucket}")
    rows = page.get_by_role("region", name=f"Documents of {bucket}").locator("tbody tr")
    expect(rows).to_have_count(6)
    page.get_by_label("Ids that begin with").fill("b:")
    expect(rows).to_have_text([f"b:{n}" + _revision(node, bucket, f"b:{n}") for n in range(3)])
    page.reload()
    expect(rows).to_have_count(3)
    page.get_by_label("From id").fill("a:2")
    page.get_by_label("To id").fill("b:0")
    expect(rows).to_have_count(2)
    page.get_by_label("Open by id").fill("a:1")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="a:1")).to_be_visible()


def _revision(node: NodeProcess, bucket: str, name: str) -> str:
    return str(done(node, "GET", f"/{bucket}/{name}")["_rev"])[:8]


def test_a_list_of_100_000_documents_keeps_few_rows_in_the_page(
    console: Console, bucket: str
) -> None:
    def answer(route: Route) -> None:
        query = dict(one.split("=") for one in route.request.url.partition("?")[2].split("&"))
        first = int(query["startkey"][3:9]) + 1 if "startkey" in query else 0
        ids = [f"{n:06d}" for n in range(first, min(100_000, first + 10_000))]
        rows = [{"id": one, "key": one, "value": {"rev": "1-" + "a" * 32}} for one in ids]
        route.fulfill(json={"total_rows": 100_000, "offset": 0, "rows": rows})

    console.page.route("**/_all_docs?*", answer)
    page = console.open(f"documents/{bucket}")
    box = page.get_by_role("region", name=f"Documents of {bucket}")
    expect(box.get_by_text("000000")).to_be_visible()
    while box.get_by_text("099999").count() == 0:
        read = page.get_by_text("documents read; scroll for more")
        before = read.inner_text() if read.count() else ""
        box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
        expect(page.get_by_text(before, exact=True) if before else read).to_have_count(0)
        assert box.locator("tbody tr").count() < 100
    expect(page.get_by_text("100,000 documents, that is all")).to_be_visible()


def test_a_csv_file_is_previewed_imported_and_exported(
    console: Console, node: NodeProcess, bucket: str, tmp_path: Path
) -> None:
    lines = ["carrier,flight,delay,note"]
    lines += [f'UA,{n},{n / 2},"says ""{n}"", twice\nand more"' for n in range(2_500)]
    file = tmp_path / "flights.csv"
    file.write_text("\n".join([*lines, "DL,,1,no number"]))
    done(node, "PUT", f"/{bucket}/UA:7", {"kept": True})
    page = console.open(f"documents/{bucket}/import")
    page.get_by_label("File to import").set_input_files(file)
    page.get_by_label("Id of each document").fill("{carrier}:{flight}")
    expect(console.row("Preview", "UA:0")).to_contain_text('"delay":0')
    page.get_by_role("button", name="Import into").click()
    told = page.get_by_role("status").filter(has_text="Done: 2,499 written")
    expect(told).to_contain_text("1 left as they were, 1 failed", timeout=WAIT_MS)
    expect(page.get_by_role("region", name="not written")).to_contain_text("no member flight")
    assert done(node, "GET", f"/{bucket}/UA:7")["kept"] is True
    one = done(node, "GET", f"/{bucket}/UA:2499")
    assert one["note"] == 'says "2499", twice\nand more'
    assert (one["flight"], one["delay"]) == (2499, 1249.5)

    console.open(f"documents/{bucket}")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    exported = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert len(exported) == 2_500
    assert {"_id": "UA:0", "carrier": "UA", "flight": 0}.items() <= exported[0].items()


def test_json_lines_replace_what_exists(
    console: Console, node: NodeProcess, bucket: str, tmp_path: Path
) -> None:
    done(node, "PUT", f"/{bucket}/a", {"old": True})
    file = tmp_path / "more.jsonl"
    file.write_text('{"_id": "a", "_rev": "9-f", "n": 1.0}\n{"_id": "b", "big": 1e400}\n\n')
    page = console.open(f"documents/{bucket}/import")
    page.get_by_label("File to import").set_input_files(file)
    page.get_by_label("Documents that exist").select_option("replace")
    page.get_by_role("button", name="Import into").click()
    expect(page.get_by_role("status").filter(has_text="Done: ")).to_be_visible(timeout=WAIT_MS)
    assert "old" not in done(node, "GET", f"/{bucket}/a")


def test_a_file_that_is_no_json_says_where(console: Console, bucket: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text('[{"a": 1}, oops]')
    page = console.open(f"documents/{bucket}/import")
    page.get_by_label("File to import").set_input_files(file)
    expect(page.get_by_role("alert")).to_contain_text("Not a JSON object: oops")


def test_who_is_no_administrator_is_not_offered_to_drop(
    open_console: OpenConsole, tmp_path: Path
) -> None:
    options = ("--bucket", "flights:4", "--user", "root:a secret of root")
    with NodeProcess(tmp_path / "node", *options) as node:
        root = ("root", "a secret of root")
        rights = {"name": "ada", "password": "a secret of ada", "roles": ["read:flights"]}
        assert call(node, "POST", "/_millstream/users", rights, login=root)[0] == 201
        console = open_console(node.http)
        page = console.page
        page.goto("/_console/#/documents/flights")
        page.get_by_label("User").fill("ada")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("Password").fill("a secret of ada")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="flights")).to_be_visible(timeout=WAIT_MS)
        for action in ("Drop bucket", "New document", "Import"):
            expect(page.get_by_text(action, exact=True)).to_have_count(0)
        expect(page.get_by_role("navigation", name="Pages")).not_to_contain_text("Security")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("User")).to_be_visible()
