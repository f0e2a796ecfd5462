from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.errors import ConditionError, UsageError
from millstream.pipelines import checkpoints
from millstream.pipelines.change_stream.offsets import Offset, OffsetEntry, offset_to_json
from millstream.pipelines.checkpoints import read_checkpoint, reset_checkpoint

BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def offset(seqno: int, uuid: str = "ff") -> Offset:
    return Offset("b", uuid, {0: OffsetEntry(1, seqno, seqno, seqno, 5)})


def begin(directory: Path, number: int, seqno: int) -> None:
    text = json.dumps(offset_to_json(offset(seqno)))
    (directory / "offsets" / str(number)).write_text(f"v1\n{BATCH}\n{text}")
    (directory / "offsets" / f".{number}.crc").write_text("x")


def end(directory: Path, number: int) -> None:
    (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for number in (9, 10):
        begin(tmp_path, number, number * 10)
        end(tmp_path, number)
    return tmp_path


def test_the_offset_of_a_checkpoint_is_the_end_of_its_last_finished_batch(
    checkpoint: Path,
) -> None:
    state = read_checkpoint(checkpoint)
    assert state == (checkpoint, 10, offset(100), None)
    begin(checkpoint, 11, 110)
    assert read_checkpoint(checkpoint) == (checkpoint, 10, offset(100), offset(110))


def test_a_pipeline_directory_contains_its_checkpoint(tmp_path: Path) -> None:
    inside = tmp_path / "spark"
    (inside / "offsets").mkdir(parents=True)
    assert read_checkpoint(tmp_path) == (inside, -1, None, None)
    assert reset_checkpoint(tmp_path, offset(3)) == 0
    assert read_checkpoint(tmp_path) == (inside, 0, offset(3), None)


def test_a_reset_is_one_more_batch_with_the_settings_of_the_last(checkpoint: Path) -> None:
    assert reset_checkpoint(checkpoint, offset(5)) == 11
    assert read_checkpoint(checkpoint) == (checkpoint, 11, offset(5), None)
    assert (checkpoint / "offsets" / "11").read_text().splitlines()[1] == BATCH
    assert {path.name for path in checkpoint.iterdir()} == {"offsets", "commits"}
    assert not list(checkpoint.glob("*/.*.new"))


def test_batches_that_had_begun_end_at_the_new_offset_and_are_kept_aside(checkpoint: Path) -> None:
    begin(checkpoint, 11, 110)
    begin(checkpoint, 12, 120)
    assert reset_checkpoint(checkpoint, offset(5)) == 12
    assert read_checkpoint(checkpoint) == (checkpoint, 12, offset(5), None)
    assert '"seqno"' not in (checkpoint / "set-aside" / "11").read_text()
    assert "110" in (checkpoint / "set-aside" / "11").read_text()
    assert not (checkpoint / "offsets" / ".11.crc").exists()


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_reset_that_is_cut_off_leaves_the_old_offset_or_the_new_one(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    if has_begun:
        begin(checkpoint, 11, 110)
    write = checkpoints._write
    left = 0

    def cut_off(path: Path, text: str) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        write(path, text)

    monkeypatch.setattr(checkpoints, "_write", cut_off)
    for writes in range(2 + has_begun):
        left = writes
        with pytest.raises(KeyboardInterrupt):
            reset_checkpoint(checkpoint, offset(5))
        state = read_checkpoint(checkpoint)
        assert (state.batch_id, state.offset) == (10, offset(100))
        assert state.begun in (offset(110) if has_begun else None, offset(5))
    left = 9
    assert reset_checkpoint(checkpoint, offset(5)) == 11
    assert read_checkpoint(checkpoint).offset == offset(5)


def test_unknown_files_are_not_changed(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        reset_checkpoint(checkpoint, offset(5, "aa"))
    assert caught.value.code == "other_bucket"
    (checkpoint / "state" / "0").mkdir(parents=True)
    with pytest.raises(ConditionError) as refused:
        reset_checkpoint(checkpoint, offset(5))
    assert refused.value.code == "has_state"
    with pytest.raises(UsageError) as caught:
        read_checkpoint(tmp_path / "nowhere")
    assert caught.value.code == "no_checkpoint"
    assert read_checkpoint(checkpoint).offset == offset(100)


@pytest.mark.parametrize(
    "text",
    [
        "", "v2\n{}\n{}", "v1\n{}", "v1\n{}\n{}\n{}", "v1\n{}\nnonsense", 'v1\n{}\n{"v":2}',
    ],
)  # fmt: skip
def test_files_of_another_form_are_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / "offsets" / "10").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_checkpoint(checkpoint)
    assert caught.value.code in ("other_checkpoint", "bad_offset")
