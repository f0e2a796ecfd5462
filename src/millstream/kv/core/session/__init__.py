"""One client connection: commands of the kv and memcached ports."""
