"""What is taken for a document is what every JavaScript engine reads as one.

A value that is taken for a document and cannot be read in the sandbox would lose its rows. The
other way about there is one kind: strings with half a surrogate pair, which no UTF-8 can hold.
"""

from __future__ import annotations

import base64
import json
import random

from millstream.views.core.design.documents import document_text
from support.node.npm_peers import run_node

READ = """
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const isDocument = (text) => {
  try {
    const value = JSON.parse(utf8.decode(Buffer.from(text, "base64")));
    return typeof value === "object" && value !== null && !Array.isArray(value)
      && !Object.keys(value).some((name) => name[0] === "_");
  } catch { return false; }
};
process.stdout.write(JSON.stringify(texts.map(isDocument)));
"""
SEEDS = [
    b'{"a":1}', b'{"a":[1,2.5e3,"x"],"b":{"c":null}}', b'{"a":"\\u00e9\\n","b":true}',
    b'{"a":-0.0,"_b":1}', b' {"\\u005fa":"\xc3\xa9"}',
]  # fmt: skip
PIECES = [
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u", b"00", b"1", b"-", b".", b"e", b"E+",
    b"0", b"null", b"true", b"fal", b"a", b"_", b" ", b"\n", b"\x0b", b"\xc2\xa0", b"\xff",
    b"\x00", b"\x7f", b"\xe2\x80\xa8", b"NaN", b"Infinity", b'"b":', b"/", b"\\/", b"\\x", b"'",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud83d\\ude00",
]  # fmt: skip
VALUES = 40_000


def damaged(dice: random.Random) -> bytes:
    text = bytearray(dice.choice(SEEDS))
    for _ in range(dice.randrange(4)):
        at, width = dice.randrange(len(text) + 1), dice.choice([0, 0, 1, 2])
        text[at : at + width] = dice.choice([b"", *PIECES])
    return bytes(text)


def test_what_is_a_document_is_agreed_on():
    dice = random.Random(20261122)
    values = [damaged(dice) for _ in range(VALUES)]
    told = json.dumps([base64.b64encode(value).decode() for value in values]).encode()
    theirs = json.loads(run_node(READ, told))
    assert theirs.count(True) > VALUES // 10
    for value, is_theirs in zip(values, theirs, strict=True):
        is_ours = document_text("a", value) is not None
        assert is_ours == is_theirs or (is_theirs and b"\\ud" in value), value
