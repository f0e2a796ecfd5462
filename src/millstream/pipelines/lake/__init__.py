"""Backups of buckets in Parquet, and tables that follow a bucket.

The format of a backup is docs/reference/backup-format.md.
"""
