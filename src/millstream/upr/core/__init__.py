"""Streams without I/O: producer, consumer, flow control, what they need of a source."""
