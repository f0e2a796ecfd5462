"""Seeded schedules of faults on real Spark; `python -m simulators.spark_faults` runs them.

`schedule` is what happens, made from a seed; `world` does it, with real nodes and a `driver`
process that may be killed; `points` are the places in which processes fail, of this package and,
by `inside/sitecustomize.py`, of all of Spark's Python processes; `downstream` is what is compared.
"""
