"""What was simulated: one JSON line per batch of seeds, and the table that is made of the lines.

Invariants:
1. A line is written when its runs are over, and says of which revision they were; nothing is
   written by hand, and no line is ever changed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from simulators.coordination_sim.conditions import FAULTS, GROUPS
from simulators.coordination_sim.runs import Outcome

LEDGER = Path(__file__).with_name("ledger.jsonl")
BEGIN, END = "<!-- simulated: begin -->", "<!-- simulated: end -->"


def line(revision: str, outcomes: list[Outcome]) -> str:
    """Return the line of some runs, of seeds that follow one another."""
    counts, hours = Counter[str](), Counter[str]()
    for outcome in outcomes:
        counts += outcome.counts
        part = outcome.simulated_s / 3600
        hours["all"] += part
        for name, faults in GROUPS.items():
            hours[name] += part if faults.intersection(outcome.struck) else 0
    return json.dumps({
        "revision": revision, "first": outcomes[0].seed, "seeds": len(outcomes),
        "hours": {name: round(value, 4) for name, value in sorted(hours.items())},
        "processor_s": round(sum(outcome.processor_s for outcome in outcomes), 1),
        "counts": dict(sorted(counts.items())),
        "violations": [[o.seed, o.wrong] for o in outcomes if o.wrong],
    })  # fmt: skip


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines that there are."""
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(text)


def next_seed(path: Path) -> int:
    """Return the first seed that no line has."""
    return max((known["first"] + known["seeds"] for known in read(path)), default=0)


def table(lines: Iterable[dict[str, Any]]) -> list[str]:
    """Return the figures of all lines, as a table."""
    counts, hours, seeds, violations = Counter[str](), Counter[str](), 0, 0
    for known in lines:
        counts.update(known["counts"])
        hours.update(known["hours"])
        seeds += known["seeds"]
        violations += len(known["violations"])
    rows = [
        ("simulated hours", f"{hours['all']:,.1f}"),
        *((f"of them with {name}", f"{hours[name]:,.1f}") for name in GROUPS),
        ("runs, each of a seed of its own", f"{seeds:,}"),
        ("runs that broke an invariant", f"{violations:,}"),
        *((what, f"{counts[key]:,}") for what, key in (
            ("registers whose history was searched for an order", "histories"),
            ("of them undecided", "histories undecided"),
            ("committed entries", "commits"), ("answers to clients", "answers"),
            ("views that began", "views"), ("epochs that began", "epochs"),
            ("processes that ended early", "crashes"), ("events", "events"),
        )),
    ]  # fmt: skip
    faults = [(f"`{fault}`", f"{counts[fault]:,}") for fault in FAULTS if counts[fault]]
    return [
        "| what | how many |", "| --- | ---: |", *(f"| {a} | {b} |" for a, b in rows), "",
        "| fault | times |", "| --- | ---: |", *(f"| {a} | {b} |" for a, b in faults),
    ]  # fmt: skip


def revisions(lines: Iterable[dict[str, Any]]) -> list[str]:
    """Return how long each revision ran, and how many of its runs failed, as a table."""
    hours, runs, broken = Counter[str](), Counter[str](), Counter[str]()
    for known in lines:
        revision = known["revision"]
        hours[revision] += known["hours"]["all"]
        runs[revision] += known["seeds"]
        broken[revision] += len(known["violations"])
    return [
        "| revision, the oldest first | hours | runs | broke an invariant |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {hours[name]:,.1f} | {runs[name]:,} | {broken[name]:,} |" for name in runs),
    ]


def write_table(document: Path, ledger: Path) -> None:
    """Put the table where a document has its marks."""
    lines = list(read(ledger))
    write_between(document, BEGIN, END, [*table(lines), "", *revisions(lines)])


def write_between(document: Path, begin: str, end: str, lines: list[str]) -> None:
    """Replace what a document has between two marks."""
    text = document.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    body = "\n".join(lines)
    document.write_text(f"{head}{begin}\n{body}\n{end}{tail}", encoding="utf-8")
