"""JavaScript in the sandbox: rows, isolation of faults, limits, what it cannot reach."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.views.aio.sandbox import process as sandbox
from millstream.views.aio.sandbox.process import ROWS_PER_DOCUMENT_MAX, SECOND_TRIES_MAX, Sandbox
from millstream.views.core.design.design_documents import parse_design


def sandbox_of(*maps, reduce="", lib=None, time_limit_s=5.0, memory_bytes=64 * 1024 * 1024):
    views = {f"v{at}": {"map": source, "reduce": reduce} for at, source in enumerate(maps)}
    if lib:
        views["lib"] = lib
    return Sandbox(
        parse_design({"views": views}, "test").functions_by_view(),
        time_limit_s=time_limit_s,
        memory_bytes=memory_bytes,
    )


def texts(*documents):
    return [json.dumps(document).encode() for document in documents]


def rows(mapped):
    return [(view, json.loads(bytes(k)), json.loads(bytes(v))) for view, k, v in mapped.rows]


def test_several_views_of_many_documents_in_one_call():
    with sandbox_of(
        "function (d) { emit(d._id, d.n); emit(d.n, null); };", "d => emit([1])"
    ) as js:
        mapped = js.map(texts(*({"_id": str(n), "n": n} for n in range(1500))))
    assert len(mapped) == 1500
    assert rows(mapped[7]) == [(0, "7", 7), (0, 7, None), (1, [1], None)]
    assert all(not document.errors for document in mapped)


def test_an_exception_costs_the_rows_of_its_view_and_document_only():
    throws = "function (d) { emit(1, 1); if (d.bad) throw new Error('no'); emit(2, 2); }"
    with sandbox_of(throws, "d => emit(d._id, 0)") as js:
        good, bad = js.map(texts({"_id": "a"}, {"_id": "b", "bad": 1}))
    assert rows(good) == [(0, 1, 1), (0, 2, 2), (1, "a", 0)]
    assert rows(bad) == [(1, "b", 0)]
    assert bad.errors[0].view == 0
    assert "no" in bad.errors[0].message


@pytest.mark.slow
@pytest.mark.parametrize(
    "guilty",
    [
        "for (;;);",
        "/(a+)+$/.test('a'.repeat(40) + 'b');",
        "var x = []; for (;;) x.push(new Array(1000).fill(1.5));",
        "try { for (;;); } catch (e) {}",
    ],
)
def test_only_the_failing_document_loses_its_rows(guilty):
    source = f"function (d) {{ if (d.n === 13) {{ {guilty} }} emit(d.n, 1); }}"
    with sandbox_of(source, time_limit_s=0.3) as js:
        mapped = js.map(texts(*({"_id": str(n), "n": n} for n in range(30))))
        assert js.restart_count >= 1
    assert [at for at, document in enumerate(mapped) if not document.rows] == [13]
    assert mapped[13].errors[0].view == -1
    assert "limit" in mapped[13].errors[0].message


def test_a_document_that_is_not_json_does_not_affect_others():
    documents = texts({"_id": "a"}, {"_id": "b"}, {"_id": "c"})
    documents[1] = b'{"_id":"x"},{"_id":"y"}'
    with sandbox_of("d => emit(d._id)") as js:
        mapped = js.map([*documents, b"\xff", b'{"_id":', documents[0]])
    assert [[key for _, key, _ in rows(m)] for m in mapped] == [["a"], [], ["c"], [], [], ["a"]]


def test_keys_and_values_that_are_not_json():
    source = """d => {
        if (d.n === 0) { const o = {}; o.self = o; emit(1, o); }
        if (d.n === 1) emit(undefined, undefined);
        if (d.n === 2) emit(NaN, () => 1);
        if (d.n === 3) emit(1n);
        if (d.n === 4) emit("\\ud800", "\\\\ud800");
    }"""
    with sandbox_of(source, "d => emit(d.n)") as js:
        mapped = js.map(texts(*({"n": n} for n in range(5))))
    assert [rows(m) for m in mapped[:4]] == [
        [(1, 0, None)], [(0, None, None), (1, 1, None)], [(0, None, None), (1, 2, None)],
        [(1, 3, None)],
    ]  # fmt: skip
    assert [len(m.errors) for m in mapped] == [1, 0, 0, 1, 0]
    assert rows(mapped[4])[0] == (0, "\ufffd", "\\ud800")


def test_a_document_is_frozen_for_the_next_view():
    spoil = "function (d) { d.n = 9; d.list.push(1); emit(1); }"
    with sandbox_of(spoil, "d => emit(d.n, d.list)", "d => { d.n = 5; emit(d.n) }") as js:
        (nested,) = js.map(texts({"n": 1, "list": []}))
        (flat,) = js.map(texts({"n": 1}))
    assert rows(nested) == [(1, 1, []), (2, 1, None)]
    assert (2, 1, None) in rows(flat)


@pytest.mark.parametrize(
    "source",
    ["Date.now()", "new Date()", "Date()", "Math.random()", "new Date(0).constructor.now()",
     "new (Object.getPrototypeOf(new Date(1)).constructor)()"],
)  # fmt: skip
def test_rows_cannot_depend_on_clock_or_random_numbers(source):
    with sandbox_of(f"d => emit({source})") as js:
        (mapped,) = js.map(texts({}))
    assert not mapped.rows
    assert mapped.errors


def test_dates_of_documents_work_and_in_utc():
    with sandbox_of("d => emit([new Date(d.t).getHours(), Date.UTC(2013, 0)])") as js:
        (mapped,) = js.map(texts({"t": "2013-07-01T05:00:00Z"}))
    assert rows(mapped) == [(0, [5, 1356998400000], None)]


def test_functions_see_no_names_of_the_machine():
    names = ["process", "require", "std", "os", "fetch", "XMLHttpRequest", "performance",
             "WeakRef", "Atomics", "millstream_map", "millstream_load", "navigator"]  # fmt: skip
    source = f"d => emit({json.dumps(names)}.filter(n => n in globalThis))"
    with sandbox_of(source) as js:
        (mapped,) = js.map(texts({}))
    assert rows(mapped) == [(0, [], None)]


def test_the_child_has_no_files_environment_or_rights():
    with sandbox_of("d => emit(1)") as js:
        js.compile()
        process = Path(f"/proc/{js.process_id}")
        limits = (process / "limits").read_text()
        for name in ("Max open files", "Max file size", "Max processes", "Max core file size"):
            line = next(line for line in limits.splitlines() if line.startswith(name))
            assert line.removeprefix(name).split()[:2] == ["0", "0"]
        assert (process / "environ").read_text() == "TZ=UTC\0"
        assert str((process / "cwd").readlink()) == "/"
        assert "NoNewPrivs:\t1" in (process / "status").read_text()


def test_a_killed_child_is_replaced():
    with sandbox_of("d => emit(d.n)") as js:
        js.map(texts({"n": 1}))
        os.kill(js.process_id, signal.SIGKILL)
        assert rows(js.map(texts({"n": 2}, {"n": 3}))[0]) == [(0, 2, None)]


@pytest.mark.parametrize("source", ["function (d) {", "1 + 1", "", "nonsense here"])
def test_functions_that_do_not_compile_are_refused(source):
    with sandbox_of(source) as js, pytest.raises(UsageError) as caught:
        js.compile()
    assert caught.value.code == "compilation_error"
    assert "'test'" in str(caught.value)


def test_own_reduce_functions():
    reduce = "function (keys, values, rereduce) { if (values[0] < 0) throw 'negative';" \
             " return [rereduce, keys && keys.length, sum(values)]; }"  # fmt: skip
    with sandbox_of("d => emit(1)", reduce=reduce) as js:
        results = js.reduce(0, [([["a", "1"]], [1], False), (None, [2, 3], True), (None, [-1], 1)])
    assert results[:2] == [[False, 1, 1], [True, None, 5]]
    assert results[2] == {"error": "reduce_error", "reason": "negative"}


@pytest.mark.slow
def test_an_endless_reduce_fails_only_its_own_group():
    reduce = "(k, v) => { if (v[0] == 3) for (;;); return v.length; }"
    with sandbox_of("d => emit(1)", reduce=reduce, time_limit_s=0.3) as js:
        results = js.reduce(0, [(None, [n], True) for n in range(5)])
    assert [result if isinstance(result, int) else "lost" for result in results] == [
        1, 1, 1, "lost", 1,
    ]  # fmt: skip


LIB = {
    "twice": "exports.of = function (n) { return 2 * n; }; // a comment at the end",
    "deep": {"inner": "module.exports = function (n) { return require('../twice').of(n) + 1; };"},
    "same": "exports.of = require('views/lib/deep/./inner');",
    "round": {"a": "exports.a = 1; exports.b = require('./b');",
              "b": "exports.seen = require('./a').a;"},
    "throws": "exports.x = 1; throw new Error('in the module');",
    "wrong": "function (",
    "loops": "for (;;);",
}  # fmt: skip


def test_maps_require_modules_of_the_design_document():
    source = """function (d) {
        const same = require("views/lib/same"), round = require("views/lib/round/a");
        emit(same.of(d.n), [require("views/lib/twice") === require("views/lib/twice"), round]);
    }"""
    with sandbox_of(source, lib=LIB) as js:
        mapped = js.map(texts({"n": 1}, {"n": 2}))
    round_ = {"a": 1, "b": {"seen": 1}}
    assert [rows(m) for m in mapped] == [[(0, 3, [True, round_])], [(0, 5, [True, round_])]]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("views/lib/none", "no module views/lib/none"), ("views/lib/deep", "no module"),
        ("twice", "no module"), ("views/lib/toString", "no module"), ("views/lib", "no module"),
        ("../../etc/passwd", "no module"), ("views/lib/throws", "in the module"),
        ("views/lib/wrong", "SyntaxError"), ("views/lib/twice/length", "no module"),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_required_fails_its_view(path, message):
    bad = f"d => {{ emit(0); if (d.n) require({json.dumps(path)}); }}"
    with sandbox_of(bad, "d => emit(d.n)", lib=LIB) as js:
        good, lost, again = js.map(texts({}, {"n": 1}, {"n": 2}))
    assert rows(good) == [(0, 0, None), (1, None, None)]
    for document, n in ((lost, 1), (again, 2)):
        assert rows(document) == [(1, n, None)]
        assert message in document.errors[0].message


@pytest.mark.slow
def test_an_endless_module_fails_the_views_that_require_it():
    source = "d => { if (d.n === 2) require('views/lib/loops'); emit(d.n); }"
    with sandbox_of(source, lib=LIB, time_limit_s=0.3) as js:
        mapped = js.map(texts(*({"n": n} for n in range(4))))
    assert [len(document.rows) for document in mapped] == [1, 1, 0, 1]


POISON = [
    "Object.prototype.toJSON = () => undefined;",
    "Object.prototype.toJSON = () => 7;",
    "Array.prototype.toJSON = () => 'x';",
    "Array.prototype.join = () => ']]]';",
    "Array.prototype.filter = () => []; String.prototype.slice = () => 'q';",
    "Object.defineProperty(Array.prototype, 0, { set() {}, get() { return 'zz'; } });",
    "Object.setPrototypeOf(Array.prototype, { toJSON() { return 1; } });",
    "(function* () {}).__proto__.x = 1; [].values().__proto__.next = () => ({ done: true });",
    "JSON.stringify = () => '7'; Reflect.construct = () => 7; emit = null;",
    "globalThis.sum = null; delete globalThis.log; Math = null; Date.UTC = null;",
]


@pytest.mark.parametrize("strict", ["", "'use strict';"])
@pytest.mark.parametrize("poison", POISON)
def test_documents_do_not_affect_rows_of_others(poison, strict):
    source = f"""function (d) {{ {strict}
        if (d.bad) {{ {poison} }}
        log(d); emit([{{ n: d.n }}, Math.max(1, sum([d.n, 1]))], new Date(Date.UTC(2013, 0)));
    }}"""
    with sandbox_of(source) as js:
        mapped = js.map(texts(*({"n": n, "bad": n == 3} for n in range(8))))
        assert js.restart_count == 0
    day = "2013-01-01T00:00:00.000Z"
    for n, document in enumerate(mapped):
        if n != 3:
            assert rows(document) == [(0, [{"n": n}, max(1, n + 1)], day)]
            assert not document.errors


@pytest.mark.parametrize("poison", POISON)
def test_reduce_calls_do_not_affect_each_other(poison):
    reduce = f"(k, v) => {{ if (v[0] === 1) {{ {poison} }} return [sum(v), {{}}]; }}"
    with sandbox_of("d => emit(1)", reduce=reduce) as js:
        results = js.reduce(0, [(None, [n], True) for n in range(4)])
    assert [results[0], *results[2:]] == [[0, {}], [2, {}], [3, {}]]


def test_frozen_built_ins_can_be_overridden_on_own_objects():
    source = """function (d) {
        const error = new TypeError("m"); error.name = "Mine"; error.message = "other";
        function Own() {} Own.prototype.toString = () => "own";
        class Child extends Error { constructor() { super("c"); this.name = "Child"; } }
        const counts = {}; counts["constructor"] = 1; counts.valueOf = 2;
        emit([String(error), String(new Own()), String(new Child())], counts);
    }"""
    with sandbox_of(source) as js:
        (mapped,) = js.map(texts({}))
    key = ["Mine: other", "own", "Child: c"]
    assert rows(mapped) == [(0, key, {"constructor": 1, "valueOf": 2})]


def spoil(monkeypatch, guilty, reply):
    """Answer every request whose body has `guilty` in it with `reply`."""
    exchange = Sandbox._exchange

    def spoiled(self, kind, body, wait_s):
        answer = exchange(self, kind, body, wait_s)
        return reply if kind != b"L" and guilty in body else answer

    monkeypatch.setattr(Sandbox, "_exchange", spoiled)


def stall(monkeypatch, *late):
    """Answer these of the calls as if the machine had stood still; return all calls' bodies."""
    exchange, asked = Sandbox._exchange, []

    def stalled(self, kind, body, wait_s):
        if kind == b"L":
            return exchange(self, kind, body, wait_s)
        asked.append(body)
        is_late = len(asked) - 1 in late
        return sandbox._LATE if is_late else exchange(self, kind, body, wait_s)

    monkeypatch.setattr(Sandbox, "_exchange", stalled)
    return asked


