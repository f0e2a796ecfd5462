"""`_index`: made, listed and removed, in design documents as CouchDB stores them."""

import json

import pytest

PATH = "/orders/_index"


async def make(client, body, *fields, status=200, **options):
    content = {"index": {"fields": list(fields)}} | options
    return await body(await client.post(PATH, json=content), status)


async def stored(open_node, name):
    return json.loads((await open_node.designs.read("orders", name)).body)


async def test_an_index_is_a_view_of_a_design_document(client, body, open_node):
    made = await make(client, body, "a", {"b.c": "asc"}, ddoc="d", name="n")
    assert made == {"result": "created", "id": "_design/d", "name": "n"}
    assert await stored(open_node, "d") == {
        "language": "query",
        "views": {
            "n": {
                "map": {"fields": {"a": "asc", "b.c": "asc"}},
                "reduce": "_count",
                "options": {"def": {"fields": ["a", {"b.c": "asc"}]}},
            }
        },
    }
    again = await make(client, body, "a", {"b.c": "asc"}, ddoc="_design/d", name="n")
    assert again["result"] == "exists"
    assert (await make(client, body, "x", ddoc="d", name="n"))["result"] == "created"
    await make(client, body, "y", ddoc="d", name="m", w=3, type="json", partitioned=False)
    assert sorted((await stored(open_node, "d"))["views"]) == ["m", "n"]


async def test_names_are_made_of_the_definition(client, body):
    first, again = [await make(client, body, "a") for _ in range(2)]
    other = await make(client, body, "b")
    assert (first["result"], again["result"]) == ("created", "exists")
    assert first["id"] == again["id"] == f"_design/{first['name']}"
    assert other["name"] != first["name"]


async def test_indexes_that_differ_in_their_names_alone_are_in_documents_of_their_own(
    client, body
):
    made = [await make(client, body, "a", name=name) for name in ("n", "m", "n")]
    assert [one["result"] for one in made] == ["created", "created", "exists"]
    assert made[0]["id"] == made[2]["id"] != made[1]["id"]


async def test_the_selector_of_an_index_is_stored_with_all_its_operators(client, body, open_node):
    index = {"fields": ["b"], "partial_filter_selector": {"type": "x", "n": {"$gt": 1}}}
    made = [await make(client, body, index=index, ddoc="d", name="n") for _ in range(2)]
    assert [one["result"] for one in made] == ["created", "exists"]
    view = (await stored(open_node, "d"))["views"]["n"]
    assert view["map"]["partial_filter_selector"] == {
        "$and": [{"type": {"$eq": "x"}}, {"n": {"$gt": 1}}]
    }
    assert view["options"]["def"] == index


async def test_lists(client, body):
    await make(client, body, "a", ddoc="d", name="n")
    partial = {"fields": ["b"], "partial_filter_selector": {"b": {"$gt": 1}}}
    await make(client, body, index=partial, ddoc="c", name="m")
    await client.put("/orders/_design/other", json={"views": {"v": {"map": "doc => 1"}}})
    found = await body(await client.get(PATH))
    assert found["total_rows"] == 3
    assert found["indexes"][0] == {
        "ddoc": None, "name": "_all_docs", "type": "special", "def": {"fields": [{"_id": "asc"}]}
    }  # fmt: skip
    assert found["indexes"][1]["def"] == {
        "fields": [{"b": "asc"}], "partial_filter_selector": {"b": {"$gt": 1}}
    }  # fmt: skip
    found = await body(await client.get(PATH + "?limit=1&skip=2"))
    assert [one["name"] for one in found["indexes"]] == ["n"]
    for wrong in ("limit=0", "skip=-1", "limit=x", "skip="):
        answer = await body(await client.get(f"{PATH}?{wrong}"), 400)
        assert answer["error"] == "invalid_list_index_params"


@pytest.mark.parametrize("design", ["d", "_design/d", "_design%2Fd"])
async def test_removing(client, body, open_node, design):
    await make(client, body, "a", ddoc="d", name="n")
    await make(client, body, "b", ddoc="d", name="m")
    assert await body(await client.delete(f"{PATH}/{design}/json/n")) == {"ok": True}
    assert list((await stored(open_node, "d"))["views"]) == ["m"]
    await body(await client.delete(f"{PATH}/{design}/json/n"), 404)
    await body(await client.delete(f"{PATH}/{design}/json/m"))
    assert (await open_node.designs.read("orders", "d")).is_deleted
    assert (await make(client, body, "a", ddoc="d", name="n"))["result"] == "created"


async def test_what_else_a_design_document_has_stays(client, dataless, body, open_node):
    await make(client, body, "a", ddoc="d", name="n")
    design = await body(await dataless.get("/orders/_design/d"))
    await body(await dataless.put("/orders/_design/d", json=design | {"autoupdate": True}), 201)
    await body(await client.delete(f"{PATH}/d/json/n"))
    assert await stored(open_node, "d") == {"language": "query", "autoupdate": True}


async def test_removing_many(client, body):
    await make(client, body, "a", ddoc="d", name="n")
    await make(client, body, "b", ddoc="e", name="n")
    asked = {"docids": ["d", "_design/e", "none"]}
    found = await body(await client.post(PATH + "/_bulk_delete", json=asked))
    assert [one["id"] for one in found["success"]] == ["_design/d", "_design/e"]
    assert found["fail"] == [{"id": "_design/none", "error": "not_found"}]
    for wrong in ({}, {"docids": "d"}, {"docids": [None]}, {"docids": ["d"] * 101}):
        response = await client.post(PATH + "/_bulk_delete", json=wrong)
        assert (await body(response, 400))["error"] == "invalid_bulk_docs"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({}, "invalid_index"),
        ({"index": []}, "invalid_index"),
        ({"index": {}}, "missing_required_key"),
        ({"index": {"fields": ["a"]}, "type": "text"}, "invalid_index"),
        ({"index": {"fields": ["a"]}, "more": 1}, "invalid_key"),
        ({"index": {"fields": ["a"]}, "name": 1}, "invalid_index_name"),
        ({"index": {"fields": ["a"]}, "ddoc": ""}, "invalid_index_name"),
        ({"index": {"fields": ["a"]}, "ddoc": "a/b"}, "invalid_design_doc"),
        ({"index": {"fields": ["a"]}, "partitioned": True}, "invalid_partitioned_option"),
        ({"index": {"fields": [{"a": "asc"}, {"b": "desc"}]}}, "unsupported_mixed_sort"),
    ],
)
async def test_refusals(client, body, content, code):
    assert (await body(await client.post(PATH, json=content), 400))["error"] == code


async def test_other_languages_are_left_alone(client, dataless, body):
    await dataless.put("/orders/_design/js", json={"views": {"v": {"map": "doc => 1"}}})
    found = await make(client, body, "a", ddoc="js", status=400)
    assert found["error"] == "invalid_ddoc_lang"
    await body(await client.delete(f"{PATH}/js/json/v"), 400)


async def test_rights(guarded, body, ada, bob):
    content = {"json": {"index": {"fields": ["a"]}, "ddoc": "d", "name": "n"}}
    await body(await guarded.post(PATH, **content), 401)
    await body(await guarded.post(PATH, headers=bob, **content), 403)
    await body(await guarded.post(PATH, headers=ada, **content))
    await body(await guarded.get(PATH), 401)
    await body(await guarded.delete(PATH + "/d/json/n", headers=bob), 403)
    await body(await guarded.delete(PATH + "/d/json/n", headers=ada))
