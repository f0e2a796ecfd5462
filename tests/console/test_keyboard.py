"""The console without a mouse."""

from playwright.sync_api import expect

from support.console.console import Console


def test_skip_link_menu_table_and_dialog_by_keyboard(console: Console) -> None:
    page = console.open("overview")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()

    menu = page.get_by_role("navigation", name="Pages")
    menu.get_by_role("link", name="Overview").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(menu.get_by_role("link", name="Documents")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Documents")).to_be_visible()
    expect(menu.get_by_role("link", name="Documents")).to_have_attribute("aria-current", "page")

    create = page.get_by_role("button", name="Create bucket")
    create.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Create bucket")
    expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement.closest('dialog') || document.activeElement === document.body"
        )
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(create).to_be_focused()

    row = page.get_by_role("region", name="Buckets").get_by_role("link", name="flights")
    row.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="flights")).to_be_visible()


def test_the_menu_of_a_small_screen_opens_and_closes(console: Console) -> None:
    console.page.set_viewport_size({"width": 360, "height": 800})
    page = console.open("overview")
    menu = page.get_by_role("navigation", name="Pages")
    expect(menu).not_to_be_visible()
    page.get_by_role("button", name="Menu").focus()
    page.keyboard.press("Enter")
    expect(menu).to_be_visible()
    menu.get_by_role("link", name="Documents").click()
    expect(page.get_by_role("heading", name="Documents")).to_be_visible()
    expect(menu).not_to_be_visible()


def test_the_choice_of_colours_is_kept(console: Console) -> None:
    page = console.open("overview")
    chosen = page.locator("html")
    page.get_by_label("Colours").select_option("dark")
    expect(chosen).to_have_attribute("data-theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    console.settled()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.get_by_label("Colours").select_option("light")
    expect(chosen).to_have_attribute("data-theme", "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