def test_a_document_that_timed_out_alone_is_retried_in_a_new_child(monkeypatch):
    asked = stall(monkeypatch, 0, 2, 3)
    with sandbox_of("d => emit(d.n)", reduce="(k, v) => sum(v)") as js:
        assert rows(js.map(texts({"n": 1}))[0]) == [(0, 1, None)]
        assert js.restart_count == 1
        assert js.reduce(0, [(None, [2], True)]) == [
            {"error": "reduce_time_error", "reason": "no answer within the time limit"}
        ]
        assert js.reduce(0, [(None, [2], True)]) == [2]
    assert len(asked) == 5


def test_an_endless_function_is_retried_only_briefly(monkeypatch):
    asked = stall(monkeypatch, *range(1000))
    with sandbox_of("d => emit(d.n)", reduce="(k, v) => sum(v)") as js:
        js._start = lambda: setattr(js, "_child", None)
        for _ in range(10):
            js.reduce(0, [(None, [2], True)])
        assert len(asked) == 10 + SECOND_TRIES_MAX


def test_results_of_retries_come_with_later_answers(monkeypatch):
    monkeypatch.setattr(sandbox, "CALLS_PER_SECOND_TRY", 3)
    asked = stall(monkeypatch, *range(8), 11, 12)
    with sandbox_of("d => emit(d.n)", reduce="(k, v) => sum(v)") as js:
        for _ in range(5):
            js.reduce(0, [(None, [2], True)])
        assert len(asked) == 8
        for _ in range(3):
            js.reduce(0, [(None, [2], True)])
        js.reduce(0, [(None, [2], True)])
        assert len(asked) == 13


