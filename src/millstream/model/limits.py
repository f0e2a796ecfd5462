"""The named bounds of the system, with units; every queue, buffer, batch and wait cites one.

Sources: wire limits are those of the memcached binary protocol as Couchbase speaks it.
"""

from typing import Final

KEY_BYTES_MAX: Final = 250
VALUE_BYTES_MAX: Final = 20 * 1024 * 1024
FRAME_BYTES_MAX: Final = VALUE_BYTES_MAX + 1024 * 1024
"""Body of one request; a longer one is answered E2BIG and not kept."""
SKIPPED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Body of a request that is answered E2BIG and passed over; a longer one closes the connection."""
LOGIN_BYTES_MAX: Final = 64 * 1024
"""The same before a login, where there are users."""
NOTED_BYTES_MIN: Final = 8 * 1024
"""What is held for one connection counts from here on; less is bounded by the number of them."""
ASKED_BYTES_MAX: Final = 16 * 1024
"""Value of a kv request that stores nothing; LEASE for all partitions has 10 KiB."""
PARTITIONS_DEFAULT: Final = 64
PARTITIONS_MAX: Final = 1024
BUCKET_NAME_BYTES_MAX: Final = 100
MEMORY_QUOTA_BYTES_MIN: Final = 16 * 1024 * 1024
"""Smallest memory quota of a bucket."""
FAILOVER_ENTRIES_MAX: Final = 25
STREAM_NAME_BYTES_MAX: Final = 200
CONNECTION_OUT_BYTES_MAX: Final = 1024 * 1024
"""Replies waiting in one connection above which its requests are no longer read."""
STREAM_OUT_BYTES_MAX: Final = 8 * 1024 * 1024
"""The same in a connection that streams, which must receive acknowledgements meanwhile."""
REQUESTS_PER_WAKEUP_MAX: Final = 1000
STREAM_STEP_BYTES_MAX: Final = 512 * 1024
STREAM_STEP_ITEMS_MAX: Final = 1024
QUEUE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Frames a bucket keeps in memory for its readers; older persisted ones are read from the log."""
QUEUE_SECONDS_MAX: Final = 300
"""How long after they are durable changes wait in memory for a slow reader, up to twice that."""
LEASES_MAX: Final = 4096
LEASE_SECONDS_MAX: Final = 3600
LEASE_SECONDS_DEFAULT: Final = 600
UINT48_MAX: Final = 2**48 - 1
UINT53_MAX: Final = 2**53 - 1
"""What every JSON reader takes for a whole number."""
UINT64_MAX: Final = 2**64 - 1
