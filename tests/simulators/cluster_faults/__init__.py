"""A managed cluster of real nodes, everything that can happen to them, and clients that compare.

`python -m simulators.cluster_faults --minutes 3 --seed 7` runs it: in network namespaces where
there is root, else through proxies on loopback.
"""
