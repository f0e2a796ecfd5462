"""The search for planted mistakes, and the table of what came of it.

Invariants:
1. Found is what has a sign of the mistake in a run that is clean without it; a run that goes wrong
   otherwise is counted, and the search goes on.
2. A mistake whose own code fails is a mistake of ours: it ends its search, and is not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from simulators.coordination_sim.conditions import Options
from simulators.coordination_sim.ledger import write_between
from simulators.coordination_sim.plants import OUT_OF_REACH, PLANTS, Plant
from simulators.coordination_sim.runs import Run, run, say

Plants = Mapping[str, Plant]
SEEDS_MAX = 200
FOUND_MIN = 15
SAYS_MAX = 90
BEGIN, END = "<!-- planted: begin -->", "<!-- planted: end -->"
OWN_ERRORS = ("AttributeError", "TypeError", "KeyError", "IndexError", "ValueError")


class Found(NamedTuple):
    """What a search came to; `others`: runs that went wrong without a sign of the mistake."""

    runs: int
    said: str | None
    others: int
    processor_s: float
    broken: str | None = None

    def row(self, plant: Plant) -> str:
        """Return the line of the document."""
        if self.said is None:
            which = "its own code fails" if self.broken else f"not in {self.runs}"
            return f"| {_plain(plant.what)} | {which} | |"
        return f"| {_plain(plant.what)} | {self.runs} | {self.said} |"


def search(
    name: str, first: int, count: int = SEEDS_MAX, run: Run = run, plants: Plants = PLANTS
) -> Found:
    """Search for one mistake, from a seed on."""
    plant = plants[name]
    others, processor = 0, 0.0
    for seed in range(first, first + count):
        clean = Options(only=plant.faults, fixed=plant.fixed)
        outcome = run(seed, clean._replace(plant=name))
        processor += outcome.processor_s
        if outcome.wrong is None:
            continue
        if outcome.wrong.startswith(OWN_ERRORS):
            return Found(seed - first + 1, None, others, processor, outcome.wrong)
        if is_sign(plant, outcome.wrong) and not run(seed, clean).wrong:
            return Found(seed - first + 1, _short(outcome.wrong), others, processor)
        others += 1
    return Found(count, None, others, processor)


def is_sign(plant: Plant, wrong: str) -> bool:
    """Whether what went wrong in a run is what follows from a mistake."""
    return any(sign in wrong for sign in plant.signs)


def search_all(
    first: int, runs: int, document: Path | None, run: Run = run, plants: Plants = PLANTS
) -> int:
    """Search for every mistake; 1 if too few are found, or one cannot be tried."""
    found: dict[str, Found] = {}
    for name, plant in plants.items():
        one = found[name] = search(name, first, runs, run, plants)
        said = one.said or one.broken or "NOT FOUND"
        say(
            f"{name:20} {one.runs:4} runs {one.processor_s:4.0f} s "
            f"({one.others} otherwise) {said}    {plant.what}"
        )
    count = sum(one.said is not None for one in found.values())
    say(f"{count} of {len(plants)} planted mistakes are found")
    if document is not None:
        write_between(document, BEGIN, END, table(found))
    return (
        1
        if count < min(FOUND_MIN, len(plants)) or any(one.broken for one in found.values())
        else 0
    )


def table(found: dict[str, Found]) -> list[str]:
    """Return the lines of the document: what was found, by the sooner the first, then the rest."""
    names = sorted(found, key=lambda name: (found[name].said is None, found[name].runs))
    count = sum(one.said is not None for one in found.values())
    return [
        f"{count} of {len(found)} that were searched for are found.", "",
        "| planted | found by run | what was said |", "| --- | ---: | --- |",
        *(found[name].row(PLANTS[name]) for name in names), "",
        "Not searched for:", "",
        *(f"- `{name}`: {why}." for name, why in OUT_OF_REACH.items()),
    ]  # fmt: skip


def _plain(what: str) -> str:
    return what[:1].lower() + what[1:].rstrip(".")


def _short(wrong: str) -> str:
    said = wrong.partition(": ")[2].rpartition(" (")[0].replace("|", "/")
    said = said.partition(": node ")[0]
    return said if len(said) <= SAYS_MAX else said[:SAYS_MAX].rpartition(" ")[0] + " ..."
