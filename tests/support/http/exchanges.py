"""Exchanges between a replicator and a server, written down, and played against a real node.

A file holds a list of exchanges:

    {"ask": "GET /db/x?rev=$REV$", "with": {header: value}, "json" | "text" | "lines": body,
     "status": 200, "headers": {header: value}, "answer": JSON | "parts": [..] | "rows": [..]}

`lines` are joined by CRLF, as those of multipart bodies. What comes back is compared with `answer`
(JSON), `parts` (multipart: each with `headers`, and `json`, `text`, `gunzip` or `parts`) or `rows`
(a feed that ends: JSON, one a line; empty lines are heartbeats).

In what is expected `"$*$"` is anything, `"$NAME$"` anything when it first comes, and the same ever
after, `"$seq:NAME$"` the same of a position; {"$all": [..]} is these in any order; an object with
the member "$more" may have others. `$NAME$` in a request is what came before, percent-encoded in
addresses.

Invariants:
1. Each exchange takes the next one of `CONNECTIONS` connections, as CouchDB's replicator does.
2. Head and body of a request are sent apart; a GET says Content-Length: 0.
3. Every answer is as HTTP/1.1 clients need it: it has its length, or comes in chunks, and is JSON
   with a line end unless it is multipart or an attachment.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.http.raw_http import Answer, RawHttp, request

FOLDER = Path(__file__).parents[2] / "conformance" / "exchanges"
CONNECTIONS = 20
FEED_S = 10.0
"""The longest silence that CouchDB's replicator puts up with in a feed."""
_NAME = re.compile(r"\$((?:seq:)?)(\*|[A-Z_0-9]+)\$")
_SEQ = re.compile(r"[0-9]+-[A-Za-z0-9_-]+")


def recorded(name: str) -> list[dict[str, Any]]:
    """Return what a file holds."""
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


