"""Bytes that nobody would send, thought up by chance or by coverage (`make fuzz`).

Invariants:
1. A target takes bytes and raises if what it is about does not hold; the bytes decide everything.

`twins`: commands, sensible or not, at the state machine of a group. `resp_sessions`: what comes on
clients' connections. `codecs`: frames of other nodes, and what disks hold.

Elsewhere: faults of machines and networks (`coordination_sim`).
"""
