import json
import platform

from millstream import __version__, accelerated
from millstream.cli.version import command


def test_versions_are_shown(capsys):
    command(json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["millstream"] == __version__
    assert found["python"] == platform.python_version()
    assert found["hot functions"] == accelerated.state()
    command(json=False)
    assert capsys.readouterr().out.startswith("millstream")
