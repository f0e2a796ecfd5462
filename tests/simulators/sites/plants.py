"""Mistakes to plant in the rules; schedules must find each.

A plant takes a monkeypatch, and returns what a world should lean to, so that it is found soon.
"""

from millstream.model.position import Position
from millstream.replication.core import checkpointing, coverage, running, starting
from millstream.replication.core.asking import Info
from millstream.replication.core.places import Present
from millstream.replication.core.tracking import Tracker

PLANTS = {}
CONTENT = {"selector": {"even": True}}


def plant(make):
    PLANTS[make.__name__] = make
    return make


@plant
def a_record_is_not_narrowed_by_the_hop(patch):
    patch.setattr(coverage, "_with", lambda members, _: members)


@plant
def exceptions_are_not_taken_over(patch):
    right = starting._chain_of
    patch.setattr(starting, "_chain_of", lambda m: right(m)._replace(exceptions=frozenset()))
    return {"faults": ("toggle",)}


@plant
def a_refused_document_that_moved_on_counts_as_taken(patch):
    patch.setattr(running, "_moved_on", lambda *_: set())
    return {"faults": ("toggle", "toggle", "lose"), "filters": (CONTENT, CONTENT, {})}


@plant
def what_looks_inside_restarts_at_the_branch_point(patch):
    right = Present.judge
    patch.setattr(Present, "judge", lambda self, at, restarts: right(self, at, restarts=False))
    return {"faults": ("lose", "lose"), "filters": ({}, CONTENT)}


@plant
def records_are_told_inside_a_snapshot(patch):
    class Anywhere:
        is_closed = True

    right = running.Run._mark_of

    def mark_of(self, page):
        mark = right(self, page)
        return mark._replace(is_closed=True, records=page.records)

    patch.setattr(running.Run, "_mark_of", mark_of)
    patch.setattr(coverage.Vector, "is_closed", True)
    return {"faults": ()}


@plant
def a_newer_branch_of_the_target_is_passed_over(patch):
    patch.setattr(Info, "incarnation", property(lambda self: self.uuid))


@plant
def records_are_told_before_their_stamp(patch):
    patch.setattr(Present, "is_reached", lambda *_: True)


@plant
def stamps_outlive_a_rollback(patch):
    patch.setattr(Present, "holds", lambda *_: True)


@plant
def a_later_hop_may_look_inside(patch):
    right = coverage.carried

    def carried(records, entry, member, **names):
        if member is not None and member.looks_inside:
            member = None
        return right(records, entry, member, **names)

    patch.setattr(checkpointing, "carried", carried)
    return {"filters": ({}, CONTENT)}


@plant
def forgotten_deletions_do_not_matter(patch):
    right = running.Run._on_page

    def on_page(self, page, error):
        right(self, page and page._replace(is_complete=True), error)

    patch.setattr(running.Run, "_on_page", on_page)
    return {"faults": ("compact", "compact"), "filters": ({},)}


@plant
def a_lost_purge_does_not_matter(patch):
    right = Present.judge
    patch.setattr(
        Present, "judge",
        lambda self, at, restarts: right(self, at._replace(purge_epoch=0), restarts=restarts),
    )  # fmt: skip
    return {"faults": ("lose", "lose", "purge"), "filters": ({},)}


@plant
def a_purge_at_the_target_does_not_matter(patch):
    right = checkpointing._entry

    def entry(wanted, target):
        chain = wanted.chain._replace(purge_epoch=target.purge_epoch)
        return right(wanted._replace(chain=chain), target)

    patch.setattr(checkpointing, "_entry", entry)
    return {"faults": ("purge",), "filters": ({},)}


@plant
def the_place_moves_over_what_is_under_way(patch):
    right = Tracker.opened

    def opened(self, mark):
        number = right(self, mark)
        self.at = mark
        return number

    patch.setattr(Tracker, "opened", opened)


@plant
def what_the_source_lost_counts_as_accepted(patch):
    right = running.Run._on_batch

    def on_batch(self, number, done, error):
        if done is not None:
            done = done._replace(accepted=done.accepted | done.missing, missing=frozenset())
        right(self, number, done, error)

    patch.setattr(running.Run, "_on_batch", on_batch)
    return {"faults": ("lose", "lose")}


@plant
def parts_are_told_of_partitions_that_are_not_closed(patch):
    right = Present.reached_parts

    def reached_parts(self, stamp, end):
        positions = [each._replace(snap_end=each.seqno) for each in end.positions]
        positions = [each._replace(snap_start=each.seqno) for each in positions]
        return right(self, stamp, end._replace(positions=tuple(positions)))

    patch.setattr(Present, "reached_parts", reached_parts)
    patch.setattr(coverage, "may_be_carried", lambda *_, is_closed: True)
    patch.setattr(running, "may_be_carried", lambda *_, is_closed: True)
    return {"faults": (), "sizes": [2, 2, 2, 2]}


@plant
def parts_are_told_before_their_stamp(patch):
    right = Present.reached_parts

    def reached_parts(self, stamp, end):
        return right(self, stamp._replace(positions=(Position(),) * len(stamp.positions)), end)

    patch.setattr(Present, "reached_parts", reached_parts)
    return {"faults": (), "sizes": [2, 2, 2, 2]}


@plant
def parts_are_told_where_partitions_differ(patch):
    right = coverage._part

    def part(record, reached):
        vector = record.place.vector
        count = 0 if vector is None else len(vector.positions)
        return right(record, [any(reached)] * count)

    patch.setattr(coverage, "_part", part)
    patch.setattr(coverage, "may_be_carried", lambda *_, is_closed: True)
    patch.setattr(running, "may_be_carried", lambda *_, is_closed: True)
    return {"faults": (), "sizes": [1, 2, 1, 3]}
