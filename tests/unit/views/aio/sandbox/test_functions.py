"""Functions of design documents in real sandboxes: what they see, say and cost."""

from __future__ import annotations

import asyncio
import json

import pytest

from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    UnavailableError,
    UsageError,
)
from millstream.views.aio.sandbox.functions import FunctionPool, compile_functions
from millstream.views.core.design.design_code import DocumentChange, read_code
from support.node.waiting import until

USER = b'{"db":"d","name":"ann","roles":["editor"]}'
SECURITY = b'{"admins":{"names":["root"]}}'
VALIDATE = """function (newDoc, oldDoc, userCtx, secObj) {
    if (newDoc.spoiled) newDoc._id = secObj.admins.names[0];
    if (newDoc._deleted && userCtx.roles.indexOf("_admin") < 0) throw({unauthorized: "not you"});
    if (!newDoc.type) throw({forbidden: "a type is needed"});
    if (oldDoc && oldDoc.type !== newDoc.type) throw({forbidden: {was: oldDoc.type}});
    if (newDoc.type === "wrong") nothing.here();
    if (newDoc.type === "text") throw "only a text";
    if (newDoc.type === "own") throw({error: "teapot", reason: "short and stout"});
    if (newDoc.type === "loop") for (;;);
    if (newDoc.type === "eat") { var x = []; for (;;) x.push(new Array(1000).fill(1.5)); }
    if (this.language !== "javascript" || userCtx.name !== "ann") throw({forbidden: "this"});
}"""
DESIGN = {
    "language": "javascript",
    "validate_doc_update": VALIDATE,
    "lib": {"rules": "exports.is = function (doc, kind) { return doc.kind === kind; };"},
    "filters": {
        "kind": "function (doc, req) { return require('lib/rules').is(doc, req.query.kind); }",
        "fails": "function (doc, req) { return doc.a.b; }",
        "greedy": "function (doc, req) { req.query.kind = doc.kind; return req.query.kind; }",
        "broken": "function (doc, req) {",
        "loops": "function (doc) { if (doc.kind === 'loop') for (;;); return true; }",
    },
    "views": {
        "kinds": {"map": "function (doc) { if (doc.kind) emit(doc.kind); doc.a.b.c; }"},
        "loops": {"map": "function (doc) { for (;;); }"},
        "odd": 7,
    },
    "updates": {
        "add": """function (doc, req) {
            const at = new Date() > 0, dice = Math.random() < 1;
            if (!doc) return [{_id: req.uuid, n: 1, at, dice}, "new"];
            doc.n += 1;
            return [doc, {code: 201, headers: {"X-N": "" + doc.n}, json: {n: doc.n}}];
        }""",
        "nothing": "function (doc, req) { return [null, 'nothing']; }",
        "wrong": "function (doc, req) { return 7; }",
        "silent": "function (doc, req) { return [doc]; }",
        "array": "function (doc, req) { return [[1], 'x']; }",
        "refuses": "function (doc, req) { throw({forbidden: 'never'}); }",
    },
}


def code_of(rev="1-a", name="d", **changes):
    return read_code("b0", name, rev, json.dumps(DESIGN | changes).encode())


def texts(*documents):
    return [json.dumps(document).encode() for document in documents]


@pytest.fixture
async def pool():
    pool = FunctionPool(time_limit_s=0.4, memory_bytes=64 * 1024 * 1024)
    yield pool
    pool.close()


async def refusals(pool, *changes, code=None):
    revised = [
        DocumentChange(new, None if old == b"null" else old)
        for new, old in (texts(*pair) for pair in changes)
    ]
    return await pool.validate(code or code_of(), revised, USER, SECURITY)


async def test_changes_are_refused_one_by_one(pool):
    found = await refusals(
        pool,
        ({"type": "a"}, None),
        ({"type": "a", "spoiled": True}, {"type": "a"}),
        ({}, None),
        ({"type": "a"}, {"type": "b"}),
        ({"_deleted": True}, {"type": "b"}),
    )
    assert found[:2] == [None, None]
    assert [(type(one), one.code, str(one)) for one in found[2:]] == [
        (AccessError, "forbidden", "a type is needed"),
        (AccessError, "forbidden", '{"was":"b"}'),
        (AccessError, "unauthorized", "not you"),
    ]


