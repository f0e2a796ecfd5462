"""The change stream as a Spark source: options, planning, offsets, reading."""
