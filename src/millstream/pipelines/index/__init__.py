"""Views on Spark: a pipeline that builds and maintains the index trees of a node's views.

What is read next is decided by the index's header alone (`planning`), read, mapped and staged in
executors (`mapping`), and committed by name (`shard`); `writer` is the cycle of these, `views` has
Spark drive it.

Source: docs/design/0017-views-on-spark.md.
"""
