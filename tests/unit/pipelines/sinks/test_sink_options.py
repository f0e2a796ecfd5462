"""Options of a sink: what is understood, what is refused, and why."""

from __future__ import annotations

import pickle

import pytest

from millstream.errors import UsageError
from millstream.pipelines.sinks.sink_options import SINK_OPTIONS, SinkOptions, parse_sink_options


def parsed(*, is_stream: bool = False, overwrite: bool = False, **given: str) -> SinkOptions:
    return parse_sink_options(
        {"bucket": "b", **given}, is_stream=is_stream, overwrite=overwrite, environ={}
    )


def test_modes_of_a_batch() -> None:
    assert parsed().is_append
    assert not parsed(overwrite=True).is_append
    both = parsed(overwrite=True, TRUNCATE="True", idfield="n")
    assert (both.is_truncating, both.id_field) == (True, "n")
    assert parsed(onConflict="skip").skips_conflicts
    with_cas = parsed(overwrite=True, cas="true", onConflict="skip", durability="persisted")
    assert (with_cas.with_cas, with_cas.skips_conflicts) == (True, True)
    assert with_cas.durability == "persisted"


def test_a_stream_upserts_unless_it_is_transactional() -> None:
    options = parsed(is_stream=True, checkpointLocation="/c", queryName="q")
    assert (options.is_append, options.sink_id) == (False, "")
    assert parsed(is_stream=True, transactional="true", sinkId="s.1").sink_id == "s.1"
    assert parsed(is_stream=True, idField="n", versionField="v").version_field == "v"


def test_the_password_is_not_shown_and_travels() -> None:
    options = parsed(user="ann", password="hidden-word")
    assert "hidden-word" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).connection.password == "hidden-word"


@pytest.mark.parametrize(
    ("given", "where", "said"),
    [
        ({"bucket": ""}, {}, "name the bucket to write"),
        ({"hosts": "a:b"}, {}, "option hosts"),
        ({"truncate": "true"}, {}, r"only with .mode\('overwrite'\)"),
        ({"cas": "true"}, {}, r"only with .mode\('overwrite'\)"),
        ({"cas": "true", "truncate": "true"}, {"overwrite": True}, "not together with cas"),
        ({"truncate": "yes"}, {"overwrite": True}, "write true or false"),
        ({"onConflict": "fail"}, {"overwrite": True}, "nothing can conflict"),
        ({"onConflict": "maybe"}, {}, "one of fail, skip"),
        ({"durability": "much"}, {}, "one of memory, majority"),
        ({"transactional": "true"}, {}, "only where a stream is written"),
        ({"cas": "true"}, {"is_stream": True}, "only where a batch is written"),
        ({"versionField": "v"}, {"overwrite": True}, "only with idField"),
        ({"versionField": "v", "idField": "n"}, {}, "only with idField, on a stream or in mode"),
        (
            {"versionField": "v", "idField": "n", "transactional": "true", "sinkId": "s"},
            {"is_stream": True},
            "writes each batch once",
        ),
        (
            {"versionField": "_n", "idField": "_n"},
            {"is_stream": True},
            "no member of the documents",
        ),
        ({"sinkId": "a"}, {"is_stream": True}, "only with transactional=true"),
        ({"transactional": "true"}, {"is_stream": True}, "needs a name of its own"),
        ({"transactional": "true", "sinkId": "a/b"}, {"is_stream": True}, "letters, digits"),
        ({"transactional": "true", "sinkId": "a" * 65}, {"is_stream": True}, "1 to 64"),
        (
            {"transactional": "true", "sinkId": "a", "durability": "memory"},
            {"is_stream": True},
            "leave it out",
        ),
    ],
)
def test_options_without_effect_are_refused(
    given: dict[str, str], where: dict[str, bool], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as failed:
        parsed(**where, **given)  # type: ignore[arg-type]
    assert failed.value.code == "bad_option"


@pytest.mark.parametrize("name", ["startingOffsets", "checkpointLocation"])
def test_an_unknown_option_lists_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown option {name}") as failed:
        parsed(**{name: "x"})
    assert failed.value.code == "unknown_option"
    assert all(option.name in str(failed.value) for option in SINK_OPTIONS)
