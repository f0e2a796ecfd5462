"""The console's files: who gets them, with which headers, under which addresses."""

import re

import pytest

from millstream.gateway.aio.node.console_pages import CONSOLE

CLOSED_POLICY = {
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:",
    "connect-src 'self'", "font-src 'self'", "frame-ancestors 'none'", "base-uri 'none'",
    "form-action 'none'",
}  # fmt: skip
PACKED_BYTES_MAX = 600_000


async def page_of(client):
    response = await client.get("/_console/")
    assert response.status == 200
    return response, await response.text()


async def test_everybody_gets_the_page_at_every_node(client, guarded, dataless, guarded_dataless):
    for one in (client, guarded, dataless, guarded_dataless):
        check_page(*await page_of(one))


def check_page(response, text):
    assert response.content_type == "text/html"
    headers = response.headers
    assert set(headers["Content-Security-Policy"].split("; ")) == CLOSED_POLICY
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-cache"
    assert "{" not in text, "every place was filled"
    assert "<script>" not in text
    assert "style=" not in text


async def test_every_file_that_the_page_names_is_there_and_is_kept_for_ever(client):
    _, text = await page_of(client)
    named = re.findall(r'(?:href|src)="([^"]+)"', text)
    assert len(named) > 5
    for address in named:
        response = await client.get(address)
        assert response.status == 200, address
        assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert response.content_type == kind[address.rpartition(".")[2]]


async def test_all_files_together_are_small(client):
    await page_of(client)
    console = client.app[CONSOLE]
    assert sum(len(one.content) for one in console._files.values()) < PACKED_BYTES_MAX


async def test_a_file_of_another_version_is_not_there(client, body):
    _, text = await page_of(client)
    (address,) = re.findall(r'src="([^"]+/app\.js)"', text)
    other = address.replace(address.split("/")[2], "0" * 16)
    await body(await client.get(other), 404)
    await body(await client.get(address.replace("app.js", "none.js")), 404)
    for outside in ("../__init__.py", "%2e%2e/__init__.py", "/etc/passwd", "lib/../../x"):
        response = await client.get(address.replace("app.js", outside))
        assert response.status in {400, 404}, outside


async def test_a_browser_that_has_the_page_is_told_so(client):
    response, _ = await page_of(client)
    tag = response.headers["ETag"]
    again = await client.get("/_console/", headers={"If-None-Match": tag})
    assert (again.status, again.headers["ETag"]) == (304, tag)
    assert "default-src 'none'" in again.headers["Content-Security-Policy"]
    other = await client.get("/_console/", headers={"If-None-Match": '"x"'})
    assert other.status == 200


async def test_who_takes_no_gzip_gets_the_plain_text(client):
    plain = await client.get("/_console/", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    packed = await client.get("/_console/", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"] == "Origin, Accept-Encoding"
    assert await plain.read() == await packed.read()


@pytest.mark.parametrize("path", ["/_console", "/_utils", "/_utils/", "/_utils/index.html"])
async def test_addresses_that_people_try_lead_there(guarded, path):
    response = await guarded.get(path, allow_redirects=False)
    assert response.status == 302
    assert response.headers["Location"] == "/_console/"


async def test_under_a_foreign_name_there_is_no_console(client, body):
    for path in ("/_console/", "/_utils", "/_millstream/samples"):
        response = await client.get(path, headers={"Host": "evil.example"}, allow_redirects=False)
        assert (await body(response, 403))["error"] == "foreign_host"
