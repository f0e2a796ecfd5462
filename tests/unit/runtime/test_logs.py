import io
import json
import logging
import sys

import pytest

from millstream.errors import UsageError
from millstream.runtime.logs import LABEL_VARIABLE, JsonFormatter, LineFormatter, set_up_logs


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
