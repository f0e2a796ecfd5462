"""The archive for those who help."""

import io
import zipfile

from millstream.gateway.aio.node.support_pages import CONTENTS


async def test_the_archive_has_what_it_lists(client):
    response = await client.get("/_millstream/support")
    assert (response.status, response.content_type) == (200, "application/zip")
    assert "attachment" in response.headers["Content-Disposition"]
    with zipfile.ZipFile(io.BytesIO(await response.read())) as archive:
        assert set(archive.namelist()) == set(CONTENTS)
        listed = archive.read("contents.txt").decode().splitlines()
        assert {line.partition(":")[0] for line in listed} == set(CONTENTS)
        assert b"loop_lag_ms" in archive.read("statistics.txt")


async def test_only_administrators_get_it(guarded, body, bob):
    await body(await guarded.get("/_millstream/support"), 401)
    await body(await guarded.get("/_millstream/support", headers=bob), 403)


async def test_a_node_without_data_makes_one_too(dataless):
    assert (await dataless.get("/_millstream/support")).status == 200
