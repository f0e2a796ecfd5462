"""A family that has nothing to do with something says nothing."""

from millstream.coordination.core.namespace.state.family import Family, Want
from millstream.coordination.core.namespace.state.run import Asker, Run
from millstream.coordination.core.namespace.tables import Tables
from millstream.vsr.core.versions import NEVER


def test_hooks_do_nothing_unless_told() -> None:
    family, run = Family(), Run(Tables(), Asker(), NEVER, 0)
    for want in Want:
        family.guard(run, 1, want)
    family.created(run, 1, 0, 0)
    family.resized(run, 1, 5)
    family.moved(run, 1)
    family.deleted(run, 1)
    family.session_ended(run, 1)
    family.finished(run)
    assert not family.is_wanted(1)
    assert list(family.attributes(run, 1)) == []
    assert run.tables.mark() == 0
