"""Partitions and buckets as pure state: no clock, socket, thread or file."""
