"""Keys of an identity provider: read, read again when it is time, kept when that fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from millstream.access import token_keys
from millstream.access.token_keys import REFRESH_S, RETRY_S, TokenKeys, wants
from millstream.access.tokens import KEY_SET_BYTES_MAX
from millstream.errors import AccessError
from support.node.token_issuer import NOW_S, RULES, jwk, jwks, rsa_key, token

NEW = token(key=rsa_key(1), kid="new")


class Provider:
    """Serves keys; counts who asks."""

    def __init__(self) -> None:
        self.keys, self.status, self.asked = jwks(), 200, 0
        self.url = ""

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        headers = {"Location": self.url + "/elsewhere"} if self.status == 302 else {}
        return web.Response(body=self.keys, status=self.status, headers=headers)

    async def elsewhere(self, _: web.Request) -> web.Response:
        return web.Response(body=jwks())


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    found, app = Provider(), web.Application()
    app.add_routes([web.get("/keys", found.answer), web.get("/keys/elsewhere", found.elsewhere)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
    yield found
    await runner.cleanup()


@asynccontextmanager
async def judging(source: str) -> AsyncIterator[TokenKeys]:
    tokens = TokenKeys(RULES, source, now_s=lambda: NOW_S)
    try:
        yield tokens
    finally:
        await tokens.close()


def test_when_keys_are_read_again() -> None:
    assert wants(float("inf"), is_missing=False)
    assert not wants(REFRESH_S - 1, is_missing=False)
    assert wants(REFRESH_S, is_missing=False)
    assert not wants(RETRY_S - 1, is_missing=True)
    assert wants(RETRY_S, is_missing=True)


async def test_keys_of_a_url(provider: Provider) -> None:
    async with judging(provider.url) as tokens:
        tokens.start()
        found = await asyncio.gather(*(tokens.check(token()) for _ in range(20)))
        assert {bearer.name for bearer in found} == {"ada"}
        assert provider.asked == 1


async def test_keys_of_a_file(tmp_path: Path) -> None:
    source = tmp_path / "keys.json"
    source.write_bytes(jwks())
    async with judging(str(source)) as tokens:
        assert (await tokens.check(token())).name == "ada"


async def test_a_new_key_is_found_but_not_sought_again_and_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with judging(provider.url) as tokens:
        await tokens.check(token())
        provider.keys = jwks(jwk("new", rsa_key(1)))
        for _ in range(20):
            with pytest.raises(AccessError) as caught:
                await tokens.check(NEW)
            assert caught.value.code == "unknown_token_key"
        assert provider.asked == 1
        monkeypatch.setattr(token_keys, "RETRY_S", 0.0)
        assert (await tokens.check(NEW)).name == "ada"
        assert provider.asked == 2
        with pytest.raises(AccessError):
            await tokens.check(token())  # its key was withdrawn


async def test_keys_are_read_again_in_the_background(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "RETRY_S", 0.01)
    monkeypatch.setattr(token_keys, "REFRESH_S", 0.01)
    async with judging(provider.url) as tokens:
        tokens.start()
        async with asyncio.timeout(60):
            while provider.asked < 3:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("status", "keys"),
    [(500, jwks()), (302, jwks()), (200, b"<html>"), (200, b"x" * (KEY_SET_BYTES_MAX * 3))],
)
async def test_keys_stay_when_they_cannot_be_read_again(
    provider: Provider, status: int, keys: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "RETRY_S", 0.0)
    async with judging(provider.url) as tokens:
        await tokens.check(token())
        provider.status, provider.keys = status, keys
        with pytest.raises(AccessError):
            await tokens.check(NEW)
        assert provider.asked >= 2
        assert (await tokens.check(token())).name == "ada"


async def test_a_provider_that_is_not_there_and_then_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "keys.json"
    monkeypatch.setattr(token_keys, "RETRY_S", 0.0)
    async with judging(str(source)) as tokens:
        with pytest.raises(AccessError):
            await tokens.check(token())
        source.write_bytes(jwks())
        assert (await tokens.check(token())).name == "ada"


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(token_keys, "FETCH_S_MAX", 0.01)
    tokens = TokenKeys(RULES, "nowhere", now_s=lambda: NOW_S, fetch=never)
    with pytest.raises(AccessError):
        await tokens.check(token())
    await tokens.close()
