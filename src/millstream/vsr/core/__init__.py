"""The replicated log without I/O: events in, ordered effects out."""
