"""Where PouchDB is looked for; it replicates in tests/e2e."""

from __future__ import annotations

import pytest

from millstream.demo import pouchdb
from millstream.demo.pouchdb import PouchPeer, find_pouchdb
from millstream.errors import UnavailableError


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
