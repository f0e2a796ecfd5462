import pytest

from millstream.cli.replicate import summary

ENTRY = {"missing_checked": 1000, "docs_written": 7, "doc_write_failures": 1}


def test_what_was_done_is_said_in_words():
    assert summary({"history": [ENTRY]}, "http://a/db") == (
        "1,000 revisions looked at, 7 documents written, 1 refused"
    )
    assert summary({"history": []}, "http://a/db").startswith("0 revisions")
    nothing = summary({"no_changes": True, "history": []}, "http://a/db")
    assert nothing == "nothing to do: the target has all that the source has"


def test_what_was_skipped_is_said_first():
    answer = {"history": [ENTRY], "skipped": 1_000_000, "covered_through": ["B", "C"]}
    first, second = summary(answer, "http://a/db").splitlines()
    assert first == "skipped 1,000,000 changes: covered through B, C, verified with http://a/db"
    assert second.startswith("1,000 revisions")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["db", "http://127.0.0.1:1/db"], "is no address"),
        (["http://127.0.0.1:1/a", "http://127.0.0.1:1/b", "--selector", "{"], "no JSON"),
        (["http://127.0.0.1:1/a"], "TARGET"),
    ],
)
def test_wrong_arguments(call, arguments, said):
    done = call("replicate", *arguments)
    assert done.code == 2
    assert said in done.err
