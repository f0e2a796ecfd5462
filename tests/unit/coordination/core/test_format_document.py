"""The example in docs/reference/coordination-format.md is what the code writes and reads."""

from __future__ import annotations

from pathlib import Path

from millstream.vsr.core.entries import (
    GENESIS,
    Body,
    Kind,
    check_chain,
    decode_entry,
    encode_entry,
)

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "coordination-format.md"


def test_the_example() -> None:
    lines = DOCUMENT.read_text().split("```hex\n")[1].split("```")[0].splitlines()
    data = b"".join(bytes.fromhex(line[6:]) for line in lines)
    entry = decode_entry(data)
    assert encode_entry(entry) == data
    assert entry.content == Body(b"ann", (b"ops",), (b"PUT", b"/a", b"1"))
    assert (entry.header.kind, entry.header.view, entry.header.claim) == (Kind.REQUEST, 1, False)
    assert check_chain(GENESIS, bytes(range(16)), [entry]).lsn == 1
