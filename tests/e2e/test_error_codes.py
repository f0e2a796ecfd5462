"""Every error code of the coordination port, provoked once through the wire at a single node.

Those that need more than one node, or a load, are in `ELSEWHERE`.
"""

import re
from pathlib import Path

import pytest

from millstream.cli.connect import Who
from millstream.cli.coordination.coord import Coordination
from millstream.coordination.core.resp.protocol import words_of
from millstream.vsr.core.effects import Code
from support.node.node_process import FREE, NodeProcess

TESTS = Path(__file__).parents[1]
ELSEWHERE = {
    "NOQUORUM": "unit/coordination/core/resp/test_session.py",
    "BUSY": "unit/coordination/core/resp/test_session.py",
    "UNKNOWN": "unit/coordination/core/resp/test_session.py",
    "BEHIND": "unit/coordination/aio/test_subscriptions.py",  # a lone node is never behind
    "NOTREADY": "unit/vsr/core/replica/test_learners.py",
    "CONFLICT": "unit/vsr/core/replica/test_requested_changes.py",
}
# Each case: lines; `b:` before one has a second connection say it. @ is an element of the case
# and % the first 32 signs of the node; the last reply is, or names, the code.
CASES = {
    "ERR": ["EXEC"],
    "UNKNOWN_COMMAND": ["NOSUCH"],
    "BADARG": ["GET"],
    "BADPATH": ["GET /errors//x"],
    "TOOBIG": ["ELECT CAMPAIGN @ " + "x" * 5000],
    "NOAUTH": ["AUTH nobody x"],
    "NOPERM": ["SESSION OPEN", "b:SESSION RESUME {client_id} 00000000000000000000000000000000"],
    "NOTPRIMARY": ["GROUP 9 GET register"],
    "CSNGONE": ["CSN 1000 SET register x", "CSN 1 SET register y"],
    "SESSIONEXPIRED": ["SESSION PING"],
    "SESSIONMOVED": ["SESSION OPEN", "b:SESSION RESUME {client_id} {secret}", "SESSION PING"],
    "LOCKED": ["LOCK @", "b:PUT @ x"],
    "QUOTA": ["CREATE LIST @/l", "CONFIG SET @/l LIMIT.ITEMS 1", "LIST APPEND @/l a b"],
    "NOPROTO": ["HELLO 4"],
    "ERROR_DOES_NOT_EXISTS": ["GET @/none"],
    "NAME_CONFLICT": ["CREATE BINARY @/a", "CREATE BINARY @/b", "MOVE @/a @/b"],
    "NOTEMPTY": ["CREATE BINARY @/a", "DELETE @"],
    "CAS_MISMATCH": ["PUT @ x CAS 0:0:1"],
    "WRONGTYPE": ["SET ADD @ x"],
    "EPHEMERAL_PARENT": ["CREATE BINARY EPHEMERAL @/a", "CREATE BINARY @/a/b"],
    "ISROOT": ["PUT /errors x"],
    "LOOP": ["MOVE @ @/a"],
    "CROSS_NAMESPACE": ["CREATENAMESPACE /others", "MOVE @ /others/a"],
    "BADTOKEN": ["LIST @ TOKEN !"],
    "HISTORY_LOST": ["SUBSCRIBE @ FROM 1"],
    "SYNCTYPE": ["SEMAPHORE INIT 1 @", "LOCK @"],
    "NOTHELD": ["LOCK RELEASE @"],
    "DEADLOCK": ["LOCK READ @", "b:LOCK READ @", "LOCK @", "b:LOCK @"],
    "DESTROYING": [
        "SEMAPHORE INIT 1 @", "SEMAPHORE ACQUIRE @", "SEMAPHORE DESTROY @",
        "b:SEMAPHORE ACQUIRE @",
    ],
    "DESTROYED": [
        "BARRIER INIT 2 @", "b:CSN 1 BARRIER WAIT @", "BARRIER DESTROY @",
        "b:CSN 1 BARRIER WAIT @",
    ],
    "FENCED": ["PUT @ x IFLOCK 1:1:1"],
    "WOULDBLOCK": ["b:LOCK @", "MULTI", "LOCK @", "EXEC"],
    "CHECK_FAILED": ["MULTI", "CHECK @ ABSENT", "EXEC"],
    "EXECABORT": ["MULTI", "GET", "EXEC"],
    "BADCONFIG": ["ADMIN GROUP CREATE 5 % %"],
}  # fmt: skip
REFERENCE = TESTS.parent / "docs/reference/coordination-commands.md"


def documented():
    """Return the codes of the table that says what each means."""
    table = REFERENCE.read_text().split("## Errors")[1].split("\n\n")[2]
    first_cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    return {words.split()[0] for cell in first_cells for words in re.findall("`(.*?)`", cell)}


class Two:
    """Two connections to a node."""

    def __init__(self, node):
        host, port = node.address("coord")
        self.links = [Coordination(f"{host}:{port}", Who(None, "")) for _ in range(2)]
        self.known = {}

    def say(self, line):
        """Have a line said; `b:` by the second connection."""
        link = self.links[line.startswith("b:")]
        words = words_of(line.removeprefix("b:").format(**self.known).encode())
        reply = link.say(words)[0]
        if reply.sign == b"%":
            texts = [word.decode() for word in reply.words]
            self.known |= dict(zip(texts[::2], texts[1::2], strict=True))
        return reply

    def close(self):
        for link in self.links:
            link.say((b"SESSION", b"CLOSE"))
            link.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    made = NodeProcess(tmp_path_factory.mktemp("codes") / "n", "--coord", FREE, "--peer", FREE)
    yield made.start()
    made.kill()


@pytest.fixture
def two(node):
    made = Two(node)
    yield made
    made.close()


def test_no_code_is_missing():
    assert sorted({*CASES, *ELSEWHERE}) == sorted(documented() - {"EXISTS"})  # no error
    for code, path in ELSEWHERE.items():
        assert code in (TESTS / path).read_text()


def given():
    """Return the codes that the source has where it makes an error."""
    found = {code.value for code in Code} - {"OK"}
    for package in ("coordination", "vsr"):
        for path in (TESTS.parent / "src/millstream" / package).rglob("*.py"):
            text = path.read_text()
            found |= set(re.findall(r"\b(?:error|Refused)\(\s*f?\"([A-Z_]{3,})\"", text))
    return found


def test_no_code_is_given_that_is_not_documented():
    assert given() - documented() == set()
    assert {"LOCKED", "WOULDBLOCK", "BADCONFIG"} <= given()


@pytest.mark.parametrize("code", CASES)
def test_each_code_comes_over_the_wire(two, code):
    two.say("CREATENAMESPACE /errors")
    two.say(f"CREATE BINARY /errors/{code}")
    member = two.links[0].ask("ADMIN", "NODES")[0][b"node"].decode()
    lines = [line.replace("@", f"/errors/{code}").replace("%", member) for line in CASES[code]]
    *before, last = [two.say(line) for line in lines]
    assert not [reply for reply in before if reply.is_error and code != "EXECABORT"], before
    assert last.is_error
    assert code.encode() in last.text.split()[:3], last.text
    if code not in ("WOULDBLOCK", "CHECK_FAILED"):
        assert last.text.split()[0] == code.encode()
