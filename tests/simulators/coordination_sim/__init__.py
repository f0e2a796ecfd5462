"""A coordination group in false time: whole replicas on whole journals, under faults of all kinds.

Invariants:
1. One thread, one heap of events, one random stream per purpose, all of them from the seed: a run
   is repeated by its seed, whatever else is in the process.
2. A fault class that is left out moves no draw of the others, so that a failing run can be shrunk.
3. More than may be is lost on purpose only (`lost_entry`, `forget_all`): then the group has to
   stand still, and all else that is checked is checked on.
4. Fault classes that came later (`LATER`) draw from streams of their own: without them a seed is
   the run that it was before.

5. Half of the seeds also have clients of namespaces over connections (`namespace_clients`). The
   committed entries are executed a second time and checked
   (`shadow`).

In whole nodes (`whole`) they are in several groups, and names are made and deleted, too.

In one of five runs all but one member are lost at the end, and the group is forced to go on
(`forcing`): what that loses is known, and nothing else may be missing.

Not here: what a client's program does by itself (its retries are imitated).

Elsewhere: a state of namespaces alone, in far more schedules (`namespace_world`).
"""
