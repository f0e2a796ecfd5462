"""Commands called as a user calls them, in this process, against documents in a dictionary."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from millstream.cli import connect, delete, get, put
from millstream.cli.bulk import load
from millstream.cli.main import main
from millstream.client.documents import Document, Stored, content_of
from millstream.client.extensions import PartitionPosition, Versioned
from millstream.client.writes import Write
from millstream.errors import AccessError, ConditionError, UsageError
from millstream.model.partitions import PartitionState


class Outcome(NamedTuple):
    code: int
    out: bytes
    err: str


class FakeClient:
    def __init__(self) -> None:
        self.documents: dict[bytes, Document] = {}
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.batches: list[int] = []
        self.fail_after: int | None = None
        self.may_read = True
        self.refused_key = b""

        class Map:
            bucket_uuid = "feed"

        self.cluster_map = Map()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, key: bytes) -> Document | None:
        return self.documents.get(key)

    def upsert(self, key: bytes, value: Any, **options: Any) -> Stored:
        self.calls.append(("upsert", options))
        data, flags, datatype = content_of(value)
        self.documents[key] = Document(data, 7, flags, datatype)
        return Stored(7, 3, 0xAB, 9)

    def remove(self, key: bytes, **options: Any) -> Stored:
        self.calls.append(("remove", options))
        if self.documents.pop(key, None) is None:
            raise ConditionError("no such document", code="not_found")
        return Stored(7, 3, 0xAB, 9)

    def exists(self, key: bytes) -> bool:
        if not self.may_read:
            raise AccessError("the user lacks the right")
        return key in self.documents

    def each(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, Document]]:
        assert self.may_read or not list(keys)
        return ((key, self.documents[key]) for key in keys if key in self.documents)

    def get_versioned_many(self, keys: Iterable[bytes]) -> dict[bytes, Versioned]:
        return {
            key: Versioned(
                found.data, found.cas, found.flags, 0, 0, 0, 1, 0, False, found.datatype
            )
            for key, found in self.each(keys)
        }

    def write_each(self, writes: Iterable[Write]) -> Iterator[tuple[Write, Any]]:
        wanted = list(writes)
        self.batches.append(len(wanted))
        if self.fail_after is not None and sum(self.batches) > self.fail_after:
            raise KeyboardInterrupt
        for write in wanted:
            if write.key == self.refused_key:
                yield write, UsageError("too large", code="too_large")
            elif write.value is None:
                del self.documents[write.key]
                yield write, Stored(7, 3, 0xAB, 9)
            else:
                self.documents[write.key] = Document(write.value, 7, write.flags, write.datatype)
                yield write, Stored(7, 3, 0xAB, 9)

    def positions(self) -> list[PartitionPosition]:
        return [PartitionPosition(0, PartitionState.ACTIVE, 1, 1, len(self.documents), *[0] * 5)]

    def wait_persisted(self, timeout_s: float) -> None:
        pass


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits long for a node that never starts."""
    monkeypatch.setattr(connect, "STARTING_S_MAX", 0.05)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient()
    for module in (get, put, delete, load):
        monkeypatch.setattr(module, "client_of", lambda *_, **__: made)
    return made


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Outcome]:
    def run(*words: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capsysbinary.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, out, err.decode())

    return run


class FalseSession:
    """A Spark session that does nothing."""

    def stop(self) -> None: ...


@pytest.fixture
def no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines are recorded below the test's directory, and get no Spark."""
    from millstream.pipelines import session

    monkeypatch.setenv("MILLSTREAM_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(session, "local_session", lambda *_, **__: FalseSession())
