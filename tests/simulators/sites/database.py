"""A database in memory: partitions with histories, revision trees, feeds, logs, records.

A revision is `generation-number`, with a `d` behind it if it is a deletion; filters that look
inside let even numbers pass. A purged document has an empty tree.
"""

import copy
import json
import zlib

from millstream.documents.tokens import History, Vector, origin_of, parse_token
from millstream.errors import ConditionError, UsageError
from millstream.model.position import FailoverEntry, Position, position_at
from millstream.replication.core import coverage, logs
from millstream.replication.core.asking import (
    Difference,
    Document,
    Failure,
    Fetched,
    Info,
    Page,
    Row,
)
from millstream.replication.core.places import Place, Present

OPAQUE = {}
"""What a database that tells no vectors calls a place -> positions."""


def leaves(tree):
    return set(tree) - set(tree.values())


def number_of(rev):
    return int(rev.partition("-")[2].rstrip("d"))


def passes(feed, name, rev):
    if feed.doc_ids is not None:
        return name in feed.doc_ids
    if feed.selector is not None:
        return number_of(rev) % 2 == 0
    return True


class Partition:
    def __init__(self, uuid):
        self.changes = []  # (seqno, name, tree), oldest first
        self.log = (FailoverEntry(uuid, 0, uuid),)
        self.high = self.purge_seqno = 0

    def put(self, name, tree):
        self.high += 1
        self.changes.append((self.high, name, tree))

    def newest(self, at=None):
        return {
            name: (seqno, tree) for seqno, name, tree in self.changes if at is None or seqno <= at
        }

    def lose_tail(self, seqno, uuid):
        self.changes = [change for change in self.changes if change[0] <= seqno]
        kept = tuple(entry for entry in self.log if entry.seqno <= seqno)
        self.log = (FailoverEntry(uuid, seqno, uuid), *kept)
        self.high = seqno

    def end(self):
        return position_at(self.log, self.high, self.high, self.high) if self.high else Position()


