import pytest

PATH = "/_millstream/buckets/orders"
ENDS = [{"partition": 0, "complete_end": 7}, {"partition": 1, "complete_end": 8}]


async def test_standings_are_shown(client, body):
    listed = (await body(await client.get(f"{PATH}/standings")))["standings"]
    assert [one["partition"] for one in listed] == [0, 1]
    assert listed[0] == {
        "partition": 0,
        "state": "active",
        "last_branch": 9,
        "branch": 5,
        "complete_end": 7,
        "persisted_end": 6,
        "branch_at_end": 4,
        "is_intact": True,
        "is_whole": False,
    }


async def test_each_copy_promises_or_refuses_and_becomes_active_or_not(client, body, open_node):
    open_node.branches[1] = 20
    asked = {"branch": 20, "partitions": [1, 0]}
    told = await body(await client.post(f"{PATH}/promises", json=asked))
    assert told["branch"] == 20
    assert [(one["partition"], one["state"]) for one in told["promised"]] == [(0, "replica")]
    assert [(one["partition"], one["last_branch"]) for one in told["refused"]] == [(1, 20)]
    asked = {"branch": 20, "partitions": ENDS}
    told = await body(await client.post(f"{PATH}/activations", json=asked))
    assert [(one["partition"], one["state"]) for one in told["active"]] == [(0, "active")]
    assert [one["partition"] for one in told["refused"]] == [1]


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("promises", {"branch": -1}),
        ("promises", {"branch": True}),
        ("promises", {"branch": 2**53}),
        ("promises", {"branch": None}),
        ("promises", {"partitions": []}),
        ("promises", {"partitions": [0, 1, 0]}),
        ("promises", {"partitions": [2]}),
        ("promises", {"partitions": ["0"]}),
        ("promises", {"partitions": {"0": 1}}),
        ("activations", {"branch": "20"}),
        ("activations", {"partitions": [0]}),
        ("activations", {"partitions": [{"partition": 0}]}),
        ("activations", {"partitions": [{"partition": 2, "complete_end": 1}]}),
        ("activations", {"partitions": [{"partition": 0, "complete_end": -1}]}),
    ],
)
async def test_what_cannot_be_asked_changes_nothing(client, body, open_node, page, wrong):
    before = list(open_node.states), list(open_node.branches)
    asked = {"branch": 20, "partitions": [0] if page == "promises" else ENDS[:1]} | wrong
    error = await body(await client.post(f"{PATH}/{page}", json=asked), 400)
    assert error["error"] == "bad_request"
    assert (open_node.states, open_node.branches) == before


async def test_of_an_unknown_bucket_nothing_is_asked(client, body):
    for method, page in (("get", "standings"), ("post", "promises"), ("post", "activations")):
        path = f"/_millstream/buckets/none/{page}"
        error = await body(await getattr(client, method)(path), 404)
        assert error["error"] == "bucket_not_found"


async def test_only_administrators_ask(guarded, body, bob):
    for method, page in (("get", "standings"), ("post", "promises"), ("post", "activations")):
        await body(await getattr(guarded, method)(f"{PATH}/{page}"), 401)
        await body(await getattr(guarded, method)(f"{PATH}/{page}", headers=bob), 403)
