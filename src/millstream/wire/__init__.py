"""Bytes and messages, no sockets: the memcached binary protocol and the stream frames."""