class Database:
    """`numbers` makes uuids; `is_foreign`: like CouchDB, it tells neither uuid nor vectors."""

    def __init__(self, numbers, partitions=2, *, is_foreign=False):
        self.numbers, self.is_foreign = numbers, is_foreign
        self.uuid, self.ancestors = f"db{next(numbers)}", ()
        self.started = str(next(numbers))
        self.partitions = [Partition(next(numbers)) for _ in range(partitions)]
        self.locals, self.revs, self.records = {}, {}, []
        self.refused, self.forgotten, self.deaf = set(), set(), set()
        self.purge_epoch = 0
        self.order = list(range(partitions))
        self.limit = 1000
        self.rows_sent = self.asked = 0
        self.branches_of_foreign = 0

    # ---- what it is

    def present(self):
        histories = tuple(History(p.log, p.high, p.purge_seqno) for p in self.partitions)
        return Present(self.uuid, histories, self.purge_epoch, self.ancestors)

    def partition(self, name):
        return self.partitions[zlib.crc32(name.encode()) % len(self.partitions)]

    def tree(self, name):
        return self.partition(name).newest().get(name, (0, {}))[1]

    def names(self):
        return {name for p in self.partitions for _, name, _ in p.changes}

    def state(self):
        return {name: leaves(self.tree(name)) for name in self.names() if self.tree(name)}

    def state_at(self, vector):
        found = {}
        for p, at in zip(self.partitions, vector.positions, strict=True):
            found |= {name: leaves(tree) for name, (_, tree) in p.newest(at.seqno).items() if tree}
        return found

    # ---- what happens to it

    def edit(self, name, parent, number, *, is_deletion=False):
        tree = dict(self.tree(name))
        generation = 1 + (int(parent.partition("-")[0]) if parent else 0)
        rev = f"{generation}-{number}{'d' * is_deletion}"
        tree[rev] = parent
        self.partition(name).put(name, tree)
        return rev

    def extend(self, name, number=None, **options):
        """Edit the winner, whatever it is."""
        found = sorted(leaves(self.tree(name)), key=lambda r: (not r.endswith("d"), number_of(r)))
        return self.edit(
            name, found[-1] if found else None, number or next(self.numbers), **options
        )

    def lose(self, partition, back, uuid=None):
        """A fail-over of one partition to a copy that lacks its last changes."""
        p = self.partitions[partition]
        p.lose_tail(max(p.purge_seqno, p.high - back), uuid or next(self.numbers))
        self.started = str(next(self.numbers)) if self.is_foreign else self.started

    def purge(self, name):
        self.forgotten |= set(self.tree(name))
        self.partition(name).put(name, {})
        self.purge_epoch += 1

    def drop_tombstones(self, partition):
        p, gone = self.partitions[partition], set()
        for name, (seqno, tree) in p.newest().items():
            if tree and all(rev.endswith("d") for rev in leaves(tree)):
                self.forgotten |= set(tree)
                gone.add(name)
                p.changes = [change for change in p.changes if change[1] != name]
                p.purge_seqno = max(p.purge_seqno, seqno)
        return gone

    def image(self):
        numbers, self.numbers = self.numbers, None
        copied = copy.deepcopy(self)
        self.numbers = copied.numbers = numbers
        return copied

    def restored(self, *, is_copy=False):
        """An image of it as it is opened: its receipt does not match."""
        opened = self.image()
        for p in opened.partitions:
            p.lose_tail(p.high, next(self.numbers))
        opened.started = str(next(self.numbers))
        if is_copy:
            opened.ancestors = (opened.uuid, *opened.ancestors)
            opened.uuid = f"db{next(self.numbers)}"
        return opened

    # ---- what it answers

    def serve(self, request):
        self.asked += 1
        if type(request).__name__ in self.deaf:
            raise ConditionError("there is no such page", code="not_found")
        return getattr(self, "on_" + type(request).__name__)(request)

    def info(self):
        if self.is_foreign:
            return Info("", self.uuid, instance_start_time=self.started)
        present = self.present()
        return Info(
            self.uuid, self.uuid, self.ancestors, present.end, present.branches, self.purge_epoch
        )

    def on_ReadInfo(self, _):
        return self.info()

    def on_Flush(self, _):
        return self.info()

    def on_ReadLocal(self, request):
        body = self.locals.get(request.name)
        shown = body if self.is_foreign else logs.held_body(body, self.present())
        if shown is None and body is not None:
            return {"_rev": body["_rev"]}
        return copy.deepcopy(shown)

    def on_WriteLocal(self, request):
        old = self.locals.get(request.name)
        if old is not None and request.body.get("_rev") != old["_rev"]:
            raise ConditionError("Document update conflict.", code="conflict")
        written = json.loads(json.dumps(request.body))
        self.locals[request.name] = {**written, "_rev": f"0-{next(self.numbers)}"}

    def all_records(self):
        present = self.present()
        shown = {
            name: logs.parse_log(logs.held_body(body, present))
            for name, body in self.locals.items()
        }
        return [*coverage.own_records(shown, present), *self.records]

    def on_ReadRecords(self, request):
        found = coverage.still_valid(self.records, self.present())
        return [record for record in found if record.origin in request.origins]

    def on_StoreRecords(self, request):
        if self.is_foreign:
            raise ConditionError("there is no such page", code="not_found")
        old = [record for record in self.records if record.name not in request.removed]
        new = [coverage.record_of_json(coverage.record_to_json(each)) for each in request.records]
        self.records = coverage.accepted(old, new, self.present(), 0)

    def on_Verify(self, request):
        present = self.present()
        return [
            coverage.verified(
                claim,
                logs.parse_log(self.locals[claim.log]) if claim.log in self.locals else None,
                present,
            )
            for claim in request.claims
        ]

    def since(self, seq, *, restarts):
        present = self.present()
        begin = Vector(present.origin, (Position(),) * len(self.partitions))
        if seq in (0, "0"):
            return begin
        if self.is_foreign:
            vector = Vector(present.origin, OPAQUE[seq])
        else:
            vector = parse_token(seq)
            if vector.origin not in map(origin_of, present.lineage):
                raise UsageError("of another database", code="bad_request")
        return present.judge(vector, restarts=restarts) or begin

    def on_Changes(self, request):
        feed = request.feed
        present = self.present()
        at = self.since(request.since, restarts=feed.selector is not None)
        is_complete = all(
            p.purge_seqno == 0 or position.seqno >= p.purge_seqno
            for p, position in zip(self.partitions, at.positions, strict=True)
        )
        rows, reached, pending = self.walk(list(at.positions), min(request.limit, self.limit))
        vector = Vector(present.origin, tuple(reached), self.purge_epoch)
        wanted = [
            Row(name, tuple(sorted(r for r in leaves(tree) if passes(feed, name, r))))
            for name, tree in rows
        ]
        wanted = tuple(row for row in wanted if row.revs)
        self.rows_sent += len(wanted)
        if self.is_foreign:
            seq = f"{vector.total}-{vector.text()}"
            OPAQUE[seq] = vector.positions
            return Page(wanted, Place(seq), pending)
        records = ()
        if request.puller:
            found = coverage.emitted(
                self.all_records(), present, vector, request.puller,
                takes_parts=request.takes_parts,
            )  # fmt: skip
            records = tuple(found)
        return Page(wanted, Place(vector.text(), vector), pending, is_complete, records)

    def walk(self, reached, limit):
        rows, pending = [], 0
        for index in self.order:
            p, at = self.partitions[index], reached[index]
            new = sorted(
                (seqno, name, tree)
                for name, (seqno, tree) in p.newest().items()
                if seqno > at.seqno
            ) if p.high > at.seqno else []  # fmt: skip
            part = new[: limit - len(rows)]
            rows += [(name, tree) for _, name, tree in part]
            pending += len(new) - len(part)
            if len(part) == len(new):
                reached[index] = p.end()
            elif part:
                end = max(at.snap_end, p.high)
                purge = None if at.snap_start else p.purge_seqno
                reached[index] = position_at(p.log, part[-1][0], at.snap_start, end, purge)
        return rows, reached, pending

    def on_Diff(self, request):
        found = {}
        for name, revs in request.revs.items():
            tree = self.tree(name)
            if missing := tuple(rev for rev in revs if rev not in tree):
                found[name] = Difference(missing, tuple(leaves(tree)))
        return found

    def on_Fetch(self, request):
        documents, missing = {}, []
        for wanted in request.wanted:
            tree = self.tree(wanted.name)
            for rev in wanted.revs:
                if rev not in tree:
                    missing.append((wanted.name, rev))
                for leaf in below(tree, rev) if rev in tree else ():
                    documents[wanted.name, leaf] = document_of(wanted.name, leaf, tree)
        return Fetched(tuple(documents.values()), tuple(missing))

    def on_Write(self, request):
        failures = []
        for document in request.documents:
            path = json.loads(document.body)["_path"]
            tree = dict(self.tree(document.name))
            before = dict(tree)
            for rev, parent in zip(path, [*path[1:], None], strict=True):
                tree[rev] = tree.get(rev) or parent
            if tree == before:
                continue
            if document.name in self.refused:
                failures.append(Failure(document.name, document.rev, "forbidden"))
            else:
                self.partition(document.name).put(document.name, tree)
        return tuple(failures)


def below(tree, rev):
    """The leaves that a revision led to."""
    found = set()
    for leaf in leaves(tree):
        at = leaf
        while at is not None and at != rev:
            at = tree[at]
        if at == rev:
            found.add(leaf)
    return sorted(found)


def document_of(name, leaf, tree):
    path, at = [], leaf
    while at is not None:
        path.append(at)
        at = tree[at]
    return Document(name, leaf, json.dumps({"_id": name, "_rev": leaf, "_path": path}).encode())
