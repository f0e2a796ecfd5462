"""The shell of the replicated log: its journal on disk, written by a thread."""
