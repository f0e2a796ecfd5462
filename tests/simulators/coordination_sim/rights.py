"""Who may what, worked out a second time from the entries alone: users, and access lists.

Invariants:
1. What an entry does its user had the right to at that entry, by the list as the entries before it
   have left it; what a user had the right to is done.
2. The same holds of a read, and the entry that it is as new as.
3. An entry says whose it is: user and groups of the client that asked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.coordination.core.backend import Checked, Principal
from simulators.namespace_truth import require

if TYPE_CHECKING:
    from millstream.vsr.core.entries import Body
    from simulators.coordination_sim.names import Names

GROUPS = {"ann": ("crew",), "bob": ("crew", "staff"), "cyd": ()}
USERS = tuple(GROUPS)
GUARDED = ("/h/guarded", "/h/kept")
MODES = ("000", "004", "006", "040", "060", "046", "400", "600", "644", "755")
BITS = ("rw-", "r--", "-w-", "---")
READ, WRITE = 4, 2


class Users:
    """The users of all nodes; who does not say who it is may everything, as without users."""

    asks = False

    def check(
        self, name: str, password: str, done: Checked, source: str = ""
    ) -> Callable[[], object]:
        groups = GROUPS.get(name)
        done("no such user" if groups is None else Principal(name, is_admin=False, groups=groups))
        return lambda: None

    def check_token(self, token: bytes, done: Checked) -> Callable[[], object]:
        done("there are no tokens")
        return lambda: None


def change(rng: Random) -> tuple[str, ...]:
    """Return what somebody wants changed of a list."""
    user, group, bits = rng.choice(USERS), rng.choice(("crew", "staff")), rng.choice(BITS)
    mode = "MODE", rng.choice(MODES)
    return rng.choice((
        mode, mode, mode, mode, ("OWNER", user), ("GROUP", group),
        ("ENTRY", f"user:{user}:{bits}"), ("ENTRY", f"group:{group}:{bits}"),
        ("REMOVE", f"user:{user}"), ("REMOVE", f"group:{group}"),
    ))  # fmt: skip


class Rule(NamedTuple):
    """One list; `entries`: user:name or group:name -> bits."""

    owner: str = ""
    group: str = ""
    mode: int = 0o755
    entries: tuple[tuple[str, int], ...] = ()

    def bits(self, user: str, groups: tuple[str, ...]) -> int:
        """Return what a user may: as owner, by its name, by any of its groups, or as anybody."""
        entries = dict(self.entries)
        if user == self.owner:
            return self.mode >> 6
        if f"user:{user}" in entries:
            return entries[f"user:{user}"]
        of_groups = [entries[f"group:{name}"] for name in groups if f"group:{name}" in entries]
        if self.group in groups:
            of_groups.append(self.mode >> 3)
        granted = 0
        for bits in of_groups:
            granted |= bits
        return granted if of_groups else self.mode

    def changed(self, name: str, value: str) -> Rule:
        """Return the list after a change."""
        if name == "MODE":
            return self._replace(mode=int(value, 8))
        if name in ("OWNER", "GROUP"):
            return self._replace(**{name.lower(): value})
        entries = dict(self.entries)
        who, _, letters = value.rpartition(":") if name == "ENTRY" else (value, "", "")
        entries.pop(who, None)
        if name == "ENTRY":
            bits = zip((4, 2, 1), letters, strict=True)
            entries[who] = sum(bit for bit, letter in bits if letter != "-")
        return self._replace(entries=tuple(sorted(entries.items())))


class Rights:
    """The lists of what is guarded, with all their past."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._past: dict[str, tuple[list[int], list[Rule]]] = {
            path: ([0], [Rule()]) for path in GUARDED
        }  # fmt: skip

    def may(self, user: str, path: str, wanted: int, lsn: int) -> bool:
        """Return whether a user may do this behind an entry; all that are no users may."""
        lsns, rules = self._past[path]
        rule = rules[bisect_right(lsns, lsn) - 1]
        return not user or bool(rule.bits(user, GROUPS[user]) & wanted)

    def may_between(self, user: str, path: str, wanted: int, first: int, last: int) -> bool:
        """Return whether a user may do this behind each of these entries."""
        lsns, _ = self._past[path]
        ends = [lsn for lsn in lsns if first < lsn <= last]
        return all(self.may(user, path, wanted, lsn) for lsn in (first, *ends) if lsn <= last)

    def _may_rule(self, user: str, path: str, lsn: int) -> bool:
        lsns, rules = self._past[path]
        return not user or rules[bisect_right(lsns, lsn) - 1].owner == user

    def executed(
        self, user: str, body: Body, request: tuple[Any, ...], reply: bytes, lsn: int
    ) -> None:
        """Look at what an entry did; `user` is who asked for it."""
        groups = tuple(name.decode() for name in body.groups)
        is_theirs = (body.principal.decode(), groups) == (user, GROUPS.get(user, ()))
        require(is_theirs, f"entry {lsn} is {user or 'nobody'}'s, it says {body[:2]}")
        commands = request[1:] if request[0] == "EXEC" else (request,)
        looked = [self._is_allowed(user, one, lsn) for one in commands]
        if not looked or None in looked:
            return
        refused = b"-EXECABORT" if request[0] == "EXEC" else b"-NOPERM"
        if all(looked):
            done = not reply.startswith(b"-")
            require(done, f"entry {lsn}: {user} may {request}, and is told {reply!r}")
        else:
            is_refused = reply.startswith(refused)
            require(is_refused, f"entry {lsn}: {request} is done without the right, by {user}")
        if request[:2] == ("ACL", "SET") and reply == b"+OK":
            lsns, rules = self._past[request[2]]
            lsns.append(lsn)
            rules.append(rules[-1].changed(*request[3:]))

    def _is_allowed(self, user: str, command: tuple[Any, ...], lsn: int) -> bool | None:
        """Return whether a command is allowed; None if it is about something else."""
        if command[0] == "PUT" and command[1] in GUARDED:
            return self.may(user, command[1], WRITE, lsn - 1)
        if command[:2] == ("ACL", "SET"):
            return self._may_rule(user, command[2], lsn - 1)
        return None

    def check_read(self, body: Body, lsn: int, value: bytes) -> None:
        """Look at what a read of something guarded was answered."""
        if body.argv[0] != b"GET":
            return
        user, path = body.principal.decode(), self._names.plain(body.argv[1].decode())
        if path not in GUARDED:
            return
        if value.startswith(b"-ERROR_DOES_NOT_EXISTS"):
            return
        may = self.may(user, path, READ, lsn)
        is_read = not value.startswith(b"-NOPERM")
        require(may is is_read, f"{user} {'may' if may else 'may not'} read {path}: {value!r}")