@pytest.mark.slow
async def test_a_validation_that_throws_something_else_is_an_error_of_the_function(pool):
    kinds = ("wrong", "text", "own", "a", "loop", "eat", "a")
    found = await refusals(pool, *(({"type": kind}, None) for kind in kinds))
    assert [one and one.code for one in found] == [
        "ReferenceError", "Error", "teapot", None, "function_failed", "function_failed", None,
    ]  # fmt: skip
    assert not any(isinstance(one, AccessError) for one in found)
    assert "only a text" in str(found[1])
    assert str(found[2]) == "short and stout"
    assert "no end within the time limit" in str(found[4])
    assert "more memory" in str(found[5])


async def test_a_validation_that_does_not_compile_rejects_all_documents(pool):
    code = code_of(validate_doc_update="function (")
    (found,) = await refusals(pool, ({"type": "a"}, None), code=code)
    assert found.code == "compilation_error"
    with pytest.raises(UsageError, match="validate_doc_update of _design/d does not compile"):
        compile_functions(code)


def test_all_functions_are_compiled_ahead():
    with pytest.raises(UsageError, match=r"filters\.broken") as caught:
        compile_functions(code_of())
    assert caught.value.code == "compilation_error"
    compile_functions(code_of(filters={}))
    compile_functions(read_code("b0", "d", "1-a", b"{}"))


async def test_filters_take_batches_and_require_modules(pool):
    documents = texts(*({"_id": str(n), "kind": n % 3} for n in range(1200)))
    passed = await pool.filter_batch(code_of(), "kind", documents, b'{"query":{"kind":1}}')
    assert passed == [n % 3 == 1 for n in range(1200)]
    assert await pool.filter_batch(code_of(), "kind", [], b"{}") == []


async def test_a_filter_changes_no_request(pool):
    documents = texts({"kind": "a"}, {"kind": "b"}, {})
    passed = await pool.filter_batch(code_of(), "greedy", documents, b'{"query":{"kind":"x"}}')
    assert passed == [True, True, True]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("fails", "TypeError", "filters.fails of _design/d"),
        ("broken", "compilation_error", "filters.broken of _design/d does not compile"),
        ("loops", "function_failed", "no end within the time limit"),
        ("none", "not_found", "no filter 'none'"),
    ],
)
async def test_filters_that_fail(pool, name, code, message):
    with pytest.raises(MillstreamError, match=message) as caught:
        await pool.filter_batch(code_of(), name, texts({"kind": "loop"}), b"{}")
    assert caught.value.code == code


async def test_maps_as_filters(pool):
    documents = texts({"kind": 1, "a": {"b": {}}}, {"a": {"b": {}}}, {"kind": 1})
    assert await pool.view_batch(code_of(), "kinds", documents) == [True, False, False]
    for name, code in (("loops", "function_failed"), ("none", "not_found"), ("odd", "not_found")):
        with pytest.raises(MillstreamError) as caught:
            await pool.view_batch(code_of(), name, documents[:1])
        assert caught.value.code == code


async def test_updates(pool):
    code = code_of()
    new = await pool.update(code, "add", None, b'{"uuid":"u"}')
    assert new.document == {"_id": "u", "n": 1, "at": True, "dice": True}
    assert new.answer == {"body": "new"}
    old = await pool.update(code, "add", b'{"_id":"x","n":4}', b"{}")
    assert old.document == {"_id": "x", "n": 5}
    assert old.answer == {"code": 201, "headers": {"X-N": "5"}, "json": {"n": 5}}
    assert await pool.update(code, "nothing", b"{}", b"{}") == (None, {"body": "nothing"})


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("wrong", "TypeError"), ("silent", "TypeError"), ("array", "render_error"),
        ("refuses", "forbidden"), ("none", "not_found"),
    ],
)  # fmt: skip
async def test_updates_that_fail(pool, name, code):
    with pytest.raises(MillstreamError) as caught:
        await pool.update(code_of(), name, b"{}", b"{}")
    assert caught.value.code == code
    assert isinstance(caught.value, ConditionError) == (name == "none")


