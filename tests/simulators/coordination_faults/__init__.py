"""Real nodes, everything that can happen to them, and clients who write down what they see.

There are five nodes, of which three are a group at first.

`python -m simulators.coordination_faults --minutes 1 --seed 7` runs it: in network namespaces
where there is
root, else through proxies on loopback. What the clients saw is checked by `histories` and kept as
JSON lines.
"""
