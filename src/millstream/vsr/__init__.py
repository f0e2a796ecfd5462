"""Viewstamped Replication: a replicated log under any state machine."""
