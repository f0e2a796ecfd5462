"""Where PouchDB is looked for, and what it lacks after errors; it replicates in tests/e2e."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millstream.demo import pouchdb
from millstream.demo.pouchdb import PouchPeer, find_pouchdb
from millstream.errors import UnavailableError
from support.node.npm_peers import node_program


def test_without_pouchdb_or_node_there_is_no_peer(tmp_path, monkeypatch):
    assert find_pouchdb(tmp_path) is None
    (tmp_path / "node_modules" / "pouchdb-replication").mkdir(parents=True)
    monkeypatch.setattr(pouchdb.shutil, "which", lambda _: None)
    assert find_pouchdb(tmp_path) is None
    monkeypatch.setattr(pouchdb.shutil, "which", lambda _: "/bin/node")
    assert find_pouchdb(tmp_path) == tmp_path


@pytest.mark.parametrize("code", [0, 3])
def test_the_end_of_the_replication_gives_documents_or_an_error(tmp_path, monkeypatch, code):
    program = tmp_path / "node"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{{\"documents\":{{}}}}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with PouchPeer(tmp_path, "http://h/b", tmp_path / "log") as peer:
        if code:
            with pytest.raises(UnavailableError, match="code 3"):
                peer.documents()
        else:
            assert peer.documents() == {}


ROWS, BATCH = 3500, 500
FAILING = (1000, 2500)
"""Where `_changes` fails once, while the batch that begins `2 * BATCH` before it is read."""


class FailingDatabase:
    """Answers as CouchDB; `_changes` fails while PouchDB reads earlier documents.

    `hangs_up`: of its answers about itself each second one ends with the connection.
    """

    def __init__(self, *, hangs_up: bool) -> None:
        self.hangs_up, self.asked = hangs_up, 0
        self.failed = {since: asyncio.Event() for since in FAILING}
        self.is_read = asyncio.Event()
        self._checkpoint: dict[str, Any] | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.add_routes([
            web.get("/b/", self._info), web.get("/b/_changes", self._changes),
            web.post("/b/_bulk_get", self._bulk_get),
            web.get("/b/_local/{id}", self._read_checkpoint),
            web.put("/b/_local/{id}", self._keep_checkpoint),
        ])  # fmt: skip
        return app

    async def _info(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.hangs_up and self.asked % 2 == 0:  # the first one of a replication is needed
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"db_name": "b", "update_seq": ROWS, "doc_count": ROWS})

    async def _changes(self, request: web.Request) -> web.Response:
        since = int(request.query["since"])
        failed = self.failed.get(since)
        if failed is not None and not failed.is_set():
            failed.set()
            return web.json_response({"error": "node_failed"}, status=503)
        if since >= ROWS and request.query.get("feed") == "longpoll":
            self.is_read.set()
            await asyncio.sleep(60)
        end = min(since + int(request.query["limit"]), ROWS)
        rows = [
            {"seq": at, "id": f"d{at}", "changes": [{"rev": "1-a"}]}
            for at in range(since + 1, end + 1)
        ]
        return web.json_response({"results": rows, "last_seq": end, "pending": ROWS - end})

    async def _bulk_get(self, request: web.Request) -> web.Response:
        ids = [one["id"] for one in (await request.json())["docs"]]
        failed = self.failed.get(int(ids[0][1:]) - 1 + 2 * BATCH)
        if failed is not None:
            await asyncio.wait_for(failed.wait(), 10)
        path = {"start": 1, "ids": ["a"]}
        docs = [{"ok": {"_id": one, "_rev": "1-a", "_revisions": path, "n": 1}} for one in ids]
        pairs = zip(ids, docs, strict=True)
        return web.json_response({"results": [{"id": one, "docs": [doc]} for one, doc in pairs]})

    async def _read_checkpoint(self, _: web.Request) -> web.Response:
        found = self._checkpoint
        missing = {"error": "not_found", "reason": "missing"}
        return web.json_response(found or missing, status=200 if found else 404)

    async def _keep_checkpoint(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self._checkpoint and body.get("_rev") != self._checkpoint["_rev"]:
            return web.json_response({"error": "conflict"}, status=409)
        number = int(body.get("_rev", "0-0")[2:]) + 1
        self._checkpoint = body | {"_rev": f"0-{number}"}
        return web.json_response({"ok": True, "id": body["_id"], "rev": f"0-{number}"})


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_no_row_is_passed_over_where_changes_fail_while_documents_are_read(
    tmp_path: Path, *, hangs_up: bool
) -> None:
    node_program()  # skips where it is missing
    folder, database = find_pouchdb(), FailingDatabase(hangs_up=hangs_up)
    assert folder is not None
    async with TestServer(database.app()) as server:
        url = str(server.make_url("/b"))
        with PouchPeer(folder, url, tmp_path / "log") as peer:
            await asyncio.wait_for(database.is_read.wait(), 30)
            found = await asyncio.to_thread(peer.documents)
    assert all(one.is_set() for one in database.failed.values())
    assert sorted(found) == sorted(f"d{at}" for at in range(1, ROWS + 1))
