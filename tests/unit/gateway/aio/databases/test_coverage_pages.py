import pytest

from millstream.documents.tokens import Vector, vector_to_json
from millstream.gateway.aio.databases.coverage_pages import CLAIMS_MAX
from millstream.model.position import Position

VECTOR = Vector(7, (Position(0xA, 3, 3, 3), Position()))


class FakeCoverage:
    def __init__(self):
        self.asked, self.stored, self.claims = [], [], []

    async def records(self, bucket, origins):
        self.asked.append((bucket, list(origins)))
        return []

    async def store(self, bucket, records, removed):
        self.stored.append((bucket, list(records), list(removed)))

    async def verify(self, bucket, claims):
        self.claims += claims
        return [VECTOR, *[None] * (len(claims) - 1)]


@pytest.fixture
def coverage(open_node, guarded_node):
    made = FakeCoverage()
    open_node.coverage = guarded_node.coverage = made
    return made


async def test_records_are_told_by_origin(client, coverage, body):
    assert await body(await client.get("/orders/_coverage?origin=u1&origin=u2")) == {"records": []}
    assert coverage.asked == [("orders", ["u1", "u2"])]


async def test_what_is_no_record_is_passed_over(client, coverage, body):
    sent = {"records": [{}, 7, None], "removed": ["x"]}
    await body(await client.post("/orders/_coverage", json=sent), 201)
    assert coverage.stored == [("orders", [], ["x"])]


async def test_claims_are_verified_in_order(client, coverage, body):
    claims = [{"log": "l", "ckpt": "c", "vec": vector_to_json(VECTOR)}, {"log": "m", "ckpt": "d"}]
    found = await body(await client.post("/orders/_coverage/verify", json={"claims": claims}))
    assert found == {"vectors": [vector_to_json(VECTOR), None]}
    assert [claim.log for claim in coverage.claims] == ["l", "m"]


@pytest.mark.parametrize(
    "sent", [{}, [], {"claims": [{}]}, {"claims": [{"log": "l", "ckpt": "c", "vec": {"x": 1}}]},
             {"claims": [{"log": "l", "ckpt": "c"}] * (CLAIMS_MAX + 1)}],
)  # fmt: skip
async def test_bad_claims(client, coverage, body, sent):
    await body(await client.post("/orders/_coverage/verify", json=sent), 400)


async def test_rights(guarded, coverage, body, ada, bob):
    await body(await guarded.get("/orders/_coverage"), 401)
    await body(await guarded.get("/orders/_coverage", headers=bob))
    await body(await guarded.post("/orders/_coverage", json={}, headers=bob), 403)
    await body(await guarded.post("/orders/_coverage", json={}, headers=ada), 201)
