import os
from pathlib import Path

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.model.position import Position
from millstream.upr.aio.checkpoints import FileCheckpointStore
from millstream.upr.core.checkpoint import Checkpoint, StreamProgress


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = FileCheckpointStore(tmp_path / "place.json")
    assert store.load() is None
    for seqno in (1, 2):
        checkpoint = Checkpoint("b", "u", {3: StreamProgress(Position(1, seqno, seqno, seqno))})
        store.save(checkpoint)
        assert store.load() == checkpoint
    assert os.listdir(tmp_path) == ["place.json"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "torn").write_text("{")
    with pytest.raises(CorruptionError, match="torn"):
        FileCheckpointStore(tmp_path / "torn").load()
    with pytest.raises(UnavailableError, match="cannot read"):
        FileCheckpointStore(tmp_path).load()
    with pytest.raises(UnavailableError, match="cannot write"):
        FileCheckpointStore(tmp_path / "none" / "place").save(Checkpoint("b", "u", {}))