class Player:
    """Plays one file.

    Args:
        address: of the node.
        known: what placeholders stand for from the beginning.
    """

    def __init__(self, address: tuple[str, int], known: Mapping[str, str]) -> None:
        self._known = dict(known)
        self._connections = [RawHttp(address, FEED_S) for _ in range(CONNECTIONS)]
        self._count = 0

    def close(self) -> None:
        """Close all connections."""
        for one in self._connections:
            one.close()

    def play(self, name: str) -> int:
        """Play a file; return how many exchanges there were."""
        exchanges = recorded(name)
        self.play_all(name, exchanges)
        return len(exchanges)

    def play_all(self, name: str, exchanges: Sequence[Mapping[str, Any]]) -> None:
        """Play exchanges; `name` is told if one differs.

        Raises:
            AssertionError: an answer is not as it was written down.
        """
        for number, one in enumerate(exchanges):
            try:
                self._exchange(one)
            except AssertionError as error:
                raise AssertionError(
                    f"{name}, exchange {number}, {one['ask']}: {error}"
                ) from error
        return len(exchanges)

    def _exchange(self, one: Mapping[str, Any]) -> None:
        method, _, path = one["ask"].partition(" ")
        headers = {name: self._filled(value) for name, value in one.get("with", {}).items()}
        body = self._body(one)
        if body is None:
            headers.setdefault("Content-Length", "0")
        client = self._connections[self._count % CONNECTIONS]
        self._count += 1
        head = request(method, self._filled(path, is_address=True), body, headers)
        size = len(body or b"")
        client.send(head[: len(head) - size])
        if body:
            client.send(body)
        if "rows" in one:
            self._feed(client, one)
            return
        answer = client.receive()
        assert answer.status == one.get("status", 200), (answer.status, answer.body[:500])
        self._headers(one.get("headers", {}), answer.headers)
        if "parts" in one:
            self._parts(one["parts"], answer.headers["content-type"], answer.body)
        elif "plain" in one:
            assert answer.body == one["plain"].encode(), answer.body[:500]
        elif "answer" in one:
            self._json(one["answer"], answer)

    def _body(self, one: Mapping[str, Any]) -> bytes | None:
        if "json" in one:
            return self._filled(json.dumps(one["json"])).encode()
        if "lines" in one:
            return self._filled("\r\n".join(one["lines"])).encode()
        return self._filled(one["text"]).encode() if "text" in one else None

    def _filled(self, text: str, *, is_address: bool = False) -> str:
        def value(match: re.Match[str]) -> str:
            known = self._known[match[2]]
            return quote(known, safe="") if is_address else known

        return _NAME.sub(value, text)

    # -- what comes back

    def _json(self, expected: Any, answer: Answer) -> None:
        assert answer.headers["content-type"].startswith("application/json"), answer.headers
        assert answer.body.endswith(b"\n"), answer.body[-100:]
        self._same(expected, answer.json, "")

    def _feed(self, client: RawHttp, one: Mapping[str, Any]) -> None:
        status, headers = client.head()
        assert (status, headers.get("transfer-encoding")) == (200, "chunked"), (status, headers)
        text = b"".join(client.chunks())
        rows = [json.loads(line) for line in text.split(b"\n") if line.strip()]
        self._same(one["rows"], rows, "")

    def _headers(self, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
        for name, value in expected.items():
            assert name in found, f"no header {name} in {dict(found)}"
            self._text(value, found[name], name)

    def _same(self, expected: Any, found: Any, where: str) -> None:
        if isinstance(expected, dict) and "$all" in expected:
            self._all(expected["$all"], found, where)
        elif isinstance(expected, dict):
            assert isinstance(found, dict), f"{where}: {found!r}"
            names = set(expected) - {"$more"}
            assert names <= set(found), f"{where}: no {names - set(found)} in {found!r}"
            if "$more" not in expected:
                assert set(found) == names, f"{where}: {set(found) - names} besides"
            for name in names:
                self._same(expected[name], found[name], f"{where}.{name}")
        elif isinstance(expected, list):
            assert isinstance(found, list), f"{where}: {found!r}"
            assert len(found) == len(expected), f"{where}: {found!r}"
            for number, pair in enumerate(zip(expected, found, strict=True)):
                self._same(*pair, f"{where}[{number}]")
        elif isinstance(expected, str):
            self._text(expected, found, where)
        else:
            assert (type(found), found) == (type(expected), expected), f"{where}: {found!r}"

    def _all(self, expected: list[Any], found: Any, where: str) -> None:
        """Match each with the only one that has the same id."""
        assert isinstance(found, list), f"{where}: {found!r}"
        by_id = {one["id"]: one for one in found}
        assert len(by_id) == len(found) == len(expected), f"{where}: {found!r}"
        for one in expected:
            assert one["id"] in by_id, f"{where}: no {one['id']} in {sorted(by_id)}"
            self._same(one, by_id[one["id"]], f"{where}[{one['id']}]")

    def _text(self, expected: str, found: Any, where: str) -> None:
        pattern, names, end = "", list[str](), 0
        for match in _NAME.finditer(expected):
            pattern += re.escape(expected[end : match.start()])
            is_seq, name, end = match[1] == "seq:", match[2], match.end()
            if name in self._known:
                pattern += re.escape(self._known[name])
            else:
                pattern += f"({_SEQ.pattern})" if is_seq else "(.*)"
                names.append(name)
        pattern += re.escape(expected[end:])
        assert isinstance(found, str), f"{where}: {found!r}, expected is {expected!r}"
        fitting = re.fullmatch(pattern, found, re.DOTALL)
        assert fitting, f"{where}: {found!r}, expected is {expected!r}"
        pairs = zip(names, fitting.groups(), strict=True)
        self._known.update({name: value for name, value in pairs if name != "*"})

    def _parts(self, expected: list[Any], kind: str, body: bytes) -> None:
        boundary = re.search(r'boundary="?([^";]+)"?', kind)
        assert boundary, kind
        found = list(parts_of(body, boundary[1].encode()))
        assert len(found) == len(expected), f"{len(found)} parts: {body[:2000]!r}"
        for one, (headers, content) in zip(expected, found, strict=True):
            self._headers(one.get("headers", {}), headers)
            if "parts" in one:
                self._parts(one["parts"], headers["content-type"], content)
            elif "gunzip" in one:
                assert headers["content-encoding"] == "gzip", headers
                assert gzip.decompress(content) == one["gunzip"].encode()
            elif "text" in one:
                assert content == one["text"].encode(), content[:500]
            else:
                self._same(one["json"], json.loads(content), "part")
            if "content-length" in headers:
                assert int(headers["content-length"]) == len(content)


def parts_of(body: bytes, boundary: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield headers and content of the parts of a multipart body."""
    mark = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(mark)
    assert pieces[0] == b"", f"before the first part: {pieces[0][:100]!r}"
    assert pieces[-1] in (b"--", b"--\r\n"), f"the end: {pieces[-1][:100]!r}"
    for piece in pieces[1:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        assert blank, piece[:100]
        lines = [line.partition(":") for line in head.decode().split("\r\n")[1:]]
        yield {name.lower(): value.strip() for name, _, value in lines}, content
