"""A whole managed cluster on one seed: the cores of `millstream.cluster.core`, and faults."""
