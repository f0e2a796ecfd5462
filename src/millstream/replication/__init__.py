"""Replication between databases over HTTP: jobs, runs, logs and what passes from site to site."""
