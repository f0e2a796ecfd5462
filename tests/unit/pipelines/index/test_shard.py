"""What is asked of a node's pages, without a node."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millstream.errors import ConditionError
from millstream.model.position import Position
from millstream.pipelines.index.shard import IndexAddress, IndexShard
from millstream.views.core.index.staged import END

STATE = {
    "signature": "s", "engine": "spark", "writer": "w", "fence": 4, "commit": 9,
    "committed_ms": 1, "is_empty": False, "trees": 1, "rows": [3], "states": {"0": "active"},
    "positions": {"0": ["00000000000a", 7, 5, 9, 2]}, "more": 1,
}  # fmt: skip


class Pages(BaseHTTPRequestHandler):
    """Keeps what is asked; answers `STATE`, or the error that is set."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, body))
        status, content = self.server.says
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def pages():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.asked, server.says = [], (200, STATE)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def shard(pages):
    return IndexShard(
        IndexAddress(host="127.0.0.1", port=pages.server_port, bucket="b/1", design="d")
    )


def test_where_an_index_stands(shard, pages):
    state = shard.state()
    assert state.where == {0: Position(10, 7, 5, 9, 2)}
    assert (state.fence, state.rows, state.published, state.left_out) == (4, [3], [], {})
    assert pages.asked == [("GET", "/_millstream/indexes/b%2F1/d", b"")]


def test_calls_and_what_they_say(shard, pages):
    pages.says = (200, {**STATE, "published": [0], "left_out": {"1": "lease_lost"}})
    shard.take_over("w")
    shard.judge(4)
    shard.load(4, {"parts": {}, "back": []})
    done = shard.publish(4, {"parts": {}, "documents": ["r"]})
    assert (done.published, done.left_out) == ([0], {1: "lease_lost"})
    said = [(path.rpartition("/")[2], json.loads(body)) for _, path, body in pages.asked]
    assert said == [
        ("writer", {"writer": "w"}),
        ("judge", {"fence": 4}),
        ("load", {"fence": 4, "parts": {}, "back": []}),
        ("publish", {"fence": 4, "parts": {}, "documents": ["r"]}),
    ]


def test_a_file_is_sent_as_it_is_made_and_ended(shard, pages):
    pages.says = (201, {"ok": True})
    shard.stage(4, "r1", (bytes([n]) * 1000 for n in range(200)))
    shard.stage(4, "r2", [])
    (_, path, body), (*_, empty) = pages.asked
    assert path == "/_millstream/indexes/b%2F1/d/runs/r1?fence=4"
    assert body == b"".join(bytes([n]) * 1000 for n in range(200)) + END
    assert empty == END


def test_refusals_have_their_codes(shard, pages):
    pages.says = (409, {"error": "index_fenced", "reason": "taken over"})
    for call in (lambda: shard.judge(1), lambda: shard.stage(1, "r", [b"x"])):
        with pytest.raises(ConditionError) as caught:
            call()
        assert caught.value.code == "index_fenced"
