"""Row order against PouchDB's: the same types and nesting, with strings that both order alike.

PouchDB orders strings by code units, not by a Unicode collation. What is comparable: strings of
digits and lower-case letters, which both order alike; all other types, and how they nest.
"""

from __future__ import annotations

import json
import random
from typing import Any

from millstream.views.core.collation import encode_key
from support.node.npm_peers import run_node

COLLATE = """
const collate = require("pouchdb-collate");
const pairs = JSON.parse(require("fs").readFileSync(0, "utf8"));
const signs = pairs.map(([a, b]) => Math.sign(collate.collate(a, b)));
process.stdout.write(JSON.stringify(signs));
"""
PAIRS = 20_000
LETTERS = "019abz"


def value(dice: random.Random, depth: int = 3) -> Any:
    kind = dice.randrange(8 if depth else 5)
    if kind < 2:
        return dice.choice([None, False, True])
    if kind == 2:
        numbers = [0, 1, -1, 2, 10, 0.5, -0.5, 1e300, -1e300, 2**53 - 1, 1e-300]
        return dice.choice([*numbers, dice.randrange(-50, 50), dice.uniform(-9, 9)])
    if kind < 5:
        return "".join(dice.choices(LETTERS, k=dice.randrange(4)))
    size = dice.randrange(4)
    if kind < 7:
        return [value(dice, depth - 1) for _ in range(size)]
    # Members in order of their names: PouchDB sees integer-like names first, however written.
    names = sorted({"".join(dice.choices("abz", k=dice.randrange(1, 3))) for _ in range(size)})
    return {name: value(dice, depth - 1) for name in names}


def test_thousands_of_pairs_are_ordered_alike():
    dice = random.Random(20261122)
    pairs = [(value(dice), value(dice)) for _ in range(PAIRS)]
    theirs = json.loads(run_node(COLLATE, json.dumps(pairs).encode()))
    assert len(theirs) == PAIRS
    for (a, b), sign in zip(pairs, theirs, strict=True):
        first, second = encode_key(a), encode_key(b)
        assert (first > second) - (first < second) == sign, (a, b)
