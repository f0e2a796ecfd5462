import io
import json
import logging
import sys
import threading

import pytest

from millstream.errors import UsageError
from millstream.runtime import logs
from millstream.runtime.logs import (
    LABEL_VARIABLE,
    JsonFormatter,
    KeptLines,
    LineFormatter,
    set_up_logs,
)


@pytest.fixture
def restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    logging.getLogger("asyncio").setLevel(logging.NOTSET)


def record(**extra):
    made = logging.makeLogRecord(
        {"name": "millstream.node.engine", "levelname": "INFO", "msg": "%d up", "args": (2,)}
    )
    vars(made).update(extra)
    return made


def test_json_lines_hold_message_and_extra():
    line = json.loads(JsonFormatter().format(record(bucket="orders", path=object())))
    assert line["message"] == "2 up"
    assert line["level"] == "info"
    assert line["bucket"] == "orders"
    assert line["time"].endswith("Z")


def test_an_error_keeps_its_traceback():
    try:
        raise ValueError("broken")
    except ValueError:
        made = record(exc_info=sys.exc_info())
    assert "broken" in json.loads(JsonFormatter().format(made))["error"]
    assert "\nTraceback" in LineFormatter().format(made)


def test_lines_for_people():
    line = LineFormatter().format(record(bucket="orders"))
    assert "info    node.engine" in line
    assert line.endswith("2 up bucket=orders")


@pytest.mark.usefixtures("restored")
def test_logs_go_to_the_stream_at_their_level():
    stream = io.StringIO()
    set_up_logs("warning", as_json=True, stream=stream)
    logging.getLogger("millstream.x").info("quiet")
    logging.getLogger("millstream.x").warning("loud")
    assert json.loads(stream.getvalue())["message"] == "loud"


def test_an_unknown_level_is_refused():
    with pytest.raises(UsageError, match="chatty"):
        set_up_logs("chatty", as_json=False)


def test_one_of_several_engines_is_named_in_every_line(monkeypatch):
    monkeypatch.setenv(LABEL_VARIABLE, "engine-2")
    assert json.loads(JsonFormatter().format(record()))["engine"] == "engine-2"
    assert "Z engine-2 info    node.engine" in LineFormatter().format(record())
    monkeypatch.delenv(LABEL_VARIABLE)
    assert "engine" not in json.loads(JsonFormatter().format(record()))


@pytest.mark.usefixtures("restored")
def test_the_last_lines_are_kept(monkeypatch):
    kept = KeptLines()
    monkeypatch.setattr(logs, "RECENT", kept)
    set_up_logs("debug", as_json=False, stream=io.StringIO(), process="supervisor")
    log = logging.getLogger("millstream.x")
    log.debug("for nobody")
    log.warning("disk %s", "full", extra={"bucket": "orders"})
    log.info("y" * 10_000)
    first, second = kept.after(0)
    assert first[2:] == ("supervisor", "warning", "x", "disk full bucket=orders")
    assert (first.number, second.number) == (1, 2)
    assert len(second.text) == logs.KEPT_TEXT_MAX
    assert kept.after(1) == [second]
    assert kept.processes() == ["supervisor"]


@pytest.mark.usefixtures("restored")
def test_a_process_tells_its_lines_to_the_one_that_started_it(monkeypatch):
    kept, told = KeptLines(), []
    monkeypatch.setattr(logs, "RECENT", kept)
    set_up_logs("info", as_json=False, stream=io.StringIO(), tell=told.append)
    logging.getLogger("millstream.x").error("broken")
    assert kept.after(0) == []
    assert [(one["event"], one["level"], one["text"]) for one in told] == [
        ("log", "error", "broken")
    ]


def test_lines_of_all_processes_are_bounded_and_in_order():
    kept = KeptLines()
    for number in range(logs.KEPT_LINES_MAX + 10):
        kept.add("engine", number, "info", "x", str(number))
        kept.add("index", number, "info", "x", str(number))
    found = kept.after(0)
    assert len(found) == 2 * logs.KEPT_LINES_MAX
    assert [line.number for line in found] == sorted(line.number for line in found)
    assert found[-1].number == kept.total
    assert [line.text for line in kept.after(kept.total - 2)] == [found[-2].text, found[-1].text]


def test_lines_are_read_while_threads_log():
    """A deque that changes while it is walked over raises."""
    kept, is_over = KeptLines(), threading.Event()
    for _ in range(logs.KEPT_LINES_MAX):
        kept.add("engine", 0, "info", "x", "line")

    def log_on():
        while not is_over.is_set():
            kept.add("engine", 0, "info", "x", "line")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=log_on)
    thread.start()
    try:
        while kept.total < 20 * logs.KEPT_LINES_MAX:
            kept.after(0)
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before)