async def test_child_processes_are_bounded_and_each_serves_one_revision():
    pool = FunctionPool(children_max=2)
    stateful = "function (doc) { seen = (typeof seen === 'undefined' ? 0 : seen) + 1;" \
               " return seen > 1; }"  # fmt: skip
    codes = [code_of(f"{rev}-a", filters={"f": stateful}) for rev in range(5)]
    calls = [pool.filter_batch(code, "f", texts({}, {}), b"{}") for code in codes]
    try:
        assert await asyncio.gather(*calls) == [[False, True]] * 5
        assert len(pool._children) == 2
        last = list(pool._children)[-1]
        again = next(code for code in codes if code.key == last)
        assert await pool.filter_batch(again, "f", texts({}), b"{}") == [True]
    finally:
        pool.close()


async def test_a_cancelled_call_leaves_the_child_usable(pool):
    code = code_of(
        filters={"slow": "function () { for (;;); }", "fast": "function () { return 1; }"}
    )
    waits = asyncio.ensure_future(pool.filter_batch(code, "slow", texts({}), b"{}"))
    await asyncio.to_thread(until, lambda: pool._children)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert await pool.filter_batch(code, "fast", texts({}), b"{}") == [True]


async def test_closing_ends_running_and_waiting_calls():
    pool = FunctionPool()
    code = code_of(filters={"slow": "function () { for (;;); }"})
    calls = [
        asyncio.ensure_future(pool.filter_batch(code, "slow", texts({}), b"{}")) for _ in range(2)
    ]
    await asyncio.to_thread(
        until, lambda: any(child.sandbox.process_id for child in list(pool._children.values()))
    )
    pool.close()
    for call in calls:
        with pytest.raises(MillstreamError):
            await call
    with pytest.raises(UnavailableError, match="stops"):
        await pool.filter_batch(code, "slow", texts({}), b"{}")


@pytest.mark.parametrize(
    "poison",
    [
        "Object.prototype.toJSON = () => true;",
        "Array.prototype.map = () => []; Array.prototype.join = () => ']';",
        "JSON.stringify = () => 'true'; JSON.parse = () => 7; Reflect.apply = () => true;",
        "Function.prototype.call = () => true; this.filters.f = 'doc => true';",
        "this.validate_doc_update = 'x'; req.query = {n: 2};",
        "emit = null; rows = [1]; calls = null;",
    ],
)
async def test_calls_do_not_affect_each_other(pool, poison):
    source = f"""function (doc, req) {{
        if (doc.bad) {{ {poison} }}
        return doc.n === req.query.n;
    }}"""
    documents = texts(*({"n": n, "bad": n == 0} for n in range(4)))
    code = code_of(filters={"f": source})
    for _ in range(2):
        passed = await pool.filter_batch(code, "f", documents, b'{"query":{"n":1}}')
        assert passed == [False, True, False, False]
    views = await pool.view_batch(code, "kinds", texts({"kind": 1, "a": {"b": {}}}, {"n": 1}))
    assert views == [True, False]


@pytest.mark.slow
async def test_functions_over_the_limits_delay_others_only_briefly(monkeypatch):
    pool = FunctionPool(children_max=2, time_limit_s=0.4, memory_bytes=64 * 1024 * 1024)

    def looping(name, rev="1-a"):
        code = code_of(rev, name)
        return pool.filter_batch(code, "loops", texts({"kind": "loop"}), b"{}")

    first = await asyncio.gather(looping("x"), looping("y"), return_exceptions=True)
    assert all("has no end" in str(error) for error in first), first
    # Now that they are known, a change of them is no way out.
    loops = [asyncio.ensure_future(looping(name, "2-b")) for name in "xyxyxy"]
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    for n in range(10):
        found = await pool.filter_batch(code_of(name=f"z{n}"), "loops", texts({"kind": 1}), b"{}")
        assert found == [True]
    assert not all(each.done() for each in loops), "they were being called all the time"
    assert asyncio.get_running_loop().time() - began < 20
    # After a while they are as good as others.
    monkeypatch.setattr(pool, "_slow", type(pool._slow)())
    for result in await asyncio.gather(*loops, return_exceptions=True):
        assert "has no end" in str(result)
    pool.close()
