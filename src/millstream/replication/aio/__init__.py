"""Replication's shell: HTTP peers, running jobs, and who runs which job when."""
