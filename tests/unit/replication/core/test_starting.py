"""Where runs begin, beyond what the scenarios show."""

import pytest

from millstream.errors import AccessError, ConditionError
from millstream.replication.core.asking import Create, Info, ReadCode, ReadInfo, ReadLocal
from millstream.replication.core.jobs import parse_job
from millstream.replication.core.places import NOWHERE, Place
from millstream.replication.core.starting import Chain, Started, started

ENDS = {"source": "a", "target": "b"}
FOREIGN = {"source": Info("", "a"), "target": Info("", "b")}


def begin(job, answers):
    """Run the steps; `answers` by (side, kind of request)."""
    steps, asked = started(job), []
    step = next(steps)
    while True:
        key = step.side, type(step.request)
        asked.append(key)
        found = answers[key]
        found = found.pop(0) if isinstance(found, list) else found
        try:
            step = steps.throw(found) if isinstance(found, Exception) else steps.send(found)
        except StopIteration as end:
            return end.value, asked


def answers(**more):
    return {(side, ReadInfo): info for side, info in FOREIGN.items()} | {
        (side, ReadLocal): None for side in FOREIGN
    }


def test_without_logs_a_run_begins_at_the_beginning():
    begun, _ = begin(parse_job(ENDS), answers())
    assert isinstance(begun, Started)
    assert (begun.place, begun.chain) == (NOWHERE, Chain(True, 0))


def test_a_given_start_is_taken_and_proves_nothing():
    begun, asked = begin(parse_job({**ENDS, "since_seq": "5-x"}), answers())
    assert begun.place == Place("5-x")
    assert not begun.chain.is_complete
    assert ("source", ReadLocal) not in asked


def test_logs_may_be_left_out():
    begun, asked = begin(parse_job({**ENDS, "use_checkpoints": False}), answers())
    assert begun.place == NOWHERE
    assert ("source", ReadLocal) not in asked


def test_a_target_may_be_created():
    found = answers() | {
        ("target", ReadInfo): [ConditionError("no", code="not_found"), FOREIGN["target"]],
        ("target", Create): None,
    }
    begun, asked = begin(parse_job({**ENDS, "create_target": True}), found)
    assert ("target", Create) in asked
    assert begun.pair.target_name == "b"
    found["target", ReadInfo] = [ConditionError("no", code="not_found")]
    with pytest.raises(ConditionError):
        begin(parse_job(ENDS), found)


def test_the_code_of_a_filter_is_part_of_the_logs_name():
    job = parse_job({**ENDS, "filter": "d/f"})
    names = set()
    for code in ("one", "two"):
        begun, _ = begin(job, answers() | {("source", ReadCode): code})
        names.add(begun.pair.log)
        assert begun.pair.looks_inside
    assert len(names) == 2
    with pytest.raises(AccessError):
        begin(job, answers() | {("source", ReadCode): AccessError("no")})
