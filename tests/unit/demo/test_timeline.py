"""Moments, marks and errors of a run."""

from __future__ import annotations

from millstream.demo.timeline import Timeline
from millstream.errors import UnavailableError


def test_errors_are_counted_by_who_had_them_and_each_kind_is_kept_once():
    timeline = Timeline()
    timeline.failed("write", UnavailableError("first", code="timeout"))
    timeline.failed("write", UnavailableError("second", code="timeout"))
    timeline.failed("view", UnavailableError("third", code="unreachable"))
    assert timeline.errors == {("write", "timeout"): 2, ("view", "unreachable"): 1}
    assert timeline.texts["write", "timeout"] == "first"
    timeline.note(written=5, streamed=4, rollbacks=1, active={"n1": 3})
    (moment,) = timeline.moments
    assert (moment.errors, moment.written, moment.active) == (3, 5, {"n1": 3})
    timeline.mark("n2 is killed")
    assert [text for _, text in timeline.marks] == ["n2 is killed"]
