import json

import pytest

from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing, standing_from_json, standing_to_json

STANDING = Standing(3, PartitionState.REPLICA, 9, 8, 70, 60, 7, True, False)


def test_a_standing_survives_json() -> None:
    sent = json.loads(json.dumps(standing_to_json(STANDING)))
    assert sent["state"] == "replica"
    assert standing_from_json(sent | {"more": 1}) == STANDING


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition": -1},
        {"state": "gone"},
        {"state": 2},
        {"last_branch": True},
        {"branch": 1.0},
        {"complete_end": "7"},
        {"persisted_end": None},
        {"branch_at_end": []},
        {"is_intact": 1},
        {"is_whole": None},
    ],
)
def test_what_is_no_standing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        standing_from_json(standing_to_json(STANDING) | wrong)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        standing_from_json({k: v for k, v in standing_to_json(STANDING).items() if k not in wrong})