DEEP = b"[" * 100_000


@pytest.mark.parametrize("reply", [b"[[,[]],[]]", b"[[7],[]]", b"[[],[]]", b"7", DEEP])
def test_a_malformed_map_reply_fails_only_its_document(monkeypatch, reply):
    spoil(monkeypatch, b'"guilty"', reply)
    names = ["a", "b", "guilty", "c", "d"]
    with sandbox_of("d => emit(d._id)") as js:
        mapped = js.map(texts(*({"_id": name} for name in names)))
        assert js.restart_count >= 1
    assert [[key for _, key, _ in rows(m)] for m in mapped] == [["a"], ["b"], [], ["c"], ["d"]]
    assert [len(document.errors) for document in mapped] == [0, 0, 1, 0, 0]
    assert mapped[2].errors[0].view == -1


@pytest.mark.parametrize("reply", [b"[]", b"[,]", b"[7]", b"[[]]", b"[[1,2,3]]", DEEP])
def test_a_malformed_reduce_reply_fails_only_its_call(monkeypatch, reply):
    spoil(monkeypatch, b"13", reply)
    with sandbox_of("d => emit(1)", reduce="(k, v) => v[0]") as js:
        results = js.reduce(0, [(None, [n], True) for n in (1, 2, 13, 3)])
    assert [results[0], results[1], results[3]] == [1, 2, 3]
    assert results[2]["error"] == "reduce_error"


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_rows_nested_too_deeply_fail_only_their_document(depth):
    nest = f"let o = 1; if (d.n === 2) for (let at = 0; at < {depth}; at++) o = [o];"
    with sandbox_of(f"d => {{ {nest} emit(d.n, o); }}") as js:
        mapped = js.map(texts(*({"n": n} for n in range(4))))
    assert [len(document.rows) for document in mapped] == [1, 1, 0, 1]
    assert [len(document.errors) for document in mapped] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    "source", ["(() => { while (true); })()", "'x'.repeat(1e9) + 'y', d => 1"]
)
def test_compilation_over_the_limits_fails(source):
    with sandbox_of(source, time_limit_s=0.3) as js:
        with pytest.raises(UsageError) as caught:
            js.compile()
        assert caught.value.code == "compilation_error"


