"""Names and errors of the views pipeline; its runs are in tests/pipelines."""

from __future__ import annotations

import json

from pyspark.errors import StreamingQueryException

from millstream.errors import StreamError, UnavailableError
from millstream.pipelines.bucket_changes import Endpoint
from millstream.pipelines.views import ViewsPipeline, _explained, checkpoint_name
from millstream.views.core.design import parse_design

DESIGN = parse_design({"views": {"v": {"map": "m"}}}, "d")


def test_a_checkpoint_is_of_one_bucket_and_one_signature():
    name = checkpoint_name("b", "0123456789abcdef", DESIGN)
    other = parse_design({"views": {"v": {"map": "other"}}}, "d")
    assert name.startswith("b-01234567-d-")
    assert checkpoint_name("b", "0123456789abcdef", other) != name
    assert checkpoint_name("b", "ff23456789abcdef", DESIGN) != name


def test_an_error_of_ours_is_dug_out_of_sparks_text():
    text = (
        "[STREAM_FAILED] Query failed: Traceback\n  File x\n"
        "millstream.errors.RollbackRequiredError: partition 7 of bucket 'b' must be rolled back "
        "to seqno 12\n\tat java.lang"
    )
    error = _explained(StreamingQueryException(text))
    assert isinstance(error, StreamError)
    assert error.code == "rollback_required"
    assert str(error) == "partition 7 of bucket 'b' must be rolled back to seqno 12"


def test_another_error_is_shown_whole():
    error = _explained(StreamingQueryException("out of disk"))
    assert isinstance(error, UnavailableError)
    assert "out of disk" in str(error)


def test_the_offset_is_read_from_sparks_log(tmp_path):
    offsets = tmp_path / "spark" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "3").write_text("v1\n" + json.dumps({"batch": 1}) + "\n" + json.dumps({"p": {}}))
    pipeline = ViewsPipeline(Endpoint("h:1"), "b", DESIGN, tmp_path)
    assert pipeline._offset_of(3) == {"p": {}}
