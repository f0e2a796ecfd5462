from contextlib import AsyncExitStack

import pytest

from millstream.errors import AccessError
from millstream.node.settings import Settings
from millstream.node.token_order import keep_tokens, token_keys, token_order
from token_issuer import RULES, claims, jwks, token


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
        with pytest.raises(AccessError, match="aud"):
            await tokens.check(token(said | {"aud": "others"}, algorithm="ES256"))


async def test_nobodys_are_otherwise():
    assert token_order(Settings()) is None
    assert token_keys(None) is None
    async with AsyncExitStack() as stack:
        assert keep_tokens(Settings(), stack) is None
