"""Replication of a group's log and the state machine above it, pure."""
