"""Threads, files and sockets of coordination."""
