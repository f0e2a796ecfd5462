"""Commands nobody would think of: each as it is written, filled in by chance, and often spoilt.

Invariants:
1. Every command there is can come out, with any of its options (`FORMS`).
2. Words that replies had come back, as clients send back versions, tokens and ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from simulators.coordination_fuzz.choices import Choices

__all__ = ["ADMITTED", "FORMS", "HOMES", "Inventor"]

FORMS = [
    form.split()
    for form in """\
CREATENAMESPACE ROOT VALUE? [GROUP NUMBER]
DELETENAMESPACE ROOT [FORCE]
CREATE TYPE [EPHEMERAL] [SEQUENTIAL] [PARENTS] PATH VALUE*
CREATE TYPE [EPHEMERAL] [SEQUENTIAL] PATH VALUE?
CREATE COUNTER [UNSIGNED] [BIT BITS] [WRAP] PATH
DELETE PATH [RECURSIVE] [CAS VERSION]
MOVE PATH PATH [FORCE_MOVE]
GET PATH [CAS] [ATTR] [NODATA] [CHILDREN] [STALEREAD]
PUT PATH VALUE [CAS VERSION] [IFLOCK VERSION]
PUT PATH ATTR ATTRIBUTE VALUE [u.b VALUE]
FORCE PUT PATH VALUE [CAS VERSION] [IFLOCK VERSION]
FORCE GET PATH [ATTR]
FORCE DELETE PATH [RECURSIVE]
FORCE MOVE PATH PATH [FORCE_MOVE]
FORCE DELETENAMESPACE ROOT [FORCE]
LIST PATH [TOKEN SEEN] [COUNT NUMBER] [STALEREAD]
LOOKUP PATH [STALEREAD]
LIST APPEND PATH VALUE VALUE*
LIST PREPEND PATH VALUE VALUE*
LIST INSERT PATH NUMBER VALUE
LIST SET PATH NUMBER VALUE
LIST REMOVE PATH NUMBER NUMBER?
LIST REMVAL PATH VALUE NUMBER?
LIST TRIM PATH NUMBER NUMBER
LIST INDEX PATH NUMBER
LIST RANGE PATH NUMBER NUMBER
LIST LEN PATH
LIST FIND PATH VALUE
SET ADD PATH VALUE VALUE*
SET REM PATH VALUE VALUE*
SET HAS PATH VALUE
SET MEMBERS PATH [TOKEN SEEN] [COUNT NUMBER]
SET LEN PATH
SET POP PATH
SET UNION PATH PATH*
SET INTER PATH PATH*
SET DIFF PATH PATH*
SET VALUE VALUE
CAS VALUE VALUE VALUE
GET VALUE [META]
QUEUE PUSH PATH VALUE VALUE* [PRIORITY NUMBER]
QUEUE POP PATH NUMBER?
QUEUE TAKE PATH NUMBER?
QUEUE ACK PATH SEEN SEEN*
QUEUE NACK PATH SEEN SEEN*
QUEUE PEEK PATH NUMBER?
QUEUE LEN PATH
QUEUE PURGE PATH
QUEUE WAIT PATH
COUNTER INC NUMBER? PATH [WRAP]
COUNTER DEC NUMBER? PATH [WRAP]
COUNTER RESET PATH
COUNTER GET PATH
LOCK [READ] PATH [TOKEN] [NOWAIT]
LOCK [WRITE] GROUP PATH PATH* [TOKEN] [NOWAIT]
LOCK [READ] [GROUP] PATH PATH*
LOCK RELEASE PATH PATH*
LOCK CANCEL PATH PATH*
LOCK INFO PATH
ELECT CAMPAIGN PATH VALUE?
ELECT RESIGN PATH
ELECT LEADER PATH
SEMAPHORE INIT NUMBER PATH
SEMAPHORE ACQUIRE PATH [TOKEN] [NOWAIT]
SEMAPHORE RELEASE PATH
SEMAPHORE CANCEL PATH
SEMAPHORE DESTROY PATH
BARRIER INIT NUMBER PATH
BARRIER WAIT PATH
BARRIER CANCEL PATH
BARRIER DESTROY PATH
CHECK PATH EXISTS
CHECK PATH ABSENT
CHECK PATH CAS VERSION
CHECK PATH CHILDREN VERSION
CHECK PATH IFLOCK VERSION
CONFIG GET PLACE KEY [SOURCE]
CONFIG SET PLACE KEY SETTING UNIT?
CONFIG UNSET PLACE KEY
ACL GET PATH
ACL SET PATH [OWNER VALUE] [GROUP VALUE] [MODE MODE] [ENTRY GRANT] [REMOVE GRANT] [DEFAULT MODE MODE] [RECURSIVE]
ACL WHOAMI
ACL CHECK PATH r VALUE?
SUBACK VALUE VERSION
""".splitlines()  # noqa: E501
]
"""In capitals, what has a meaning of its own below; brackets: or not; ? and *: so often."""
ADMITTED = [
    form.split()
    for form in """\