HOARDS = [
    "kept.push(new Array(100_000).fill(d.n + 0.5));",
    "for (let i = 0; i < 3_000; i++) kept.push([i, { i }]);",
    "for (let i = 0; i < 4_000; i++) Promise.resolve([i]).then(() => emit('stolen'));",
]


@pytest.mark.slow
@pytest.mark.parametrize("hoard", HOARDS)
def test_memory_kept_between_documents_loses_no_rows(hoard):
    source = f"(() => {{ const kept = []; return function (d) {{ {hoard} emit(d.n); }}; }})()"
    batch = texts(*({"n": n} for n in range(24)))
    with sandbox_of(source, memory_bytes=16 * 1024 * 1024) as js:
        found = [document for _ in range(2) for document in js.map(batch)]
        assert js.restart_count >= 1
    assert [rows(document) for document in found] == [[(0, n, None)] for n in range(24)] * 2
    assert not any(document.errors for document in found)


def test_memory_kept_between_reduce_calls_fails_no_group():
    body = "for (let i = 0; i < 3_000; i++) kept.push([i, { i }]); return v[0];"
    reduce = f"(() => {{ const kept = []; return (k, v) => {{ {body} }}; }})()"
    with sandbox_of("d => 1", reduce=reduce, memory_bytes=16 * 1024 * 1024) as js:
        assert js.reduce(0, [(None, [n], True) for n in range(60)]) == list(range(60))
        assert js.restart_count >= 1


