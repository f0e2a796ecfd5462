"""The description of the pages: complete, valid references, and the same in the documents."""

import importlib.util
import re
from pathlib import Path

import msgspec
import pytest

from millstream.gateway.aio.describing import OWN, description_of, is_described
from millstream.gateway.aio.server import make_application
from millstream.gateway.core.api.node import BucketStatus

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def application():
    return make_application(object())


@pytest.fixture(scope="module")
def description(application):
    return description_of(application)


def operations(description):
    return {
        (method.upper(), path): one
        for path, methods in description["paths"].items()
        for method, one in methods.items()
    }


def test_every_page_of_the_node_is_described(application, description):
    """All below `/_millstream/` but those of `gateway.aio.peers`."""
    there = {
        (route.method, route.resource.canonical)
        for route in application.router.routes()
        if route.resource.canonical.startswith(OWN)
        and route.method != "HEAD"
        and ".peers." not in route.handler.__module__
    }
    described = operations(description)
    assert described.keys() == there
    assert len(there) > 40
    for key, one in described.items():
        assert one["summary"].endswith("."), key
        assert "Right: " in one["description"], key
        named = {part["name"] for part in one["parameters"] if part["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", key[1])), key


def test_pages_of_nodes_among_themselves_are_not(application):
    routes = {route.resource.canonical: route for route in application.router.routes()}
    assert not is_described(routes["/_millstream/cluster/orders"])
    assert not is_described(routes["/_up"])


def test_references_lead_to_schemas(description):
    schemas = description["components"]["schemas"]
    text = msgspec.json.encode(description).decode()
    for name in re.findall(r'"\$ref":"#/components/schemas/(\w+)"', text):
        assert name in schemas
    body = operations(description)["POST", "/_millstream/cluster/join"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    joined = schemas[schema["$ref"].rpartition("/")[2]]
    assert joined["properties"].keys() == {"address", "zone", "roles"}


@pytest.mark.parametrize(
    "path",
    ["buckets", "buckets/orders", "health", "logs", "node", "samples", "security", "users"],
)
async def test_an_answer_has_the_form_that_is_described(client, body, application, path):
    routes = application.router.routes()
    pattern = path.replace("orders", "{name}")
    (kind,) = (
        route.handler.__gives__
        for route in routes
        if route.resource.canonical == OWN + pattern and route.method == "GET"
    )
    found = await body(await client.get(OWN + path))
    told = msgspec.to_builtins(msgspec.convert(found, kind))
    if kind is BucketStatus:
        told.pop("reason")  # left out where it is empty
    elif path == "buckets":
        assert [one.pop("reason") for one in told["buckets"]]
    assert told == found


def test_answers_have_schemas(description):
    there = operations(description)
    for path in ("health", "buckets/{name}/readers"):
        content = there["GET", OWN + path]["responses"]["2XX"]["content"]["application/json"]
        assert content["schema"]["$ref"].endswith("Told")


def test_parameters_of_queries_are_described(description):
    samples = operations(description)["GET", "/_millstream/samples"]
    assert [one["name"] for one in samples["parameters"]] == ["span"]
    events = operations(description)["GET", "/_millstream/events"]
    assert "text/event-stream" in events["responses"]["2XX"]["content"]


def test_the_documents_have_the_same():
    spec = importlib.util.spec_from_file_location("gen_openapi", ROOT / "tools/gen_openapi.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for name, text in tool.pages().items():
        written = (ROOT / "docs/reference" / name).read_text()
        assert written == text, "run `make reference`"