MARK PATH PATH* [TREE] [CHILDREN] [DURABLE VALUE]
NAMESPACE RESERVE ROOT NUMBER
NAMESPACE CONFIRM ROOT VERSION
NAMESPACE DELETE ROOT [FORCE] [LOCKED]
NAMESPACE KEEP ROOT VERSION VERSION
NAMESPACE FREE ROOT VERSION
NAMESPACE CREATE ROOT VERSION VALUE VALUE?
NAMESPACE UNDO ROOT VERSION
NAMESPACE DROP ROOT VERSION VERSION [FORCE] [LOCKED]
""".splitlines()
]
"""What nodes log besides, which no client may send."""
_PATHS = b"/n /n/a /n/a/b /n/a/b/c /n/q /n/q/i /n/l /n/s /n/c /n/e /m /m/a /m/a/b".split()
_KINDS: dict[str, list[bytes]] = {
    "ROOT": [b"/n", b"/m", b"n", b"/n/a", b"/.system"],
    "TYPE": b"BINARY LIST SET QUEUE COUNTER ROOT".split(),
    "VALUE": [b"a", b"b", b"7", b"", b"\xff\x00\r\n", b"user", b"x" * 300, b"u.a", b"-1"],
    "NUMBER": [
        *b"0 1 2 3 7 -1 -2 100 1000 2147483647 9223372036854775807 -0 007 +1 1_0".split(),
        *(b"9" * 19, b"9" * 20, b"1" * 700, b" 1", b"\xd9\xa3"),
    ],
    "BITS": b"8 16 64 128 2048 0 9 2056 -8".split(),
    "VERSION": [b"0:1:1", b"*", b"0:0:0", b"4294967295:4294967295:18446744073709551615"],
    "ATTRIBUTE": [b"u.a", b"u.b", b"u.", b"u." + b"x" * 65, b"v"],
    "KEY": b"""NAMESPACE.SESSION.HEARTBEAT.DURATION SUBS.MIN.HISTORY LOCK.READ.OPEN LIMIT.DATA
    LIMIT.ITEMS LIMIT.CHILDREN LIMIT.ELEMENTS LIMIT.BYTES GROUP.HEARTBEAT GROUP.VIEW.TIMEOUT
    GROUP.SNAPSHOT.ENTRIES GROUP.LOG.RETAIN GROUP.BATCH.MAX GROUP.PIPELINE GROUP.JOURNAL
    GLOBAL.AUTH.REQUIRED GLOBAL.VDS.INTERVAL * LIMIT.* [""".split(),
    "SETTING": [
        *b"0 1 2 3 100 1000 5000 65536 true false yes no 1e9 0.5 -1 9".split(),
        *(b"9" * 30, b"300-400", b"1-2", b"5-4"),
    ],
    "UNIT": b"ms s seconds minutes hour KB MB ZB".split(),
    "PLACE": [*_PATHS, b"GROUP", b"GLOBAL", b"NODE"],
    "MODE": b"0755 644 0 7777 9 -1 0o17".split(),
    "GRANT": b"user:a:rw- group:b:r-- user:user:--- user::rwx a user:a group:b:q user:a:r".split(),
    "SEEN": [],
}
_BITS_OF_PATHS = [b"a", b"b", b"..", b".", b"", b"\xff", b"\xc3\xa9", b"x" * 256, b"\x01", b"l"]
HOMES = {
    "QUEUE": b"/n/q",
    "LIST": b"/n/l",
    "SET": b"/n/s",
    "COUNTER": b"/n/c",
    "SEMAPHORE": b"/n/e",
    "BARRIER": b"/n/a/b",
}
"""Where commands that begin so are mostly about."""
SEEN_MAX = 40


class Inventor:
    """Makes commands; `remember` what was answered to them."""

    def __init__(self, choices: Choices, forms: Sequence[list[str]]) -> None:
        self.choices, self._forms = choices, forms
        self._seen: deque[bytes] = deque(maxlen=SEEN_MAX)

    def remember(self, word: bytes) -> None:
        """Have this come back."""
        if len(word) < 100 and word not in self._seen:
            self._seen.append(word)

    def command(self) -> list[bytes]:
        """Return the words of one."""
        form = list(self.choices.pick(self._forms))
        form_name = form[0]
        words: list[bytes] = []
        while form:
            part = form.pop(0)
            if part.startswith("["):
                if self.choices.number(2):
                    while not part.endswith("]"):
                        part = form.pop(0)
                    continue
                part = part[1:]
            many = self.choices.number(2) if part[-1] in "*?" else 1
            many = min(many, 1) if part[-1] == "?" else many
            words += [self._word(form_name, part.strip("*?]")) for _ in range(many)]
        return self._spoilt(words) if self.choices.one_in(6) else words

    def _word(self, form_name: str, kind: str) -> bytes:
        home = HOMES.get(form_name)
        if kind == "PATH" and home is not None and self.choices.number(3):
            return home
        return self.word(kind)

    def word(self, kind: str) -> bytes:
        """Return a word of a kind; one that is none stands for itself."""
        choices = self.choices
        if kind == "PATH":
            return self._path()
        if kind not in _KINDS:
            return kind.encode()
        if self._seen and (kind == "SEEN" or (kind == "VERSION" and choices.number(3))):
            return choices.pick(self._seen)
        return choices.pick(_KINDS[kind] or _KINDS["VALUE"])

    def _path(self) -> bytes:
        choices = self.choices
        path = choices.pick(_PATHS)
        if choices.one_in(8):
            path += b"/" + choices.pick(_BITS_OF_PATHS)
        return choices.pick(self._seen) if self._seen and choices.one_in(12) else path

    def _spoilt(self, words: list[bytes]) -> list[bytes]:
        choices = self.choices
        at = choices.number(len(words) - 1)
        how = choices.number(4)
        if how == 0:
            del words[at]
        elif how == 1:
            words.insert(at, words[choices.number(len(words) - 1)])
        elif how == 2:
            words[at] = self.word(choices.pick(sorted(_KINDS)))
        elif how == 3:
            words[at] = choices.text(choices.number(12))
        else:
            words.append(self.word(choices.pick([*sorted(_KINDS), "PATH", "WRAP", "STALEREAD"])))
        return words
