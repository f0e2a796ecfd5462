"""JavaScript in the sandbox: rows, isolation of faults, limits, what it cannot reach."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from millstream.errors import UsageError
from millstream.views.aio.sandbox import Sandbox
from millstream.views.core.design import parse_design


def sandbox_of(*maps, reduce="", time_limit_s=5.0, memory_bytes=64 * 1024 * 1024):
    views = {f"v{at}": {"map": source, "reduce": reduce} for at, source in enumerate(maps)}
    return Sandbox(
        parse_design({"views": views}, "test"),
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


@pytest.mark.parametrize(
    "guilty",
    [
        "for (;;);",
        "/(a+)+$/.test('a'.repeat(40) + 'b');",
        "var x = []; for (;;) x.push(new Array(1000).fill(1.5));",
        "try { for (;;); } catch (e) {}",
    ],
)
def test_only_the_guilty_document_is_lost(guilty):
    source = f"function (d) {{ if (d.n === 13) {{ {guilty} }} emit(d.n, 1); }}"
    with sandbox_of(source, time_limit_s=0.3) as js:
        mapped = js.map(texts(*({"_id": str(n), "n": n} for n in range(30))))
        assert js.restart_count >= 1
    assert [at for at, document in enumerate(mapped) if not document.rows] == [13]
    assert mapped[13].errors[0].view == -1
    assert "limit" in mapped[13].errors[0].message


def test_what_is_no_json_spoils_no_neighbour():
    documents = texts({"_id": "a"}, {"_id": "b"}, {"_id": "c"})
    documents[1] = b'{"_id":"x"},{"_id":"y"}'
    with sandbox_of("d => emit(d._id)") as js:
        mapped = js.map([*documents, b"\xff", b'{"_id":', documents[0]])
    assert [[key for _, key, _ in rows(m)] for m in mapped] == [["a"], [], ["c"], [], [], ["a"]]


def test_keys_and_values_that_are_no_json():
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
def test_rows_cannot_depend_on_clock_or_dice(source):
    with sandbox_of(f"d => emit({source})") as js:
        (mapped,) = js.map(texts({}))
    assert not mapped.rows
    assert mapped.errors


def test_dates_of_documents_work_and_in_utc():
    with sandbox_of("d => emit([new Date(d.t).getHours(), Date.UTC(2013, 0)])") as js:
        (mapped,) = js.map(texts({"t": "2013-07-01T05:00:00Z"}))
    assert rows(mapped) == [(0, [5, 1356998400000], None)]


def test_nothing_of_the_machine_can_be_reached():
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
def test_what_does_not_compile_is_refused(source):
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


def test_a_reduce_without_end_costs_its_own_group():
    reduce = "(k, v) => { if (v[0] == 3) for (;;); return v.length; }"
    with sandbox_of("d => emit(1)", reduce=reduce, time_limit_s=0.3) as js:
        results = js.reduce(0, [(None, [n], True) for n in range(5)])
    assert [result if isinstance(result, int) else "lost" for result in results] == [
        1, 1, 1, "lost", 1,
    ]  # fmt: skip
