"""The archive for those who help, of a served node whose functions throw documents."""

from __future__ import annotations

import io
import urllib.request
import zipfile
from collections.abc import Iterator

import pytest

from support.http.http_calls import call, done
from support.node.node_process import NodeProcess

PLANTED = ("id-planted", "body-planted", "code-planted", "local-planted")
THROWS = "function (doc) { var v = 'code-planted'; throw new Error('no ' + doc.text); }"
PASSES = "function (doc) { throw { odd: doc.text }; }"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("support") / "node"
    with NodeProcess(directory, "--bucket", "b:4") as running:
        yield running


def test_logs_in_it_name_no_documents_and_repeat_nothing_that_a_function_threw(
    node: NodeProcess,
) -> None:
    done(node, "PUT", "/b/id-planted-1", {"text": "body-planted"})
    done(node, "PUT", "/b/_local/local-planted", {"text": "body-planted"})
    code = {"views": {"v": {"map": THROWS}}, "filters": {"f": PASSES}, "updates": {"u": THROWS}}
    done(node, "PUT", "/b/_design/d", code)
    call(node, "GET", "/b/_design/d/_view/v")
    call(node, "GET", "/b/_changes?filter=d/f")
    assert call(node, "POST", "/b/_design/d/_update/u/id-planted-1", {})[0] >= 400
    done(node, "PUT", "/b/_design/e", {"validate_doc_update": THROWS})
    assert call(node, "PUT", "/b/id-planted-2", {"text": "body-planted"})[0] >= 400
    with urllib.request.urlopen(f"{node.http}/_millstream/support") as answer:
        archive = zipfile.ZipFile(io.BytesIO(answer.read()))
    texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "failed" in texts["logs.txt"], "the failures are logged"
    for secret in PLANTED:
        assert [name for name, text in texts.items() if secret in text] == []
