"""Every command of coordination, said in the shell to a node: how it is written, what is printed.

`<it>` stands for the version, item or token that was shown last, `<number>` for any number,
`...` for whatever follows.
"""

import re

import pytest

from millstream.coordination.core.shell.commands import COMMANDS
from support.coordination.said_in_shell import Said, exchanges
from support.node.node_process import FREE, NodeProcess
from support.node.waiting import until

TRANSCRIPTS = {
    "elements": """
v2r2> CREATENAMESPACE /c "data" GROUP 1
OK
v2r2> GET /c
"data"
v2r2> CREATE BINARY PARENTS /c/p/q x
OK
v2r2> CREATE BINARY EPHEMERAL /c/e
OK
v2r2> CREATE BINARY /c/e/below
EPHEMERAL_PARENT ...
v2r2> CREATE BINARY /c/none/below
ERROR_DOES_NOT_EXISTS /c/none
v2r2> CREATE LIST SEQUENTIAL /c/p/l a b
/c/p/l0000000000
v2r2> CREATE BINARY EPHEMERAL SEQUENTIAL PARENTS /c/n/s x
/c/n/s0000000000
v2r2> CREATE COUNTER EPHEMERAL SEQUENTIAL PARENTS UNSIGNED BIT 16 WRAP /c/n/m/k
/c/n/m/k0000000000
v2r2> CREATE BINARY /c/p/q y
EXISTS
v2r2> CREATE QUEUE /c/p/q
WRONGTYPE /c/p/q is a BINARY
v2r2> LIST /
c
t
v2r2> LIST /c COUNT 1 STALEREAD
TOKEN: T
e
v2r2> LIST /c TOKEN <it> COUNT 2 STALEREAD
n
p
v2r2> LIST /c/
e
n
p
v2r2> LIST /c TOKEN bad!
BADTOKEN ...
v2r2> LOOKUP /c/p/q STALEREAD
OK
v2r2> LOOKUP /c/p/none/x
NOTFOUND
/c/p
v2r2> PUT /c/p/q ATTR u.color red u.size 3
OK
v2r2> GET /c/p/q CAS STALEREAD
CAS: VERSION
"x"
v2r2> PUT /c/p/q y CAS <it>
OK
v2r2> PUT /c/p/q z CAS 1:0:1
CAS_MISMATCH VERSION
v2r2> LOCK WRITE /c/p/q TOKEN
OK
TOKEN: VERSION
v2r2> PUT /c/p/q z IFLOCK <it>
OK
v2r2> LOCK RELEASE /c/p/q
OK
v2r2> PUT /c/p/q again IFLOCK <it>
FENCED ...
v2r2> GET /c/p/q STALEREAD
"z"
v2r2> PUT /c x
ISROOT ...
v2r2> MOVE /c/p /c/p/q/z
LOOP ...
v2r2> MOVE /c/p /c/p
OK
v2r2> MOVE /c/p /d/p
CROSS_NAMESPACE ...
v2r2> DELETE /c
ISROOT ...
v2r2> MOVE /c/n/s0000000000 /c/p/l0000000000
NAME_CONFLICT /c/p/l0000000000
v2r2> MOVE /c/n/s0000000000 /c/p/l0000000000 FORCE_MOVE
OK
v2r2> GET /c/p ATTR NODATA CHILDREN STALEREAD
type: BINARY
...
v2r2> DELETE /c/p
NOTEMPTY /c/p
v2r2> DELETE /c/p RECURSIVE CAS 1:0:1
CAS_MISMATCH VERSION
v2r2> GET /c/p/q CAS
CAS: VERSION
"z"
v2r2> DELETE /c/p/q CAS <it>
OK
v2r2> DELETE /c/p RECURSIVE
OK
v2r2> DELETENAMESPACE /c
NOTEMPTY /c
v2r2> DELETENAMESPACE /c FORCE
OK
""",
    "lists": """
v2r2> CREATE LIST /t/list a b
OK
v2r2> LIST APPEND /t/list c d
4
v2r2> LIST PREPEND /t/list z
5
v2r2> LIST INSERT /t/list 1 y
6
v2r2> LIST SET /t/list -1 D
OK
v2r2> LIST INDEX /t/list 0 STALEREAD
"z"
v2r2> LIST INDEX /t/list 99
(nothing)
v2r2> LIST RANGE /t/list 1 -2 STALEREAD
"y"
"a"
"b"
"c"
v2r2> LIST FIND /t/list a STALEREAD
2
v2r2> LIST REMOVE /t/list 0 2
"z"
"y"
v2r2> LIST REMVAL /t/list a 1
1
v2r2> LIST LEN /t/list STALEREAD
3
v2r2> LIST TRIM /t/list 0 0
1
v2r2> GET /t/list
"b"
v2r2> SET ADD /t/list x
WRONGTYPE ...
""",
    "sets": """
v2r2> CREATE SET /t/set b a
OK
v2r2> CREATE SET /t/other b c
OK
v2r2> SET ADD /t/set c d a
2
v2r2> SET REM /t/set d none
1
v2r2> SET HAS /t/set a STALEREAD
1
v2r2> SET MEMBERS /t/set COUNT 2 STALEREAD
TOKEN: T
"a"
"b"
v2r2> SET MEMBERS /t/set TOKEN <it>
"c"
v2r2> SET LEN /t/set STALEREAD
3
v2r2> SET UNION /t/set /t/other STALEREAD
"a"
"b"
"c"
v2r2> SET INTER /t/set /t/other
"b"
"c"
v2r2> SET DIFF /t/set /t/other
"a"
v2r2> SET POP /t/set
"a"
v2r2> GET /t/set
"b"
"c"
""",
    "queues": """
v2r2> CREATE QUEUE /t/queue one two
OK
v2r2> QUEUE PUSH /t/queue urgent PRIORITY 9
VERSION:0
v2r2> QUEUE PEEK /t/queue 2 STALEREAD
"urgent"
"one"
v2r2> QUEUE LEN /t/queue STALEREAD
3
0
v2r2> QUEUE POP /t/queue
"urgent"
v2r2> QUEUE WAIT /t/queue
OK
v2r2> QUEUE TAKE /t/queue
VERSION:0 "one" 1
v2r2> QUEUE LEN /t/queue
1
1
v2r2> QUEUE NACK /t/queue <it>
1
v2r2> QUEUE TAKE /t/queue 1
VERSION:0 "one" 2
v2r2> QUEUE ACK /t/queue <it>
1
v2r2> QUEUE ACK /t/queue <it>
0
v2r2> QUEUE PURGE /t/queue
1
v2r2> QUEUE POP /t/queue 2
(empty)
""",
    "counters": """
v2r2> CREATE COUNTER UNSIGNED BIT 8 WRAP /t/wraps
OK
v2r2> COUNTER DEC /t/wraps
255
v2r2> COUNTER INC 2 /t/wraps
1
v2r2> COUNTER GET /t/wraps STALEREAD
1
v2r2> COUNTER RESET /t/wraps
0
v2r2> CREATE COUNTER BIT 8 /t/stays
OK
v2r2> COUNTER INC 200 /t/stays
127
NOWRAP
v2r2> COUNTER INC /t/stays WRAP
-128
v2r2> COUNTER DEC 1 /t/stays WRAP
127
v2r2> GET /t/stays
127
v2r2> CREATE COUNTER BIT 128 /t/big
OK
v2r2> COUNTER INC 100000000000000000000000 /t/big
100000000000000000000000
""",
    "locks": """
v2r2> CREATE BINARY PARENTS /t/lock/below
OK
v2r2> LOCK READ /t/lock TOKEN
OK
TOKEN: VERSION
v2r2> LOCK WRITE /t/lock
OK
v2r2> LOCK READ /t/lock NOWAIT
OK
v2r2> LOCK INFO /t/lock STALEREAD
kind: lock
state: held
size: (nothing)
generation: (nothing)
holders: {client: ...
v2r2> LOCK WRITE GROUP /t/lock/below /t/lock TOKEN NOWAIT
OK
TOKEN: VERSION
v2r2> LOCK /t/lock /t/lock/below
BADARG several paths need GROUP...
v2r2> SEMAPHORE INIT 2 /t/lock
SYNCTYPE ...
v2r2> LOCK RELEASE /t/lock /t/lock/below
OK
v2r2> LOCK RELEASE /t/lock
NOTHELD ...
v2r2> LOCK CANCEL /t/lock
NOTHELD ...
v2r2> ELECT CAMPAIGN /t/lock me
OK
TOKEN: VERSION
v2r2> ELECT LEADER /t/lock STALEREAD
CLIENT: ...
v2r2> ELECT RESIGN /t/lock
OK
v2r2> ELECT LEADER /t/lock
(nothing)
""",
    "semaphores and barriers": """
v2r2> CREATE BINARY /t/semaphore
OK
v2r2> SEMAPHORE INIT 2 /t/semaphore
OK
v2r2> SEMAPHORE INIT 2 /t/semaphore
EXISTS
v2r2> SEMAPHORE INIT 3 /t/semaphore
SYNCTYPE ...
v2r2> LOCK /t/semaphore
SYNCTYPE ...
v2r2> SEMAPHORE ACQUIRE /t/semaphore TOKEN NOWAIT
OK
TOKEN: VERSION
v2r2> SEMAPHORE CANCEL /t/semaphore
NOTHELD ...
v2r2> SEMAPHORE RELEASE /t/semaphore
OK
v2r2> SEMAPHORE RELEASE /t/semaphore
NOTHELD ...
v2r2> SEMAPHORE DESTROY /t/semaphore
OK
v2r2> SEMAPHORE DESTROY /t/semaphore
OK
v2r2> BARRIER INIT 1 /t/semaphore
OK
v2r2> BARRIER WAIT /t/semaphore
GO
v2r2> BARRIER CANCEL /t/semaphore
NOTHELD ...
v2r2> BARRIER DESTROY /t/semaphore
OK
""",
    "transactions": """
v2r2> CREATE BINARY /t/group x
OK
v2r2> GET /t/group CAS
CAS: VERSION
"x"
v2r2> MULTI
OK
v2r2> CHECK /t/group EXISTS
QUEUED
v2r2> CHECK /t/none ABSENT
QUEUED
v2r2> CHECK /t/group CAS <it>
QUEUED
v2r2> PUT /t/group y
QUEUED
v2r2> EXEC
OK
OK
OK
OK
v2r2> MULTI
OK
v2r2> PUT /t/group z
QUEUED
v2r2> CHECK /t/group CHILDREN 1:0:1
QUEUED
v2r2> EXEC
EXECABORT 1 CHECK_FAILED ...
v2r2> MULTI
OK
v2r2> CHECK /t/group IFLOCK 1:0:1
QUEUED
v2r2> EXEC
EXECABORT 0 CHECK_FAILED ...
v2r2> MULTI
OK
v2r2> PUT /t/group
BADARG ...
v2r2> EXEC
EXECABORT 0 BADARG ...
v2r2> MULTI
OK
v2r2> DISCARD
OK
v2r2> GET /t/group
"y"
""",
    "configuration": """
v2r2> CREATE BINARY PARENTS /t/conf/below
OK
v2r2> CONFIG SET /t/conf LIMIT.DATA 1 KB
OK
v2r2> CONFIG GET /t/conf/below LIMIT.DATA
LIMIT.DATA: 1024
v2r2> CONFIG GET /t/conf/below LIMIT.DATA SOURCE STALEREAD
1024
/t/conf
v2r2> CONFIG UNSET /t/conf LIMIT.DATA
OK
v2r2> CONFIG GET /t/conf/below LIMIT.DATA SOURCE
1048576
DEFAULT
v2r2> CONFIG GET /t/conf SUBS.*
SUBS.MIN.HISTORY: 128
v2r2> CONFIG SET /t/conf NAMESPACE.SESSION.HEARTBEAT.DURATION 2 hours
BADARG ...
v2r2> CONFIG SET GROUP GROUP.BATCH.MAX 256
OK
v2r2> CONFIG GET GROUP GROUP.BATCH.MAX SOURCE
256
GROUP
v2r2> CONFIG UNSET GROUP GROUP.BATCH.MAX
OK
v2r2> CONFIG SET GLOBAL GLOBAL.AUTH.REQUIRED no
OK
v2r2> CONFIG GET GLOBAL GLOBAL.AUTH.REQUIRED
GLOBAL.AUTH.REQUIRED: false
v2r2> CONFIG UNSET GLOBAL GLOBAL.AUTH.REQUIRED
OK
v2r2> CONFIG SET NODE NODE.DATA /elsewhere
BADARG a node takes its keys from its file...
v2r2> CONFIG GET NODE NODE.NOTHING
(empty)
v2r2> CONFIG GET save
(empty)
""",
    "access": """
v2r2> CREATE BINARY PARENTS /t/acl/below
OK
v2r2> ACL WHOAMI
principal: anonymous
groups: (empty)
admin: true
v2r2> ACL SET /t/acl OWNER ann GROUP staff MODE 640 ENTRY user:bob:rw- ENTRY group:x:r--
OK
v2r2> ACL SET /t/acl REMOVE user:bob
OK
v2r2> ACL SET /t/acl DEFAULT MODE 700 RECURSIVE
OK
v2r2> ACL GET /t/acl STALEREAD
owner: ann
group: staff
mode: 0640
entries: group:x:r--
default_mode: 0700
default_entries: (empty)
v2r2> ACL CHECK /t/acl r
1
v2r2> ACL CHECK /t/acl w eve STALEREAD
0
v2r2> AUTH a b
NOAUTH ...
v2r2> AUTH TOKEN x
NOAUTH ...
""",
    "sessions": """
v2r2> SESSION OPEN INSTANCE 00112233445566778899aabbccddeeff TTL 5000 NAMESPACE /t
client_id: 00112233445566778899aabbccddeeff-...
v2r2> SESSION INFO NAMESPACE /t
client_id: 00112233445566778899aabbccddeeff-...
v2r2> SESSION PING
PONG
v2r2> SESSION LIST
client_id: ...
v2r2> CSN 5 CREATE BINARY SEQUENTIAL /t/csn
/t/csn0000000000
v2r2> CSN 5 CREATE BINARY SEQUENTIAL /t/csn
/t/csn0000000000
v2r2> CTS 1760000000000 SEEN 0:0:0 GROUP 1 CREATE BINARY SEQUENTIAL /t/csn
/t/csn0000000001
v2r2> NOTIFY NEXT BLOCK 10 NAMESPACE /t
(nothing)
v2r2> SESSION CLOSE
OK
v2r2> SESSION RESUME 00112233445566778899aabbccddeeff-99999 00 NAMESPACE /t
SESSIONEXPIRED ...
""",
    "subscriptions": """
v2r2> CREATE BINARY PARENTS /t/heard/below
OK
v2r2> SUBSCRIBE /t/heard MODE META CHILDREN
subscribe /t/heard 1
v2r2> UNSUBSCRIBE /t/heard
unsubscribe /t/heard 0
v2r2> SUBSCRIBE /t/heard TREE FROM 0
HISTORY_LOST ...
v2r2> SUBSCRIBE /t/heard MODE DATA DURABLE mine
subscribe /t/heard 1
v2r2> SUBACK mine 1 NAMESPACE /t
OK
v2r2> UNSUBSCRIBE
unsubscribe /t/heard 0
v2r2> SUBACK none 1
ERROR_DOES_NOT_EXISTS ...
""",
    "connections": """
v2r2> HELLO 3 SETNAME me
server: millstream...
v2r2> PING
PONG
v2r2> PING x
"x"
v2r2> ECHO "a b"
"a b"
v2r2> SELECT 0
OK
v2r2> COMMAND
(empty)
v2r2> COMMAND COUNT
0
v2r2> COMMAND DOCS
(empty)
v2r2> CLIENT GETNAME
me
v2r2> CLIENT SETNAME you
OK
v2r2> CLIENT SETINFO lib-name x
OK
v2r2> CLIENT ID
<number>
v2r2> CLIENT INFO
id=...
v2r2> INFO server
# Server
...
v2r2> RESET
RESET
""",
    "administration": """
v2r2> VDS
1:
    group: 1
...
v2r2> VDS /t
/t:
    group: 1
...
v2r2> ADMIN NODES
node: ...
v2r2> ADMIN STATUS 1
group: 1
...
v2r2> ADMIN LOG 1 1 1
version: VERSION
kind: NOOP
...
v2r2> ADMIN SNAPSHOT 1
1
v2r2> ADMIN GROUP CREATE 9 none
BADARG none does not begin the id of one node...
v2r2> ADMIN GROUP RECONFIG 1 none EPOCH 9
BADARG none does not begin the id of one node...
v2r2> ADMIN GROUP REPLACE 1 none other
BADCONFIG none is no member of this group
v2r2> ADMIN GROUP ADD 1 none
BADARG none does not begin the id of one node...
v2r2> ADMIN GROUP REMOVE 1 none
BADCONFIG none is no member of this group
v2r2> ADMIN GROUP MOVE-PRIMARY 1 none
BADARG none does not begin the id of one node...
v2r2> ADMIN GROUP FORCE 1 CONFIRM 2
BADARG ADMIN GROUP FORCE <group> [CONFIRM <group>]
v2r2> ADMIN GROUP FORCE 1
CONFLICT this member is the whole group already
v2r2> ADMIN GROUP DELETE 1 CONFIRM 2
BADARG ADMIN GROUP DELETE <group> CONFIRM <group>
v2r2> ADMIN BACKUP 1 file
BADARG the file needs an absolute path, on this node
v2r2> ADMIN RESTORE 9 file
BADARG the file needs an absolute path, on this node
v2r2> ADMIN USER LIST
(empty)
v2r2> ADMIN USER DEL ann
ERROR_DOES_NOT_EXISTS ...
v2r2> ADMIN USER SET ann x
BADARG ...
v2r2> ADMIN LEAVE
CONFLICT this node is in group 1...
""",
}
NOT_SAID = {"EXIT", "HELP", "QUIT", "TREE"}
"""What the shell does by itself, and what is tested where it is defined."""
NOT_HERE = {
    "ADMIN": {"JOIN", "JOURNAL", "PASSWORD", "ROLES", "GROUPS"},  # need other nodes, change users
    "HELLO": {"AUTH"},
}
HEARD = re.compile(r"^/\S+ \{\"op\":.*\n", re.MULTILINE)
"""What a subscription brings, and nobody waits for here."""
SHOWN = re.compile(r"TOKEN: (\S+)|\b(\d+:\d+:\d+(?::\d+)?)\b")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    made = NodeProcess(tmp_path_factory.mktemp("said") / "n", "--coord", FREE, "--peer", FREE)
    with Said(made.start()) as said:
        assert said.say("CREATENAMESPACE /t") == "OK\n"
        until(lambda: said.say("VDS /t").startswith("/t:"))  # a new one is told with delay
    yield made
    made.kill()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_every_command_prints_what_is_written_here(node, name):
    with Said(node) as said:
        for line, expected in exchanges(TRANSCRIPTS[name]):
            shown = [a or b for a, b in SHOWN.findall(said.out.getvalue().decode())]
            printed = HEARD.sub("", said.say(line.replace("<it>", shown[-1] if shown else "")))
            if expected == "<number>\n":
                printed = re.sub(r"\d+", "<number>", printed)
            begin, more, _ = expected.partition("...")
            assert printed.startswith(begin) if more else printed == expected, (line, printed)


def key_words(line):
    return set(re.findall(r"(?<![/.\w])[A-Z][A-Z_-]+\b(?![.=])", line))


def test_no_command_and_no_key_word_of_one_is_left_out():
    said = {}
    for transcript in TRANSCRIPTS.values():
        for line, _ in exchanges(transcript):
            words = re.sub(r"^((CSN|CTS|SEEN|GROUP) \S+ )+", "", line)
            said.setdefault(words.split()[0], set()).update(key_words(words))
    assert COMMANDS.keys() - said.keys() == NOT_SAID
    for name, ways in COMMANDS.items():
        if name not in NOT_SAID:
            wanted = set().union(*(key_words(way) for way, _ in ways)) - NOT_HERE.get(name, set())
            assert wanted <= said[name], name
