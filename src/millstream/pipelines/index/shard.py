"""One index of a node, as a writer outside the node reaches it: over HTTP.

Invariants:
1. A file is sent as it is made: what is in memory of it is bounded by one piece.

Elsewhere: the pages (docs/reference/http.md), what they do (`views.aio.serving.outside_writer`).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec

from millstream.client.http import HttpClient
from millstream.model.position import Position, position_from_json
from millstream.views.core.index.staged import END

__all__ = ["COMMIT_S", "IndexAddress", "IndexShard", "IndexState", "offers_at"]

COMMIT_S: Final = 3600.0
"""How long a commit may take: a first build of any size is one."""
ANSWER_S: Final = 60.0
PIECE_BYTES: Final = 256 * 1024


class IndexState(msgspec.Struct, frozen=True):
    """The state of an index. After a commit it also says what happened to the parts."""

    signature: str
    engine: str
    writer: str
    fence: int
    commit: int
    committed_ms: int
    is_empty: bool
    trees: int
    rows: list[int]
    states: dict[int, str]
    positions: dict[int, list[str | int]]
    published: list[int] = []
    left_out: dict[int, str] = {}
    nodes: list[str] = []
    """HTTP addresses of the nodes that have parts of the index, in a managed cluster."""

    @property
    def where(self) -> dict[int, Position]:
        """The position of each partition that is active or passive."""
        return {p: position_from_json(form) for p, form in self.positions.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexAddress:
    """The address of an index, and the login; sent to executors, password included."""

    host: str
    port: int
    bucket: str
    design: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_authority: str = ""


class IndexShard:
    """The calls.

    Args:
        address: of the index.
    """

    def __init__(self, address: IndexAddress) -> None:
        self._http = _http_of(address)
        bucket, design = (quote(name, safe="") for name in (address.bucket, address.design))
        self._path = f"/_millstream/indexes/{bucket}/{design}"

    def state(self, limit_s: float = COMMIT_S) -> IndexState:
        """Return the state of the index; wait no longer than `limit_s`.

        Raises:
            ConditionError: `missing`: no such design document.
            UnavailableError: `index_unavailable`, `unreachable`.
        """
        return self._state("GET", "", None, limit_s)

    def take_over(self, writer: str) -> IndexState:
        """Become the writer.

        Raises:
            ConditionError: `not_spark_engine`.
        """
        return self._state("POST", "/writer", {"writer": writer})

    def judge(self, fence: int) -> IndexState:
        """Roll the index back where its source rolled back.

        Raises:
            ConditionError: `index_fenced`.
        """
        return self._state("POST", "/judge", {"fence": fence})

    def keep(self, fence: int) -> list[str]:
        """Report that the writer is at work. Return which files are staged. Raises as `judge`."""
        said = {"fence": fence}
        answer = self._http.request("POST", f"{self._path}/keep", said, timeout_s=ANSWER_S)
        return msgspec.convert(answer.get("staged"), list[str])

    def stage(self, fence: int, run: str, blocks: Iterable[bytes]) -> None:
        """Send a file; raises as `judge`."""
        path = f"{self._path}/runs/{run}?fence={fence}"
        headers = {"Content-Type": "application/octet-stream"}
        with self._http.open("PUT", path, _pieces(blocks), headers=headers, timeout_s=COMMIT_S):
            pass

    def load(self, fence: int, said: Mapping[str, Any]) -> IndexState:
        """Make the first commit.

        Raises:
            ConditionError: `index_fenced`, `run_missing`.
            UsageError: `index_not_empty`.
        """
        return self._state("POST", "/load", {"fence": fence, **said})

    def publish(self, fence: int, said: Mapping[str, Any]) -> IndexState:
        """Make a later commit; raises as `load`."""
        return self._state("POST", "/publish", {"fence": fence, **said})

    def _state(
        self, method: str, page: str, content: Any, limit_s: float = COMMIT_S
    ) -> IndexState:
        answer = self._http.request(method, self._path + page, content, timeout_s=limit_s)
        return msgspec.convert(answer, IndexState, strict=False)


def offers_at(address: IndexAddress, building: Sequence[str], timeout_s: float) -> list[str]:
    """Tell a node which builds are under way; return the design documents whose builds it offers.

    Args:
        address: of the node and the bucket.
        building: design documents.
        timeout_s: longest wait for anything of the answer.

    Raises:
        UnavailableError: the node is away, or has no views.
        AccessError: who asks has not the right `design`.
    """
    bucket = quote(address.bucket, safe="")
    said = {"building": list(building)}
    answer = _http_of(address).request(
        "POST", f"/_millstream/offers/{bucket}", said, timeout_s=timeout_s
    )
    return msgspec.convert(answer.get("offers"), list[str])


def _http_of(address: IndexAddress) -> HttpClient:
    tls = None
    if address.tls_authority:
        tls = ssl.create_default_context(cadata=address.tls_authority)
    return HttpClient(
        address.host, address.port, user=address.user, password=address.password or "",
        tls=tls, timeout_s=ANSWER_S,
    )  # fmt: skip


def _pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size >= PIECE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join((*held, END))
