"""Queries: parameters, rows and groups, answers of several nodes merged."""
