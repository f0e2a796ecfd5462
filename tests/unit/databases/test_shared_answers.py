import pytest

from millstream.errors import ConditionError
from support.kv.two_engines import BUCKET, port_of, two_engines


@pytest.fixture
async def two(tmp_path):
    async with two_engines(tmp_path) as made:
        yield made


async def test_all_buckets_are_listed_also_failed_ones(two):
    engine = two.engines["a"]
    said = engine.shared.listed()
    assert (said.uuid, said.kv) == (engine.uuid, port_of(engine, "kv"))
    before = {one.name: one for one in said.buckets}
    assert set(before) == {"default", BUCKET}
    told = await engine.shared.bucket(BUCKET)
    assert (told.revision, told.this, told.active) == (before[BUCKET].revision, "a", [0, 2])
    assert (await engine.shared.bucket("default")).map is None
    engine.others.own.pop(told.uuid)  # as if its files were damaged
    assert {one.name: one.revision for one in engine.shared.listed().buckets}[BUCKET] == ""
    with pytest.raises(ConditionError):
        await engine.shared.bucket("none")
