"""Replications as jobs: requested once, continuous, and from `_replicator`."""
