from contextlib import AsyncExitStack

import pytest

from millstream.errors import AccessError
from millstream.node.settings import Settings
from millstream.node.token_order import keep_tokens, token_keys, token_order
from support.node.token_issuer import RULES, claims, jwks, token


async def test_tokens_are_taken_where_settings_say_whose(tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    settings = Settings(
        oidc_issuer=RULES.issuer, oidc_audience=RULES.audience, oidc_jwks=str(keys),
        oidc_groups_claim="roles",
    )  # fmt: skip
    said = claims(exp=2**40, roles=["staff"])
    async with AsyncExitStack() as stack:
        tokens = keep_tokens(settings, stack)
        bearer = await tokens.check(token(said, algorithm="ES256"))
        assert (bearer.name, bearer.groups) == ("ada", ("staff",))
        assert tokens.is_taking
        assert tokens.lasts(bearer)
        assert not tokens.lasts(bearer._replace(until_s=1))
        with pytest.raises(AccessError, match="aud"):
            await tokens.check(token(said | {"aud": "others"}, algorithm="ES256"))


async def test_nobodys_are_otherwise():
    assert token_order(Settings()) is None
    assert token_keys(None) is None
    async with AsyncExitStack() as stack:
        tokens = keep_tokens(Settings(), stack)
        assert not tokens.is_taking
        with pytest.raises(AccessError, match="no issuer"):
            await tokens.check(token(claims(exp=2**40)))


async def test_what_is_set_for_all_nodes_counts_as_it_is_told(tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    told = {}
    shown = token(claims(exp=2**40, groups=["staff"]), algorithm="ES256")
    async with AsyncExitStack() as stack:
        tokens = keep_tokens(Settings(), stack, lambda: told)
        values = {"JWKS": str(keys), "ISSUER": RULES.issuer, "AUDIENCE": RULES.audience}
        told |= {f"GLOBAL.AUTH.{key}": value for key, value in values.items()}
        assert tokens.is_taking
        bearer = await tokens.check(shown)
        assert bearer.groups == ("staff",)
        told.clear()
        assert not tokens.is_taking
        assert not tokens.lasts(bearer)
        with pytest.raises(AccessError, match="no issuer"):
            await tokens.check(shown)
