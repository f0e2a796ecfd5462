"""Schedules of databases, edits, replications and faults, each a function of its seed.

Held at every checkpoint that is complete and closed: its target knows every leaf that the source
had at its place and that passes, or the checkpoint lists the document. Held at the end: a full
mesh of replications gives every database the same documents with records about others as without.
"""

import copy
import itertools
import random

from millstream.errors import MillstreamError, UnavailableError
from millstream.replication.core.asking import Changes, Pause, WriteLocal, feed_of
from millstream.replication.core.jobs import Endpoint, Job
from millstream.replication.core.logs import parse_log
from millstream.replication.core.running import Run
from simulators.sites.database import Database, leaves, passes

NAMES = tuple(f"d{number}" for number in range(6))
STEPS = 120
EFFECTS_PER_STEP = 6
FILTERS = (
    {}, {}, {}, {"doc_ids": NAMES[:3]}, {"doc_ids": NAMES[1:3]}, {"doc_ids": NAMES[4:5]},
    {"selector": {"even": True}},
)  # fmt: skip


class Wrong(AssertionError):
    """What must hold does not."""


def job_between(source, target, **options):
    return Job(Endpoint("", str(source)), Endpoint("", str(target)), **options)


class World:
    """Some sites; `faults` names what may go wrong besides lost requests (all if None)."""

    def __init__(self, seed, sizes=None, faults=None, filters=None):
        self.rng = random.Random(seed)
        self.numbers = itertools.count(1)
        if sizes is None:
            sizes = [self.rng.choice((1, 2, 2, 3)) for _ in range(4)]
            if self.rng.random() < 0.4:  # parts of records need equal ones
                sizes = [max(2, *sizes)] * 4
        self.sites = [Database(self.numbers, size) for size in sizes]
        self.running, self.backups, self.held_at = [], {}, {}
        self.trace, self.incomparable = [], set()
        self.begun_further = self.checked = 0
        self.faults, self.filters = faults, filters
        self.is_lossy = False
        self.now_ms = 0

    def say(self, *words):
        self.trace.append(" ".join(map(str, words)))

    # ---- runs

    def begin(self, source, target, **options):
        run = Run(job_between(source, target, **options), lambda: f"c{next(self.numbers)}")
        running = [run, source, target, run.start(self.now_ms)]
        self.running.append(running)
        return running

    def step(self, running):
        """Carry out one effect of a run."""
        run, source, target, effects = running
        effect = effects.pop(self.rng.randrange(len(effects)))
        if isinstance(effect.step, Pause):
            effects += run.answer(effect.ticket, None, self.now_ms)
        else:
            effects += self.asked(run, source, target, effect)
        if run.outcome is not None:
            effects.clear()

    def asked(self, run, source, target, effect):
        side, request = effect.step
        database = self.sites[source if side == "source" else target]
        lost = self.rng.random() if self.is_lossy else 1
        if lost < 0.01:
            return run.fail(effect.ticket, UnavailableError("lost"), self.now_ms)
        try:
            answer = database.serve(request)
        except MillstreamError as error:
            return run.fail(effect.ticket, error, self.now_ms)
        self.look(run, database, side, request, answer, source)
        if lost < 0.02:
            return run.fail(effect.ticket, UnavailableError("lost"), self.now_ms)
        return run.answer(effect.ticket, answer, self.now_ms)

    def look(self, run, database, side, request, answer, source):
        if isinstance(request, Changes) and answer.place.vector is not None:
            vector = answer.place.vector
            if vector.is_closed:
                self.held_at[answer.place.seq] = database.state_at(vector)
        elif isinstance(request, WriteLocal) and side == "target":
            self.check(run, database, parse_log(request.body).entries[0], self.sites[source])

    def check(self, run, target, entry, source):
        """A complete and closed checkpoint speaks the truth."""
        if not (entry.is_complete and entry.is_closed) or entry.place.vector is None:
            return
        state = self.state_of(source, entry.place, restarts=run.job.selector is not None)
        if state is None:
            return
        if target.is_foreign or not target.present().holds(entry.target_vec):
            return
        self.checked += 1
        feed = feed_of(run.job)
        for name, found in state.items():
            known = target.tree(name).keys() | target.forgotten
            missing = {rev for rev in found if passes(feed, name, rev)} - known
            if missing and name not in entry.exceptions:
                raise Wrong(f"{name}: {sorted(missing)} of {source.uuid} at {target.uuid}")

    def state_of(self, source, place, *, restarts):
        """What the source had at a place, as far as that is its history still."""
        present = source.present()
        if present.holds(place.vector):
            return self.held_at.get(place.seq)
        judged = present.judge(place.vector, restarts=restarts)
        return judged and source.state_at(judged)

    def finish(self, running, steps=5000):
        """Run it to its end."""
        for _ in range(steps):
            if running[0].outcome is not None:
                break
            self.step(running)
        else:
            raise Wrong("a run does not end")
        if running in self.running:
            self.running.remove(running)
        return running[0]

    def replicate(self, source, target, **options):
        """Run a job and return it; how many rows it read is `rows_of`."""
        return self.finish(self.begin(source, target, **options))

    # ---- a schedule

    def run(self):
        possible = {
            "lose": self.lose, "toggle": self.toggle, "backup": self.backup,
            "restore": self.restore, "copy": self.copy_over, "purge": self.purge,
            "compact": self.compact,
        }  # fmt: skip
        chosen = [possible[name] for name in self.faults or ()]
        if self.faults is None:
            chosen = [each for each in (self.lose, *possible.values()) if self.rng.random() < 0.3]
        if self.filters is None:
            self.filters = FILTERS if self.rng.random() < 0.5 else ({},)
        self.is_lossy = self.rng.random() < 0.5
        actions = [self.edit] * 12 + [self.replicate_some] * 10 + 2 * chosen
        for _ in range(STEPS):
            self.rng.choice(actions)(self.rng.randrange(len(self.sites)))
            for _ in range(self.rng.randrange(2 * EFFECTS_PER_STEP)):
                self.advance()
        self.compare_meshes()

    def advance(self):
        if not self.running:
            return
        running = self.rng.choice(self.running)
        if self.rng.random() < 0.003:
            self.say("killed", running[1], "->", running[2])
            self.running.remove(running)
            return
        self.step(running)
        if running[0].outcome is not None:
            self.running.remove(running)

    def edit(self, site):
        database, rng = self.sites[site], self.rng
        name = rng.choice(NAMES)
        tree = database.tree(name)
        parent = rng.choice(sorted(leaves(tree))) if tree and rng.random() < 0.85 else None
        is_deletion = parent is not None and rng.random() < 0.2
        rev = database.edit(name, parent, next(self.numbers), is_deletion=is_deletion)
        self.say("edit", name, parent, "->", rev, "at", site)

    def replicate_some(self, source):
        target = self.rng.randrange(len(self.sites))
        if target == source or len(self.running) > 6:
            return
        options = dict(self.rng.choice(self.filters))
        if self.rng.random() < 0.03:
            options["since_seq"] = self.sites[source].present().end.text()
        database = self.sites[source]
        database.order = self.rng.sample(database.order, len(database.order))
        options["worker_batch_size"] = self.rng.choice((1, 2, 3, 99))
        options["worker_processes"] = self.rng.choice((1, 1, 3))
        options["continuous"] = self.rng.random() < 0.3
        options["checkpoint_interval_ms"] = 0 if self.rng.random() < 0.5 else 1000
        self.say("run", source, "->", target, options)
        self.begin(source, target, **options)

    def lose(self, site):
        database = self.sites[site]
        partition = self.rng.randrange(len(database.partitions))
        database.lose(partition, self.rng.randrange(6))
        self.say("fail-over of", site, partition, "to", database.partitions[partition].high)

    def toggle(self, site):
        self.sites[site].refused ^= {self.rng.choice(NAMES)}
        self.say("refused at", site, self.sites[site].refused)

    def purge(self, site):
        name = self.rng.choice(NAMES)
        self.incomparable.add(name)
        self.sites[site].purge(name)
        self.say("purge", name, "at", site)

    def compact(self, site):
        database = self.sites[site]
        gone = database.drop_tombstones(self.rng.randrange(len(database.partitions)))
        self.incomparable |= gone
        self.say("tombstones dropped at", site, gone)

    def backup(self, site):
        self.backups[site] = self.sites[site].image()
        self.say("backup of", site)

    def restore(self, site):
        if site in self.backups:
            self.sites[site] = self.backups[site].restored()
            self.say("restored", site)

    def copy_over(self, site):
        other = self.rng.randrange(len(self.sites))
        if other != site:
            self.sites[site] = self.sites[other].restored(is_copy=True)
            self.backups.pop(site, None)
            self.say("copy of", other, "in place of", site)

    def compare_meshes(self):
        outcomes = []
        self.running, self.is_lossy = [], False
        for transitive in (True, False):
            world = copy.deepcopy(self)
            for database in world.sites:
                database.refused = set()
            for _ in range(2):
                for source, target in itertools.permutations(range(len(world.sites)), 2):
                    world.finish(world.begin(source, target, transitive=transitive))
            outcomes.append(
                [
                    {
                        name: leaves(each.tree(name))
                        for name in NAMES
                        if name not in self.incomparable
                    }
                    for each in world.sites
                ]
            )
        if outcomes[0] != outcomes[1]:
            raise Wrong("a mesh with records about others differs from one without")
