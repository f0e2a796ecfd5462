"""What a command has told is taken back with what it changed."""

from millstream.coordination.core.namespace.state.run import Answer, Asker, Happened, Notice, Run
from millstream.coordination.core.namespace.tables import Tables, as_bytes
from millstream.vsr.core.versions import NEVER


def test_rolling_back_forgets_what_was_told() -> None:
    tables = Tables()
    table = tables.add(as_bytes, as_bytes)
    run = Run(tables, Asker(), NEVER, 0)
    run.notices.append(Notice(1, b"/a", b"LOCK"))
    mark = run.mark()
    table.put(b"k", b"v")
    run.counted += 3
    run.notices.append(Notice(2, b"/a", b"LOCK"))
    run.answers.append(Answer(1, 1, b"+OK"))
    run.happened.append(Happened(b"put", b"/a", b"BINARY", (1,)))
    run.roll_back(mark)
    assert [notice.session for notice in run.notices] == [1]
    assert (run.answers, run.happened, run.counted, len(table)) == ([], [], 0, 0)


def test_a_client_is_named_by_its_session() -> None:
    assert Asker().client == b""
    assert Asker(12, instance=b"\xab" * 16).client == b"ab" * 16 + b"-12"
