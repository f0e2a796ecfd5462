"""Commands as the shell knows them: how they are written, help, and what a word may become.

Invariants:
1. Every command that a node takes is here, once with each way of writing it.
2. What has a password in it is known, so that it is kept nowhere.

Elsewhere: what a node does with them (`resp.common_commands`, `namespace.admission`), how a line
is taken apart (`resp.protocol.words_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

__all__ = [
    "COMMANDS",
    "completions",
    "has_secret",
    "help_lines",
    "is_waiting",
    "root_of",
    "without_prefixes",
]

_TEXT: Final = """
CREATENAMESPACE root [data] [GROUP group] = create a namespace
DELETENAMESPACE root [FORCE] = delete a namespace
CREATE BINARY|LIST|SET|QUEUE [EPHEMERAL] [SEQUENTIAL] [PARENTS] path [data ...] = create elements
CREATE COUNTER [EPHEMERAL] [SEQUENTIAL] [PARENTS] [UNSIGNED] [BIT bits] [WRAP] path = count there
DELETE path [RECURSIVE] [CAS version] = delete an element
MOVE source target [FORCE_MOVE] = move an element, with all below it
GET path [CAS] [STALEREAD] = show what an element holds
GET path ATTR [NODATA] [CHILDREN] [STALEREAD] = show what is known of an element
PUT path data [CAS version] [IFLOCK token] = overwrite an element's data
PUT path ATTR u.name value ... = set attributes of users
LIST path [TOKEN token] [COUNT number] [STALEREAD] = names of an element's children
LIST APPEND|PREPEND path value ... = add to a list
LIST INSERT|SET path index value = add, or change, a value of a list
LIST REMOVE path index [count] = remove values by their place
LIST REMVAL path value [count] = remove values by what they are
LIST TRIM path first last = keep a part of a list
LIST RANGE path first last [STALEREAD] = show a part
LIST INDEX path index [STALEREAD] = one value
LIST LEN path [STALEREAD] = how many values there are
LIST FIND path value [STALEREAD] = where a value is
LOOKUP path [STALEREAD] = how much of a path there is
TREE path [STALEREAD] = all elements from a path on, with versions and data
SUBSCRIBE path ... [MODE META|DATA] [TREE|CHILDREN] [FROM lsn] [DURABLE name] = hear of changes
UNSUBSCRIBE [path ...] = hear no more
SUBACK name lsn [NAMESPACE root] = a durable subscription was heard so far
LOCK [READ|WRITE] [GROUP] path ... [TOKEN] [NOWAIT] = lock elements, and all below them
LOCK RELEASE|CANCEL path ... = let go; wait no more
LOCK INFO path [STALEREAD] = who holds a lock and who waits
ELECT CAMPAIGN path [data] = become the leader
ELECT RESIGN path = lead no more
ELECT LEADER path [STALEREAD] = who leads
SEMAPHORE INIT size path = make a semaphore
SEMAPHORE ACQUIRE path [TOKEN] [NOWAIT] = take a unit
SEMAPHORE RELEASE|CANCEL|DESTROY path = give it back; wait no more; end it
BARRIER INIT size path = make a barrier
BARRIER WAIT|CANCEL|DESTROY path = wait for the others; wait no more; end it
SET ADD|REM path member ... = add to a set, take from it
SET HAS path member [STALEREAD] = whether it is in the set
SET MEMBERS path [TOKEN token] [COUNT number] [STALEREAD] = a page of its members
SET LEN path [STALEREAD] = how many there are
SET POP path = take the smallest
SET UNION|INTER|DIFF path ... [STALEREAD] = of several sets
QUEUE PUSH path value ... [PRIORITY number] = add to a queue
QUEUE POP|TAKE path [count] = remove; take until ACK or NACK
QUEUE PEEK path [count] [STALEREAD] = look at what is next
QUEUE ACK|NACK path id ... = what was taken is done; give it back
QUEUE LEN path [STALEREAD] = how many are ready and taken
QUEUE PURGE|WAIT path = remove what is ready; wait for something
COUNTER INC|DEC [count] path [WRAP] = count
COUNTER RESET path = set to 0
COUNTER GET path [STALEREAD] = show
NOTIFY NEXT [BLOCK ms] [NAMESPACE root] = which command that waits is to be said again
MULTI = collect commands of a transaction
EXEC = do them all, or none
DISCARD = forget them
CHECK path EXISTS|ABSENT = a condition of a transaction
CHECK path CAS|CHILDREN|IFLOCK version = a condition of a transaction
CONFIG GET path|GROUP|GLOBAL key [SOURCE] [STALEREAD] = what counts
CONFIG GET NODE key = what the node was started with
CONFIG SET path|GROUP|GLOBAL key value [unit] = set a key
CONFIG UNSET path|GROUP|GLOBAL key = set it no more
ACL GET path [STALEREAD] = who may what
ACL SET path [OWNER user] [GROUP group] [MODE octal] [DEFAULT MODE octal] [RECURSIVE] = change it
ACL SET path [ENTRY entry] [REMOVE user:name] [RECURSIVE] = change entries
ACL WHOAMI = who this connection is
ACL CHECK path r|w [user] [STALEREAD] = whether somebody may
SESSION OPEN [INSTANCE hex] [TTL ms] [NAMESPACE root] = open a session
SESSION RESUME client secret [NAMESPACE root] = go on with one
SESSION PING|INFO|CLOSE [NAMESPACE root] = beat; show; end it
SESSION LIST [client] = sessions of the group
AUTH name password = log in
AUTH TOKEN token = log in
HELLO [3 [AUTH name password] [SETNAME name]] = greet
PING [message] = whether the node answers
ECHO message = say it back
RESET = a new connection
QUIT = leave the shell
CLIENT SETINFO|SETNAME|GETNAME|ID|INFO [value] = of this connection
COMMAND [COUNT|DOCS] = nothing; for clients of Redis
SELECT 0 = nothing; for clients of Redis
INFO [section] = about the node
VDS [path] = where groups and namespaces are
ADMIN JOIN host port ... = make one pool of two
ADMIN LEAVE [node] = leave the pool; remove a lost node
ADMIN NODES = the pool's nodes
ADMIN STATUS [group] = of the node; of a group
ADMIN GROUP CREATE number node ... [JOURNAL fsync|none] = found a group
ADMIN GROUP RECONFIG|ADD|REMOVE group node ... [EPOCH epoch] = change its members
ADMIN GROUP REPLACE group old new = one member for another
ADMIN GROUP MOVE-PRIMARY group node = have this member lead
ADMIN GROUP FORCE group [CONFIRM group] = go on from this node if the majority is lost for good
ADMIN GROUP DELETE group CONFIRM group = delete it for ever
ADMIN SNAPSHOT group = take a snapshot now
ADMIN BACKUP|RESTORE group file = write a backup; make a group of one
ADMIN LOG group from to = headers of entries
ADMIN USER SET name [PASSWORD password] [ROLES role ...] [GROUPS group ...] = make or change a user
ADMIN USER DEL name = remove one
ADMIN USER LIST = all users
HELP [command] = this
EXIT = leave the shell
"""
_PREFIXES: Final = {b"CSN": 2, b"CTS": 2, b"SEEN": 2, b"GROUP": 2, b"FORCE": 1}
"""And how many words each is."""
_KEYWORD: Final = re.compile(r"[A-Z][A-Z_-]+(?![a-z.])")
_LINES: Final = [line.partition(" = ")[::2] for line in _TEXT.strip().splitlines()]


def _by_name() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for usage, meaning in _LINES:
        found.setdefault(usage.split(" ", 1)[0], []).append((usage, meaning))
    return found


COMMANDS: Final = _by_name()
"""Name -> ways of writing it, each with what it does."""


# ---- help


def help_lines(words: Sequence[str]) -> list[str]:
    """Return what HELP says of a command, or of all."""
    if not words:
        return [*(f"{name:<16} {ways[0][1]}" for name, ways in COMMANDS.items()), _MORE]
    named = [word.upper() for word in words]
    ways = COMMANDS.get(named[0], [])
    if len(named) > 1:
        ways = [way for way in ways if named[1] in _keywords(way[0])]
    if not ways:
        return [f"there is no command {' '.join(named)}; HELP lists all"]
    return [line for usage, meaning in ways for line in (usage, f"    {meaning}")]


_MORE: Final = (
    "HELP and a command say more of it. Before a command may stand: CSN number, CTS ms, SEEN "
    "version, GROUP number, FORCE (administrators pass the locks of others)."
)


def _keywords(usage: str) -> list[str]:
    return _KEYWORD.findall(usage)


# ---- completion


def completions(line: str, names_below: Callable[[str], Iterable[str]]) -> list[str]:
    """Return what the last word of a line may become.

    `names_below` gives names of the children of a path; of "/" the namespaces.
    """
    *before, word = line.split(" ")
    before = [each.upper() for each in before if each]
    if word.startswith("/"):
        parent, _, begin = word.rpartition("/")
        names = names_below(parent or "/")
        return sorted(f"{parent}/{name}" for name in names if name.startswith(begin))
    while len(before) >= (size := _PREFIXES.get(before[0].encode(), 0) if before else 0) > 0:
        before = before[size:]
    return sorted(each for each in _next(before) if each.startswith(word.upper()))


def _next(before: Sequence[str]) -> set[str]:
    """Return the key words that may follow these words."""
    if not before:
        return set(COMMANDS)
    if before[0] == "HELP":
        return set(COMMANDS) if len(before) == 1 else set()
    usages = [usage for usage, _ in COMMANDS.get(before[0], ())]
    if len(before) == 1:
        return {
            word
            for usage in usages
            for word in _keywords(usage.split(" ", 2)[1] if " " in usage else "")
        }
    fitting = [usage for usage in usages if before[1] in _keywords(usage)] or [
        usage for usage in usages if not _is_chosen(usage)
    ]
    return (
        {word for usage in fitting for word in _keywords(usage)} - set(before) - _chosen(fitting)
    )


def _is_chosen(usage: str) -> bool:
    """Whether its second word is one of several key words, not a path."""
    second = usage.split(" ", 2)[1:2]
    return bool(second) and bool(_KEYWORD.match(second[0]))


def _chosen(usages: Iterable[str]) -> set[str]:
    return {
        word for usage in usages if _is_chosen(usage) for word in _keywords(usage.split(" ")[1])
    }


# ---- what the shell has to know of a command


def without_prefixes(words: Sequence[bytes]) -> list[bytes]:
    """Return the words of a command without `CSN number` and the like."""
    rest = list(words)
    while len(rest) > (size := _PREFIXES.get(rest[0].upper(), 0) if rest else 0) > 0:
        rest = rest[size:]
    return rest


def root_of(words: Sequence[bytes]) -> bytes:
    """Return the namespace that a command is about, by its first path; empty without one."""
    path = next((word for word in words if word.startswith(b"/") and len(word) > 1), b"")
    return b"/" + path.split(b"/", 2)[1] if path else b""


_WAITING: Final = {
    b"ELECT": (b"CAMPAIGN",), b"SEMAPHORE": (b"ACQUIRE", b"DESTROY"), b"BARRIER": (b"WAIT",),
    b"QUEUE": (b"WAIT",),
}  # fmt: skip
_NO_LOCK: Final = frozenset((b"RELEASE", b"CANCEL", b"INFO"))


def is_waiting(words: Sequence[bytes]) -> bool:
    """Whether a command may be answered PENDING; one with a CSN of its own is its giver's."""
    if len(words) < 2:
        return False
    name, second = words[0].upper(), words[1].upper()
    if name == b"LOCK":
        return second not in _NO_LOCK
    return second in _WAITING.get(name, ())


def has_secret(line: str) -> bool:
    """Whether a line has a password in it, or may have."""
    words = line.upper().split()
    return "AUTH" in words or "PASSWORD" in words or words[:2] == ["SESSION", "RESUME"]
