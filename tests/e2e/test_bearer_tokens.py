"""Tokens of an identity provider over HTTP, on a whole node."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import redis

from support.node.node_process import FREE, NodeProcess
from support.node.token_issuer import RULES, claims, jwks, token
from support.node.waiting import until


def of_issuer(name: str, *groups: str, **others: Any) -> str:
    said = {"exp": time.time_ns() / 1e9 + 600, **others}
    return token(claims(sub=name, groups=groups, **said)).decode()


def ask(
    node: NodeProcess, method: str, path: str, shown: str, content: object = None
) -> tuple[int, Any, str]:
    """Return status, JSON, and how a refusal asks for a log-in."""
    data = None if content is None else json.dumps(content).encode()
    headers = {"Authorization": shown, "Content-Type": "application/json"}
    request = urllib.request.Request(node.http + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer), ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers.get("WWW-Authenticate", "")


def test_documents_by_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    options = (
        "--user", "ada:secret", "--bucket", "shop:4", "--log-level", "debug",
        "--oidc-issuer", RULES.issuer, "--oidc-audience", RULES.audience,
        "--oidc-jwks", str(keys),
    )  # fmt: skip
    shown = []
    with NodeProcess(tmp_path / "node", *options) as node:

        def by(text: str, method: str, path: str, content: object = None) -> tuple[int, Any, str]:
            shown.append(text)
            return ask(node, method, path, f"Bearer {text}", content)

        bob = of_issuer("bob", "read:shop", "write:shop", "staff")
        status, made, _ = by(bob, "PUT", "/shop/apple", {"price": 3})
        assert (status, made["ok"]) == (201, True)
        assert by(bob, "GET", "/shop/apple")[1]["price"] == 3
        session = by(bob, "GET", "/_session")[1]
        assert session["userCtx"]["name"] == "bob"
        assert session["info"]["authenticated"] == "jwt"
        assert by(bob, "POST", "/_session", {})[1]["name"] == "bob"
        eve = of_issuer("eve", "read:shop", "admin")
        assert by(eve, "GET", "/shop/apple")[0] == 200
        assert by(eve, "DELETE", f"/shop/apple?rev={made['rev']}")[0] == 403
        assert by(eve, "PUT", "/other")[0] == 403
        for bad in (
            of_issuer("bob", exp=1), of_issuer("bob", aud="others"), bob[:-9] + "AAAAAAAAA", "x",
        ):  # fmt: skip
            status, refused, challenge = by(bad, "GET", "/shop/apple")
            assert (status, refused["error"]) == (401, "unauthorized")
            assert refused["reason"].startswith("the token ")
            assert challenge.startswith("Bearer ")
        ada = "Basic YWRhOnNlY3JldA=="
        assert ask(node, "GET", "/shop/apple", ada)[0] == 200
        source = {"url": f"{node.http}/shop", "auth": {"bearer": bob}}
        job = {"source": source, "target": "copy", "create_target": True}
        status, done, _ = ask(node, "POST", "/_replicate", ada, job)
        assert (status, done.get("ok")) == (200, True), done
        assert ask(node, "GET", "/copy/apple", ada)[1]["price"] == 3
        assert "/shop/apple" in node.log()
        for text in shown:
            assert len(text) < 10 or text[-40:] not in node.log()


def test_whose_tokens_are_taken_may_be_set_for_all_nodes(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(jwks())
    settings = (("ISSUER", RULES.issuer), ("AUDIENCE", RULES.audience), ("JWKS", str(keys)))
    options = ("--user", "ada:secret", "--bucket", "shop:4", "--coord", FREE)
    bob = f"Bearer {of_issuer('bob', 'read:shop')}"
    with NodeProcess(tmp_path / "node", *options) as node:
        refused = ask(node, "GET", "/shop", bob)[1]
        assert "accepts no tokens" in refused["reason"]
        host, port = node.address("coord")
        with redis.Redis(host, port, username="ada", password="secret") as ada:
            until(lambda: ada.execute_command("SET", "ready", "yes"))
            for key, value in settings:
                ada.execute_command("CONFIG SET", "GLOBAL", f"GLOBAL.AUTH.{key}", value)
            until(lambda: ask(node, "GET", "/shop", bob)[0] == 200)
            ada.execute_command("CONFIG UNSET", "GLOBAL", "GLOBAL.AUTH.ISSUER")
            until(lambda: ask(node, "GET", "/shop", bob)[0] == 401)