def test_a_function_may_throw_null():
    with sandbox_of("d => { emit(d.n); if (d.n == 1) throw null; }") as js:
        mapped = js.map(texts(*({"n": n} for n in range(3))))
        assert js.restart_count == 0
    assert [len(document.rows) for document in mapped] == [1, 0, 1]
    assert mapped[1].errors[0].view == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "function (doc) { for (let i = 0; i < doc.n; i++) emit(i, null); }",
        "function (doc) { for (let i = 0; i < doc.n; i++) try { emit(i, null); } catch (e) {} }",
    ],
)
def test_a_document_that_emits_too_many_rows_loses_only_its_own(source):
    most = ROWS_PER_DOCUMENT_MAX
    with sandbox_of(source) as sandbox:
        mapped = sandbox.map(texts({"n": 2}, {"n": 1_000_000}, {"n": most}, {"n": most}, {"n": 3}))
    assert [len(one.rows) for one in mapped] == [2, 0, most, most, 3]
    assert [len(one.errors) for one in mapped] == [0, 1, 0, 0, 0]
    assert "more than 100000 rows" in mapped[1].errors[0].message


@pytest.mark.parametrize("count", [1, 3])
def test_a_stop_does_not_fail_documents_being_mapped(count):
    js = sandbox_of("function (d) { for (;;); }")
    js.compile()
    stopping = threading.Timer(0.1, js.stop)
    stopping.start()
    with pytest.raises(UnavailableError) as raised:
        js.map(texts(*({"_id": str(n)} for n in range(count))))
    assert raised.value.code == "stopping"
    with pytest.raises(UnavailableError):
        js.call("compile", ["validate_doc_update"], b"null", [b"null"])
    stopping.join()
    js.close()
