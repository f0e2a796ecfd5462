"""`core.shell.output`: replies as V2R2 prints them."""

from __future__ import annotations

import pytest

from millstream.coordination.core.resp.protocol import words_of
from millstream.coordination.core.shell.output import pretty, quoted
from millstream.coordination.core.shell.replies import ReplyCutter

DOORS = b"$5\r\ndoors\r\n"
MAP = b"%3\r\n+version\r\n$5\r\n1:2:3\r\n+sync\r\n%1\r\n+kind\r\n+lock\r\n+data\r\n$1\r\nx\r\n"


@pytest.mark.parametrize(
    ("line", "wire", "shown"),
    [
        ("PUT /a/b x", b"+OK\r\n", ["OK"]),
        ("DELETE /a/b", b"-NOTEMPTY /a/b\r\n", ["NOTEMPTY /a/b"]),
        ("GET /a/b", DOORS, ['"doors"']),
        ("CSN 3 GET /a/b", DOORS, ['"doors"']),
        ("GET /a/b", b"_\r\n", ["(nothing)"]),
        ("GET /a/b CAS", b"*2\r\n$5\r\n1:2:3\r\n" + DOORS, ["CAS: 1:2:3", '"doors"']),
        ("GET /a/b ATTR", MAP, ["version: 1:2:3", "sync:", "    kind: lock", 'data: "x"']),
        ("CREATE BINARY SEQUENTIAL /a/b", b"$4\r\n/a/b\r\n", ["/a/b"]),
        ("LIST /a", b"*2\r\n$2\r\nzz\r\n*2\r\n$1\r\nb\r\n$1\r\nc\r\n", ["TOKEN: zz", "b", "c"]),
        ("LIST /a", b"*2\r\n_\r\n*1\r\n$1\r\nb\r\n", ["b"]),
        ("LIST RANGE /a/l 0 1", b"*2\r\n$1\r\nb\r\n$1\r\nc\r\n", ['"b"', '"c"']),
        ("LIST RANGE /a/l 0 1", b"*0\r\n", ["(empty)"]),
        ("SET MEMBERS /a/s", b"*2\r\n_\r\n*1\r\n$1\r\nb\r\n", ['"b"']),
        ("LOOKUP /a/b/c", b"*2\r\n$8\r\nNOTFOUND\r\n$4\r\n/a/b\r\n", ["NOTFOUND", "/a/b"]),
        ("COUNTER DEC /a/c", b"*2\r\n:0\r\n$6\r\nNOWRAP\r\n", ["0", "NOWRAP"]),
        ("COUNTER INC /a/c", b"(99999999999999999999\r\n", ["99999999999999999999"]),
        ("LOCK GROUP /a /b", b"*3\r\n+PENDING\r\n$2\r\n/a\r\n+LOCKED\r\n",
         ["PENDING", "/a LOCKED"]),
        ("LOCK /a TOKEN", b"*2\r\n+OK\r\n$5\r\n1:2:3\r\n", ["OK", "TOKEN: 1:2:3"]),
        ("ELECT LEADER /a", b"*3\r\n$2\r\nid\r\n$5\r\n1:2:3\r\n$1\r\nx\r\n",
         ["CLIENT: id", "TOKEN: 1:2:3", '"x"']),
        ("QUEUE PUSH /a/q x", b"*1\r\n$7\r\n1:2:3:0\r\n", ["1:2:3:0"]),
        ("QUEUE TAKE /a/q", b"*1\r\n*3\r\n$7\r\n1:2:3:0\r\n$1\r\nx\r\n:1\r\n", ['1:2:3:0 "x" 1']),
        ("EXEC", b"*2\r\n+OK\r\n$1\r\nx\r\n", ["OK", '"x"']),
        ("", b">3\r\n$7\r\nmessage\r\n$2\r\n/a\r\n$2\r\n{}\r\n", ["/a {}"]),
        ("", b">3\r\n$9\r\nsubscribe\r\n$2\r\n/a\r\n:1\r\n", ["subscribe /a 1"]),
    ],
)  # fmt: skip
def test_replies_are_shown(line: str, wire: bytes, shown: list[str]) -> None:
    (reply,) = ReplyCutter().feed(wire)
    assert pretty(words_of(line.encode()), reply) == shown


@pytest.mark.parametrize("data", [b'a "b"\\\r\n\t', b"\xff\x00\x1b[2J", "Grüße".encode(), b""])
def test_data_is_shown_so_that_the_shell_reads_it_again(data: bytes) -> None:
    assert words_of(b"X " + quoted(data).encode()) == [b"X", data]
    assert "\x1b" not in quoted(data)
