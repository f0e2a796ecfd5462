"""Who judges tokens, as the settings of all groups change."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from millstream.access.token_keys import TokenKeys
from millstream.access.users import UserStore
from millstream.coordination.aio.provider import Provider, Said
from millstream.coordination.aio.user_guard import UserGuard
from millstream.coordination.core.backend import Principal
from support.node.token_issuer import RULES, claims, jwks, token

FAR_S = 4e9
"""An hour of the next century: tokens that last until then are good now."""


def said(source: str = "/keys.json", **others: str) -> dict[bytes, bytes]:
    """Return settings of all groups that have tokens taken."""
    values = {"JWKS": source, "ISSUER": RULES.issuer, "AUDIENCE": RULES.audience, **others}
    return {f"GLOBAL.AUTH.{key}".encode(): value.encode() for key, value in values.items()}


async def bearer(guard: UserGuard, **named: object) -> Principal | str:
    """Log in by a token."""
    answer: asyncio.Future[Principal | str] = asyncio.get_running_loop().create_future()
    guard.check_token(token(claims(exp=FAR_S, **named)), answer.set_result)
    return await asyncio.wait_for(answer, 60)


async def test_settings_say_whose_tokens_are_taken(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    settings: dict[bytes, bytes] = {}
    guard = UserGuard(UserStore(), None, settings.get)
    assert [guard.asks] == [False]
    assert await bearer(guard) == "this node takes names and passwords, no tokens"
    settings.update(said(str(keys)))
    assert [guard.asks] == [True]
    found = await bearer(guard, groups=["ops"])
    assert isinstance(found, Principal)
    assert (found.name, found.groups, found.is_admin) == ("ada", ("ops",), False)
    settings[b"GLOBAL.AUTH.GROUPS"] = b"roles"
    found = await bearer(guard, groups=["ops"], roles=["staff"])
    assert isinstance(found, Principal)
    assert found.groups == ("staff",)
    settings[b"GLOBAL.AUTH.ISSUER"] = b"https://other.test"
    assert isinstance(await bearer(guard), str)
    found = await bearer(guard, iss="https://other.test")
    assert isinstance(found, Principal)
    settings.clear()
    assert [guard.asks] == [False]
    assert await bearer(guard) == "this node takes names and passwords, no tokens"
    await guard.close()


@pytest.mark.parametrize("missing", ["JWKS", "ISSUER", "AUDIENCE"])
async def test_all_of_it_is_wanted(missing: str) -> None:
    settings = said(**{missing: ""})
    provider = Provider(None, settings.get, lambda _: pytest.fail("it is not whole"))
    assert not provider.is_there
    assert provider.tokens is None
    await provider.close()


async def test_keys_from_anywhere_are_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    guard = UserGuard(UserStore(), None, said("http://id.test/keys").get)
    assert guard.asks
    for _ in range(3):
        assert isinstance(await bearer(guard), str)
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "http://id.test/keys" in errors[0].getMessage()
    await guard.close()


async def test_options_of_a_node_come_before_settings_of_all() -> None:
    own = TokenKeys(RULES, "/nowhere")
    provider = Provider(own, said().get, lambda _: pytest.fail("it has its own"))
    assert provider.is_there
    assert provider.tokens is own
    await provider.close()
    await own.close()


async def test_a_provider_is_asked_for_once_and_ended() -> None:
    opened: list[Said] = []
    keys: list[TokenKeys] = []

    def opens(wanted: Said) -> TokenKeys:
        opened.append(wanted)
        keys.append(TokenKeys(RULES, wanted.source, fetch=never))
        keys[-1].start()
        return keys[-1]

    async def never() -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    settings = said()
    provider = Provider(None, settings.get, opens)
    assert provider.tokens is provider.tokens is keys[0]
    settings.update(said("/others.json"))
    assert provider.tokens is keys[1]
    assert [one.source for one in opened] == ["/keys.json", "/others.json"]
    await provider.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
